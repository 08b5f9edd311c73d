import { PulseError } from "./error.js";
import { millisOf, type Ack, type Assignment, type AttemptRef, type Finish, type Lease, type Receipt } from "./frames.js";
import { LeaseBelief, marginMs } from "./lease.js";
import type { Answer, Asked, Operations } from "./operations.js";
import { cancelRequested, codes, conclude, errorJson, leaseLost, workerStopped, type Ending } from "./outcome.js";
import { Task } from "./task.js";
import { Latch, now } from "./wait.js";
import type { Logger } from "./api.js";

/**
 * Does the work of a task. What its result and its errors mean is in the README.
 * It should return soon after the signal is aborted; `signal.reason` tells why it
 * was: leaseLost, cancelRequested or workerStopped.
 */
export type Handler = (task: Task, signal: AbortSignal) => unknown;

/** How long a handler may go on after its lease was lost before the worker offers the cluster one place less. */
const lingerAfterMs = 1_000;

/** What an attempt needs of its worker. */
export interface Crew {
  readonly operations: Operations;
  readonly log: Logger;
  handlerOf(task: Task): Handler | undefined;
  /** Waits for a place to run in, for so long at most; false if there is none or the worker drains. */
  takePlace(ms: number, withdrawn: Latch): Promise<boolean>;
  leavePlace(): void;
  /** Running handlers have to stop. */
  readonly stop: Latch;
  /** Nobody waits any more, not even for outcomes. */
  readonly end: Latch;
  /** Counts places that are taken without the cluster knowing. */
  linger(places: number): void;
  count(what: "started" | "leasesLost" | "evidence" | Finish["outcome"]): void;
}

/**
 * One offer of a task and what became of it: live goes from top to bottom, wait
 * for a place, start, run, settle. Connections may come and go meanwhile.
 */
export class Attempt {
  readonly task: Task;
  private readonly ref: AttemptRef;
  private readonly offeredMs: number;
  private readonly cancel = new Latch();
  private readonly about: object;

  constructor(
    private readonly crew: Crew,
    offer: Assignment,
  ) {
    this.task = new Task(offer);
    this.ref = offer.ref;
    this.offeredMs = offer.leaseUntilMs - offer.serverTimeMs;
    this.about = { task: this.task.id, attempt: this.task.attemptId, handler: this.task.handler };
  }

  askCancel(): void {
    this.cancel.fire();
  }

  /** Brings the attempt to its end, or returns early when the worker ends. */
  async live(): Promise<void> {
    const { crew } = this;
    const handler = crew.handlerOf(this.task);
    if (handler === undefined) {
      // The cluster matches capabilities, so this is a fault somewhere. A
      // refusal before start leaves no doubt: another worker may have it.
      crew.log.error("given a task this worker cannot run", this.about);
      return this.settle(failure(codes.noHandler, "the worker has no such handler"));
    }
    if (!(await crew.takePlace(this.offeredMs, this.cancel))) {
      crew.log.info("offer not taken", this.about);
      return;
    }
    let outcome: Finish | undefined;
    try {
      const began = await this.start();
      if (began !== undefined) outcome = "outcome" in began ? began : await this.run(handler, began);
    } finally {
      crew.leavePlace();
    }
    if (outcome !== undefined) await this.settle(outcome);
  }

