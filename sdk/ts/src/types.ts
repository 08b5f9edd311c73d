import { AnswerError, refusalIn } from "./error.js";
import { elements, members, RawJson } from "./json.js";

/**
 * The state of a task. FAILED means known not to have succeeded; NEEDS_REVIEW
 * means not known, and waits for a person to say.
 */
export type State = "WAITING" | "LEASED" | "RUNNING" | "SUCCEEDED" | "FAILED" | "CANCELLED" | "NEEDS_REVIEW";

/** Whether a task in this state changes no more. NEEDS_REVIEW is not terminal: a review can send the task back to WAITING. */
export function isTerminal(state: State): boolean {
  return state === "SUCCEEDED" || state === "FAILED" || state === "CANCELLED";
}

/** Whether the cluster will do nothing more by itself: the state is terminal or NEEDS_REVIEW. */
export function isSettled(state: State): boolean {
  return isTerminal(state) || state === "NEEDS_REVIEW";
}

/**
 * What may happen to a task whose run ended without a known outcome: IDEMPOTENT
 * is run again, RECONCILE_ONLY never, once it was started; it goes to NEEDS_REVIEW.
 */
export type RecoverySafety = "IDEMPOTENT" | "RECONCILE_ONLY";

/** An instant as the cluster writes it: RFC 3339, UTC, to the microsecond. `new Date(t)` reads it to the millisecond. */
export type Time = string;

export interface RetryPolicy {
  maxAttempts: number;
  /** Before the second attempt; doubles with each. */
  initialDelayMs: number;
  maxDelayMs: number;
  /** Counted from start. */
  attemptTimeoutMs: number;
}

/** A task as a reader sees it at one revision. */
export interface TaskInfo {
  id: string;
  namespaceId: string;
  queueId: string;
  namespace: string;
  queue: string;
  state: State;
  revision: bigint;
  handler: string;
  handlerVersion: string;
  payloadVersion: string;
  payload: RawJson;
  result?: RawJson;
  errorCode?: string;
  businessKey?: string;
  concurrencyKey?: string;
  priority?: number;
  recoverySafety: RecoverySafety;
  retry: RetryPolicy;
  attemptCount: number;
  /** Some run may have had an effect that nobody has confirmed. */
  effectUncertain?: boolean;
  /** The task this one was made from by a manual retry. */
  retryOf?: string;
  /** The task that the last manual retry of this one made. */
  retriedAs?: string;
  /** It holds its concurrency key: also in NEEDS_REVIEW, until that is settled or the key freed. */
  holdsKey?: boolean;
  /** While in NEEDS_REVIEW. */
  reviewSince?: Time;
  /** While in NEEDS_REVIEW: what brought it there, as endCause of an attempt. */
  reviewCause?: string;
  /** The last one. */
  decision?: Decision;
  /** Of a run of a schedule. */
  scheduled?: Scheduled;
  createdAt: Time;
  updatedAt: Time;
  availableAt: Time;
  startDeadlineAt?: Time;
  deadlineAt: Time;
  cancelRequestedAt?: Time;
  completedAt?: Time;
  /** While WAITING: why, and until when if that is known. */
  waiting?: { reason: string; until?: Time; holderTaskId?: string };
  /** While LEASED or RUNNING. */
  lease?: { attemptId: string; epoch: bigint; instanceId: string; leaseUntil: Time };
  /** The submission found this task under its business key. */
  duplicate?: boolean;
  /**
   * This is the remembered answer to an earlier call under the same idempotencyKey:
   * nothing was done now. The earlier call may be a try of this one whose answer was lost.
   */
  replayed?: boolean;
}

/** What a review of a task in NEEDS_REVIEW found out. */
export type ReviewDecision = "SUCCEEDED" | "FAILED" | "CANCELLED" | "RETRY";

/** What somebody, not a worker, decided about a task, and why: a review, or CANCEL, that it be cancelled. */
export interface Decision {
  decision: ReviewDecision | "CANCEL";
  /** In whose name, like token/ID or client/NAME. */
  by: string;
  byName?: string;
  at: Time;
  note?: string;
}

/** Which time of which schedule a task is for. */
export interface Scheduled {
  /** Absent when the schedule was deleted. */
  schedule?: string;
  scheduleId: string;
  nominalAt: Time;
}

