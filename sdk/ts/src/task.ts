import type { Assignment } from "./frames.js";
import type { RawJson } from "./json.js";
import { snakeToCamel, type RecoverySafety, type RetryPolicy, type Time } from "./types.js";
import { now } from "./wait.js";

/** What a handler is given: a task as it was assigned, and the attempt that runs it. */
export class Task {
  readonly id: string;
  readonly handler: string;
  readonly handlerVersion: string;
  readonly payloadVersion: string;
  readonly businessKey: string | undefined;
  readonly concurrencyKey: string | undefined;
  readonly priority: number;
  readonly recoverySafety: RecoverySafety;
  readonly retry: RetryPolicy;
  /** The task this one was made from by a manual retry. */
  readonly retryOf: string | undefined;
  /** An earlier run may have had an effect that nobody has confirmed. */
  readonly effectUncertain: boolean;
  readonly createdAt: Time;
  readonly availableAt: Time;
  /** When the task as a whole is given up, by the cluster's clock. */
  readonly deadlineAt: Time;
  readonly attemptId: string;
  /** 1 for the first run. */
  readonly attemptCount: number;
  /** Of this attempt; larger than that of every earlier one. */
  readonly epoch: bigint;
  /** Of the concurrency key; larger than that of every earlier holder. */
  readonly concurrencyToken: bigint | undefined;
  /** As it was submitted, byte for byte: `payload.value()`, `payload.exact()`, `payload.text`. */
  readonly payload: RawJson;
  /** @internal By the clock of now(). */
  limit = Infinity;

  /** @internal */
  constructor(offer: Assignment) {
    const of = <T>(name: string) => offer.task[name] as T;
    this.id = offer.ref.task_id;
    this.handler = of("handler");
    this.handlerVersion = of("handler_version");
    this.payloadVersion = of("payload_version");
    this.businessKey = of("business_key");
    this.concurrencyKey = of("concurrency_key");
    this.priority = of<number | undefined>("priority") ?? 0;
    this.recoverySafety = of("recovery_safety");
    this.retry = snakeToCamel(of<object>("retry")) as unknown as RetryPolicy;
    this.retryOf = of("retry_of");
    this.effectUncertain = of<boolean | undefined>("effect_uncertain") ?? false;
    this.createdAt = of("created_at");
    this.availableAt = of("available_at");
    this.deadlineAt = of("deadline_at");
    this.attemptId = offer.ref.attempt_id;
    this.attemptCount = of("attempt_count");
    this.epoch = BigInt(offer.ref.epoch);
    this.concurrencyToken = offer.concurrencyToken === undefined ? undefined : BigInt(offer.concurrencyToken);
    this.payload = offer.payload;
  }

  /**
   * The number to hand to whatever the handler writes to, so that it can refuse
   * a smaller one: the token of the concurrency key, or without a key the epoch
   * of the attempt. It grows with every new holder or attempt, over elections,
   * restarts and restores. A signal that is aborted in time is a courtesy; the
   * token is what keeps a paused process from writing late.
   */
  get fencingToken(): bigint {
    return this.concurrencyToken ?? this.epoch;
  }

  /**
   * For how many milliseconds the handler may run at most: until a moment before
   * the attempt's timeout or the task's deadline, whichever comes first. No
   * renewal goes past it.
   */
  get remainingMs(): number {
    return Math.max(this.limit - now(), 0);
  }
}