  /**
   * Tells the cluster that the handler is about to run; only a granted lease lets
   * it. Otherwise it says how the attempt has to be settled without running, or
   * nothing if it need not be.
   */
  private async start(): Promise<{ belief: LeaseBelief; session: number } | Finish | undefined> {
    const began = now();
    const got = await this.crew.operations.ask({ type: "task.start", body: this.ref }).answer;
    if (got === undefined) return undefined;
    if (got.ack === undefined) {
      this.crew.log.info("start refused", { ...this.about, code: got.refused?.code });
      return undefined;
    }
    const granted = leaseIn(got.ack);
    const longest = Math.min(this.task.retry.attemptTimeoutMs, millisOf(this.task.deadlineAt) - granted.serverTimeMs);
    const belief = new LeaseBelief(began + longest - marginMs(longest));
    belief.learn(granted, got.sentAt);
    this.task.limit = belief.limit;
    if (granted.cancelRequested) this.askCancel();
    if (!granted.active || granted.state !== "RUNNING" || now() >= belief.until) {
      // The answer took longer than the lease. The cluster believes that the
      // handler has run; say that it has not, as evidence if it is too late.
      return failure(codes.notRun, "the lease was over before the handler began");
    }
    if (this.cancel.fired) return { outcome: "CANCELLED", retryable: false, error_code: codes.cancelled, result: errorJson(cancelRequested) };
    this.crew.count("started");
    return { belief, session: got.session };
  }

  /**
   * Keeps the lease while the handler runs, aborts its signal when there is a
   * reason to, and returns what the handler's end means. Nothing means that the
   * worker ended first.
   */
  private async run(handler: Handler, granted: { belief: LeaseBelief; session: number }): Promise<Finish | undefined> {
    const hold = new Hold(this.crew, this.ref, this.about, granted.belief, () => this.askCancel());
    const forget = [
      this.cancel.on(() => {
        if (hold.abort(cancelRequested)) this.crew.log.info("cancellation requested", this.about);
      }),
      this.crew.stop.on(() => hold.abort(workerStopped)),
    ];
    hold.keep(granted.session);
    const ending = await new Promise<Ending | undefined>((resolve) => {
      forget.push(this.crew.end.on(() => resolve(undefined)));
      void handle(handler, this.task, hold.signal).then(resolve);
    });
    forget.forEach((stop) => stop());
    hold.close();
    if (ending !== undefined) return conclude(this.task.recoverySafety, hold.signal.reason, ending);
    this.crew.log.error("the handler has not returned; its outcome is not reported", this.about);
    return undefined;
  }

  /**
   * Reports how the attempt ended, until the cluster has taken it. After a lost
   * lease it does so too: the report then changes nothing, but a reviewer may
   * need it.
   */
  private async settle(outcome: Finish): Promise<void> {
    for (let said: Finish | undefined = outcome; said !== undefined; ) {
      const got: Answer | undefined = await this.crew.operations.ask({ type: "task.finish", body: { ref: this.ref, ...said } }).answer;
      if (got === undefined) {
        this.crew.log.error("the worker stopped before the cluster took the outcome", { ...this.about, outcome: said.outcome });
        return;
      }
      if (got.refused === undefined) return this.settled(said, got.ack?.receipt);
      const next = instead(said, got.refused);
      if (next === undefined) this.crew.log.warn("outcome refused", { ...this.about, outcome: said.outcome, code: got.refused.code, error: got.refused.message });
      said = next;
    }
  }

  private settled(said: Finish, receipt: Receipt | undefined): void {
    if (receipt?.disposition === "EVIDENCE_ONLY") {
      this.crew.count("evidence");
      this.crew.log.warn("the outcome came too late and is kept as evidence", { ...this.about, outcome: said.outcome, taskState: receipt.task_state });
      return;
    }
    this.crew.count(said.outcome);
    this.crew.log.debug("attempt finished", { ...this.about, outcome: said.outcome, code: said.error_code, taskState: receipt?.task_state });
  }
}

/** Runs a handler to its end, whatever kind of end it is. Never throws. */
async function handle(handler: Handler, task: Task, signal: AbortSignal): Promise<Ending> {
  try {
    return { value: await handler(task, signal) };
  } catch (thrown) {
    return { thrown };
  }
}

function failure(code: string, why: string): Finish {
  return { outcome: "FAILED", retryable: true, error_code: code, result: errorJson(new Error(why)) };
}

