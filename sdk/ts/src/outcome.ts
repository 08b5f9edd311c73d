import type { Finish, Outcome } from "./frames.js";
import { businessJson, RawJson, stringify } from "./json.js";
import type { RecoverySafety } from "./types.js";

/** Why a handler's signal was aborted, as its reason: one of the three below. */
export class HandlerStop extends Error {
  override readonly name = "AbortError";
}

/** The worker can no longer be sure that the attempt is its own. Somebody else may run the task from now on: stop, and write nothing that a fencing token does not protect. */
export const leaseLost = new HandlerStop("pulse: the lease is lost");
/** Somebody asked for the cancellation. Stop if that can be done cleanly, and throw cancelled() if nothing remains of the work. */
export const cancelRequested = new HandlerStop("pulse: cancellation was requested");
/** The worker is stopping and its drain timeout is over. */
export const workerStopped = new HandlerStop("pulse: the worker is stopping");

/** Error codes that the worker itself reports, beside those given to failed. */
export const codes = {
  /** A handler threw an error without a code. */
  handlerError: "handler_error",
  /** The work was done, but its result is no JSON the cluster keeps. */
  badResult: "bad_result",
  /** The worker was given a task it cannot run. */
  noHandler: "no_such_handler",
  /** The attempt was over before the handler could begin. */
  notRun: "not_run",
  cancelled: "cancelled",
  /** The handler stopped because its lease was lost. */
  leaseLost: "lease_lost",
  /** The handler stopped because its worker was stopping. */
  workerStopped: "worker_stopped",
} as const;

/** An error that says how an attempt ended. Made by retryable, failed, unknown and cancelled; throw it. */
export class Verdict extends Error {
  override readonly name = "Verdict";
  constructor(
    readonly outcome: Exclude<Outcome, "SUCCEEDED">,
    readonly retryable: boolean,
    readonly code: string | undefined,
    readonly given: unknown,
    readonly result?: unknown,
  ) {
    super(textOf(given ?? code), given instanceof Error ? { cause: given } : undefined);
  }
}

/**
 * The work has definitely not been done and may be tried again. Whether it is,
 * is up to the task: its retry policy, and RECONCILE_ONLY, which is never run
 * again by itself. `retryable(failed(code, error))` carries a code.
 */
export function retryable(error: unknown, result?: unknown): Verdict {
  return new Verdict("FAILED", true, undefined, error, result);
}

/** The work has definitely not been done and trying again would not help. The code is for programs: a letter or digit, then up to 63 of letters, digits and _ . : - */
export function failed(code: string, error: unknown, result?: unknown): Verdict {
  return new Verdict("FAILED", false, code, error, result);
}

/** The work may have been done. An idempotent task is then tried again, any other waits for a review. */
export function unknown(error: unknown, result?: unknown): Verdict {
  return new Verdict("UNKNOWN", false, undefined, error, result);
}

/** The handler stopped because it was asked to, leaving no effect behind. Without such a request the attempt counts as failed. */
export function cancelled(): Verdict {
  return new Verdict("CANCELLED", false, codes.cancelled, undefined);
}

/** What a handler gave back, or what it threw. */
export type Ending = { value: unknown } | { thrown: unknown };

const errorCharsMax = 4 << 10;
const codePattern = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$/;

/** Turns how a handler ended into the finish to send. The table is in the README. */
export function conclude(safety: RecoverySafety, stop: unknown, ending: Ending): Finish {
  if ("value" in ending) {
    try {
      return { outcome: "SUCCEEDED", retryable: false, error_code: "", result: businessJson(ending.value) };
    } catch (error) {
      // The work is done: calling it failed would be a lie.
      return { outcome: "UNKNOWN", retryable: false, error_code: codes.badResult, result: errorJson(error) };
    }
  }
  const { outcome, retryable } = judge(safety, stop, ending.thrown);
  return { outcome, retryable, error_code: codeFor(outcome, stop, ending.thrown), result: resultOf(ending.thrown) };
}

/**
 * What an error means. A handler that says so itself is believed. Another error
 * of an idempotent task is a failure worth another try. Any other task must not
 * be presumed untouched: unless its handler says so, its outcome is unknown.
 */
function judge(safety: RecoverySafety, stop: unknown, thrown: unknown): { outcome: Outcome; retryable: boolean } {
  const verdict = chain(thrown).find((error) => error instanceof Verdict);
  if (verdict instanceof Verdict) {
    // Nobody asked for the cancellation; the handler stopped for our reasons and
    // left no effect, so another worker may begin again.
    if (verdict.outcome === "CANCELLED" && (stop === leaseLost || stop === workerStopped)) return { outcome: "FAILED", retryable: true };
    return verdict;
  }
  if (safety !== "IDEMPOTENT") return { outcome: "UNKNOWN", retryable: false };
  if (stop === cancelRequested && saysAborted(thrown)) return { outcome: "CANCELLED", retryable: false };
  return { outcome: "FAILED", retryable: true };
}

/** The outermost code in the error's chain, or else one that tells why the signal was aborted, if that is what the error says. */
function codeFor(outcome: Outcome, stop: unknown, thrown: unknown): string {
  if (outcome === "CANCELLED") return codes.cancelled;
  let stopped = saysAborted(thrown);
  for (const error of chain(thrown)) {
    if (!(error instanceof Verdict)) continue;
    if (error.outcome === "CANCELLED") stopped = true;
    else if (error.code !== undefined && codePattern.test(error.code)) return error.code;
  }
  if (stopped && stop === leaseLost) return codes.leaseLost;
  if (stopped && stop === workerStopped) return codes.workerStopped;
  return codes.handlerError;
}

/** An error and its causes, outermost first. */
function chain(thrown: unknown): unknown[] {
  const found: unknown[] = [];
  for (let error = thrown; error !== undefined && error !== null && found.length < 32; ) {
    found.push(error);
    error = error instanceof Verdict ? error.given : (error as { cause?: unknown }).cause;
  }
  return found;
}

/** An AbortError, as everything that takes a signal throws it, ours among them. */
function saysAborted(thrown: unknown): boolean {
  return chain(thrown).some((error) => error instanceof HandlerStop || (error as { name?: unknown }).name === "AbortError");
}

function resultOf(thrown: unknown): RawJson {
  if (thrown instanceof Verdict && thrown.result !== undefined) {
    try {
      return businessJson(thrown.result);
    } catch {
      // the error's text has to do
    }
  }
  return errorJson(thrown);
}

/** The result of an attempt that has only an error to show. */
export function errorJson(error: unknown): RawJson {
  let text = textOf(error).slice(0, errorCharsMax);
  text = text.replace(/\p{Surrogate}/gu, "\uFFFD");
  return new RawJson(stringify({ error: text }));
}

function textOf(error: unknown): string {
  if (error instanceof Error) return error.message === "" ? error.name : error.message;
  try {
    return String(error);
  } catch {
    return "an error without a text";
  }
}