/** One run, or offered run, of a task. */
export interface AttemptInfo {
  id: string;
  epoch: bigint;
  state: "LEASED" | "RUNNING" | "SUCCEEDED" | "FAILED" | "CANCELLED" | "EXPIRED" | "UNKNOWN";
  number: number;
  instanceId: string;
  sessionEpoch: bigint;
  leasedAt: Time;
  startedAt?: Time;
  endedAt?: Time;
  leaseUntil: Time;
  timeoutAt?: Time;
  cancelRequestedAt?: Time;
  concurrencyKey?: string;
  concurrencyToken?: bigint;
  renewals: number;
  errorCode?: string;
  retryable?: boolean;
  /** Why it ended without a finish. */
  endCause?: string;
  result?: RawJson;
  receipts: Receipt[];
  evidence: Evidence[];
}

/** The first outcome of a worker's operation on an attempt. */
export interface Receipt {
  messageId: string;
  operation: "START" | "RENEW" | "FINISH";
  taskState: State;
  attemptState: AttemptInfo["state"];
  taskRevision: bigint;
  leaseUntil: Time;
  /** EVIDENCE_ONLY for a finish that came too late. */
  disposition: "APPLIED" | "EVIDENCE_ONLY";
  at: Time;
  index: bigint;
}

/** What a worker reported after its attempt was over. It changed nothing; a reviewer decides with it. */
export interface Evidence {
  messageId: string;
  outcome: string;
  errorCode?: string;
  retryable?: boolean;
  result?: RawJson;
  instanceId: string;
  at: Time;
}

/** One change of a task, as seen by a watcher. */
export interface TaskEvent {
  /** Resumes the stream behind this event, on any node. */
  id: string;
  index: bigint;
  taskId: string;
  revision: bigint;
  type: string;
  state: State;
}

/** What a queue is set to; what is absent takes the default. */
export interface QueueSettings {
  leaseDurationMs?: number;
  offerDurationMs?: number;
  /** 0 = no cap. */
  maxActive?: number;
  maxWaiting?: bigint;
  retentionMs?: number;
  defaultDeadlineMs?: number;
  /** 0 = off. */
  ageingMs?: number;
  defaultRetry?: RetryPolicy;
  paused?: boolean;
}

/** A queue with its settings and how it stands. */
export interface QueueInfo extends QueueSettings {
  id: string;
  name: string;
  namespace: string;
  revision: bigint;
  waiting: bigint;
  active: bigint;
  needsReview: bigint;
}

/** 64-bit numbers, which the API writes as strings. */
const integers = new Set(["revision", "epoch", "session_epoch", "concurrency_token", "task_revision", "index", "current_revision", "max_waiting", "waiting", "active", "needs_review",
  "open_tasks", "fired", "ordered", "skipped", "missed", "refused", "max_fires", "times"]);
/** Members of which only the text is ours. */
const business = new Set(["payload", "result"]);

/**
 * Reads an answer of the API: names in camel case, 64-bit numbers as bigint,
 * payloads and results as RawJson, a member `error` as PulseError. Throws an
 * AnswerError if the text is no JSON.
 */
export function decode<T>(text: string): T {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new AnswerError(`pulse: unreadable answer: ${String(error)}`);
  }
  return read(text.trim()) as T;
}

function read(text: string): unknown {
  if (text.startsWith("[")) return elements(text).map(read);
  if (!text.startsWith("{")) return JSON.parse(text);
  const out: Record<string, unknown> = {};
  for (const [name, value] of members(text)) {
    if (business.has(name)) out[name] = new RawJson(value);
    else if (name === "error") out[name] = refusalIn(JSON.parse(value) as Record<string, unknown>);
    else if (integers.has(name) && value.startsWith('"')) out[camel(name)] = BigInt(JSON.parse(value) as string);
    else out[camel(name)] = read(value);
  }
  return out;
}

function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

export function snakeToCamel(value: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [camel(name), member]));
}

/** The other way, for what is sent. Absent members stay absent. */
export function snake(value: object): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    if (member === undefined) continue;
    const wire = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    if (typeof member === "bigint") out[wire] = member.toString();
    else if (member instanceof Date) out[wire] = member.toISOString();
    else if (typeof member === "object" && member !== null && Object.getPrototypeOf(member) === Object.prototype && !business.has(wire)) out[wire] = snake(member);
    else out[wire] = member;
  }
  return out;
}