/** Another way to say what the cluster refused to hear. */
function instead(said: Finish, refused: PulseError): Finish | undefined {
  switch (refused.code) {
    case "cancel_not_requested":
      return { ...said, outcome: "FAILED", retryable: false };
    case "invalid_frame":
    case "invalid_argument":
    case "too_large":
      if (said.error_code === codes.badResult) return undefined;
      // With SUCCEEDED the work is done: calling it failed would be a lie.
      return { ...said, outcome: said.outcome === "SUCCEEDED" ? "UNKNOWN" : said.outcome, error_code: codes.badResult, result: errorJson(refused) };
    default:
      return undefined;
  }
}

function leaseIn(ack: Ack): Lease {
  if (ack.lease === undefined) throw new Error("pulse: an answer without a lease"); // Operations does not deliver one
  return ack.lease;
}

/** What is kept in hand while a handler runs: its signal, the lease, and the questions about it that are under way. */
class Hold {
  private readonly controller = new AbortController();
  private readonly questions = new Map<"task.renew" | "worker.resume", Asked>();
  private expiry: NodeJS.Timeout | undefined;
  private renewal: NodeJS.Timeout | undefined;
  private lingering: NodeJS.Timeout | undefined;
  private lingers = false; // counted as a lost place
  private over = false; // lost, or the handler has returned
  private forget: () => void = () => {};

  constructor(
    private readonly crew: Crew,
    private readonly ref: AttemptRef,
    private readonly about: object,
    private readonly belief: LeaseBelief,
    private readonly askCancel: () => void,
  ) {}

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Aborts the handler's signal; the first reason counts. */
  abort(why: Error): boolean {
    if (this.over || this.signal.aborted) return false;
    this.controller.abort(why);
    return true;
  }

  /** Begins to keep a lease that was granted on this session. */
  keep(session: number): void {
    this.forget = this.crew.operations.onSession(() => this.ask("worker.resume"));
    if (this.crew.operations.session !== session) this.ask("worker.resume");
    this.arm();
  }

  close(): void {
    this.stopAsking();
    clearTimeout(this.lingering);
    if (this.lingers) this.crew.linger(-1);
  }

  private arm(): void {
    clearTimeout(this.expiry);
    clearTimeout(this.renewal);
    this.expiry = setTimeout(() => this.lose("no renewal in time"), this.belief.until - now());
    this.renewal = setTimeout(() => this.ask("task.renew"), this.belief.renew - now());
  }

  /** Puts a question about the lease unless it is under way already. */
  private ask(type: "task.renew" | "worker.resume"): void {
    if (this.over || this.questions.has(type)) return;
    const asked = this.crew.operations.ask({ type, body: this.ref });
    this.questions.set(type, asked);
    void asked.answer.then((got) => {
      this.questions.delete(type);
      if (got !== undefined) this.learn(got);
    });
  }

  private learn(got: Answer): void {
    if (this.over) return;
    if (got.ack === undefined) return this.lose("refused by the cluster", got.refused?.code);
    const granted = leaseIn(got.ack);
    if (!granted.active) return this.lose("the attempt is over", granted.state);
    this.belief.learn(granted, got.sentAt);
    this.arm();
    if (granted.cancelRequested) this.askCancel();
  }

  /** Gives the lease up for good: a handler that was told to stop cannot be told to go on. */
  private lose(why: string, detail?: string): void {
    if (this.over) return;
    this.crew.count("leasesLost");
    this.crew.log.warn(`lease lost: ${why}`, detail === undefined ? this.about : { ...this.about, detail });
    this.abort(leaseLost);
    this.stopAsking();
    // The cluster counts the attempt as over and would fill its place, which the
    // handler still has. So it is told that there is one place less.
    this.lingering = setTimeout(() => {
      this.lingers = true;
      this.crew.log.warn("the handler goes on although its lease is lost; it keeps its place", this.about);
      this.crew.linger(+1);
    }, lingerAfterMs);
  }

  private stopAsking(): void {
    this.over = true;
    this.forget();
    clearTimeout(this.expiry);
    clearTimeout(this.renewal);
    for (const asked of [...this.questions.values()]) asked.giveUp();
  }
}
