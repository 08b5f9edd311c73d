import { infoOf, type KnownCode } from "./codes.js";

/** One fault of an input; `path` is a JSON Pointer. */
export interface Violation {
  readonly path: string;
  readonly message: string;
}

/**
 * A refusal by the cluster. Decide by `code`; the message is for people and may
 * change. Every code but result_unknown promises that nothing happened. Calls
 * repeat what may be repeated by themselves, so a retryable refusal comes back
 * only as the cause of a CallAborted.
 */
export class PulseError extends Error {
  override readonly name = "PulseError";
  readonly code: KnownCode | (string & {});
  /** Of the HTTP answer; 0 if it came another way. */
  readonly status: number;
  readonly retryable: boolean;
  readonly violations: readonly Violation[];
  /** With conflict on a business key: the task that has it. */
  readonly existingTaskId: string | undefined;
  /** With revision_conflict. */
  readonly currentRevision: bigint | undefined;
  /** What the answer asked to wait before a repeat. */
  readonly retryAfterMs: number;

  constructor(code: string, message: string, more: Partial<Omit<PulseError, "code" | "message" | "name">> = {}) {
    const violations = more.violations ?? [];
    super([`pulse: ${code}${message === "" ? "" : `: ${message}`}`, ...violations.map((v) => `${v.path} ${v.message}`)].join("; "));
    this.code = code;
    this.status = more.status ?? 0;
    this.retryable = more.retryable ?? infoOf(code).retryable;
    this.violations = violations;
    this.existingTaskId = more.existingTaskId;
    this.currentRevision = more.currentRevision;
    this.retryAfterMs = more.retryAfterMs ?? 0;
  }
}

/** An answer with a good status that is not what it should be. It is not repeated. */
export class AnswerError extends Error {
  override readonly name = "AnswerError";
}

/**
 * A call whose signal was aborted first. `reason` is that of the signal, `cause`
 * the last failure, if there was one: a result_unknown there means that the
 * cluster may have done what was asked.
 */
export class CallAborted extends Error {
  override readonly name = "AbortError";
  constructor(
    readonly reason: unknown,
    last?: unknown,
  ) {
    super(`pulse: the call was given up: ${String(reason)}${last === undefined ? "" : `; last failure: ${String(last)}`}`, last === undefined ? undefined : { cause: last });
  }
}

/** An application/problem+json body, or null if the text is none. */
function problemOf(text: string): Record<string, unknown> | null {
  try {
    const body = JSON.parse(text) as unknown;
    return typeof body === "object" && body !== null && typeof (body as { code?: unknown }).code === "string" ? (body as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

/** A problem inside an answer, as batches and bulk actions carry them. */
export function refusalIn(problem: Record<string, unknown>, status = 0, retryAfterMs = 0): PulseError {
  const text = (name: string) => (typeof problem[name] === "string" ? (problem[name] as string) : undefined);
  const revision = text("current_revision");
  return new PulseError(text("code") ?? "internal", text("detail") ?? text("title") ?? "", {
    status: status || Number(problem["status"] ?? 0),
    retryable: problem["retryable"] === true,
    violations: Array.isArray(problem["violations"]) ? (problem["violations"] as Violation[]) : [],
    existingTaskId: text("existing_task_id"),
    currentRevision: revision === undefined ? undefined : BigInt(revision),
    retryAfterMs,
  });
}

/**
 * The refusal in an HTTP answer. What a proxy on the way answered has no code of
 * ours; it gets the one its status comes closest to. A gateway status counts as
 * result_unknown, because the proxy may have passed the request on.
 */
export function refusalOf(status: number, retryAfter: string | undefined, text: string): PulseError {
  const seconds = /^[0-9]{1,5}$/.test(retryAfter ?? "") ? Number(retryAfter) : 0;
  const problem = problemOf(text);
  if (problem !== null) return refusalIn(problem, status, seconds * 1000);
  const excerpt = text.slice(0, 200).split(/\s+/).join(" ").trim();
  return new PulseError(codeOfStatus(status), `HTTP status ${status}: ${excerpt}`, { status, retryAfterMs: seconds * 1000 });
}

function codeOfStatus(status: number): KnownCode {
  switch (status) {
    case 400:
      return "invalid_argument";
    case 401:
      return "unauthenticated";
    case 403:
      return "forbidden";
    case 404:
    case 410:
      return "not_found";
    case 409:
      return "conflict";
    case 413:
      return "too_large";
    case 429:
      return "rate_limited";
    case 503:
      return "unavailable";
    case 502:
    case 504:
      return "result_unknown";
    default:
      return "internal";
  }
}
