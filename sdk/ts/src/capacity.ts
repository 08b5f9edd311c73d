import type { Logger } from "./api.js";
import type { Asked, Operations } from "./operations.js";
import { Latch } from "./wait.js";

/**
 * What a worker wants the cluster to know about its room, and what it has been
 * told. The second is brought in line with the first, one report at a time; and
 * when a connection has been idle for long the same is said again: pings show
 * that a gateway lives, only an operation shows that it still reaches the
 * cluster. One that gets no answer ends the connection, and the next goes
 * elsewhere.
 */
export class CapacityReport {
  private lost = 0; // places of handlers that outlived their leases
  private drains = false;
  private readonly told = new Latch(); // the cluster has heard of the drain
  private last: { capacity: number; drain: boolean }; // acknowledged under this identity
  private sequence = 0n;
  private underWay: Asked | undefined;
  private generation = 0; // of the identity
  private heartbeat: NodeJS.Timeout | undefined;

  constructor(
    private readonly operations: Operations,
    private readonly capacity: number,
    private readonly heartbeatMs: number,
    private readonly log: Logger,
    private readonly draining: (draining: boolean) => void,
  ) {
    this.last = { capacity, drain: false };
  }

  begin(): void {
    if (this.heartbeatMs <= 0) return;
    this.heartbeat = setInterval(() => {
      if (this.operations.silence().quiet >= this.heartbeatMs) this.send(true);
    }, this.heartbeatMs);
  }

  close(): void {
    clearInterval(this.heartbeat);
    this.underWay?.giveUp();
  }

  /** Counts places that are taken without the cluster knowing. */
  lose(places: number): void {
    this.lost += places;
    this.send(false);
  }

  /** Asks for no more work. The latch fires when the cluster knows. */
  drain(): Latch {
    this.drains = true;
    this.send(false);
    return this.told;
  }

  /** A new identity, of which the cluster knows the hello alone. */
  forget(): void {
    this.generation++;
    this.last = { capacity: this.capacity, drain: false };
    this.send(false);
  }

  private send(due: boolean): void {
    if (this.underWay !== undefined) return; // its answer looks again
    const wanted = { capacity: Math.max(this.capacity - this.lost, 0), drain: this.drains };
    if (!due && wanted.capacity === this.last.capacity && wanted.drain === this.last.drain) return;
    const generation = this.generation;
    this.underWay = this.operations.ask({ type: "worker.capacity", body: { sequence: String(++this.sequence), ...wanted } });
    void this.underWay.answer.then((got) => {
      this.underWay = undefined;
      if (got === undefined) return;
      if (got.refused !== undefined) {
        this.log.warn("capacity report refused", { code: got.refused.code, error: got.refused.message });
        return; // saying the same again at once would be a loop without a brake
      }
      if (generation === this.generation) this.last = wanted;
      if (wanted.drain) this.told.fire();
      this.draining(got.ack?.welcome?.draining === true);
      this.send(false);
    });
  }
}
