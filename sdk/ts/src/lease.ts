import type { Lease } from "./frames.js";

const marginPart = 10; // a tenth of what is left, but
const marginMostMs = 2_000;
const renewAfterLeastMs = 200; // also the brake when no renewal extends the lease any more

/** For clocks that run at different speeds, and for the handler to notice that its time is over and say what it knows while that still counts. */
export function marginMs(leftMs: number): number {
  return Math.min(leftMs / marginPart, marginMostMs);
}

/**
 * What a worker may believe about its hold on an attempt, by its own monotonic
 * clock: it need not agree with the cluster about the time of day.
 */
export class LeaseBelief {
  /** No right to work from here on. */
  until = -Infinity;
  /** When to ask for more. */
  renew = Infinity;

  /** `until` never goes past limit. */
  constructor(readonly limit: number) {}

  /**
   * Takes in an answer to a frame that was sent at sentAt. When the cluster
   * looked at its clock the frame had been sent already, so counting what was
   * left then from sentAt errs on the safe side only. An older answer never
   * shortens what a newer one granted, because leases are never shortened.
   */
  learn(granted: Lease, sentAt: number): void {
    const left = granted.leaseUntilMs - granted.serverTimeMs;
    this.until = Math.max(this.until, Math.min(sentAt + left - marginMs(left), this.limit));
    // Between a third and half of what was left: early enough for a second
    // chance, and not all workers at the same time.
    this.renew = sentAt + Math.max(left / 3 + (Math.random() * left) / 6, renewAfterLeastMs);
  }
}
