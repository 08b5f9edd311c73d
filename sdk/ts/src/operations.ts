import { newId } from "./api.js";
import { PulseError } from "./error.js";
import type { Ack, Ask } from "./frames.js";
import { backoff, now } from "./wait.js";

const againFirstMs = 100;
const againMostMs = 5_000;

/** The connection that operations are sent on. */
export interface Carrier {
  send(messageId: string, ask: Ask): void;
}

export interface Answer {
  /** One of both. */
  ack?: Ack;
  refused?: PulseError;
  /** When the frame it answers left at the earliest: what the answer says about the cluster's clock was true then or later. */
  sentAt: number;
  /** The number of the session it came on. */
  session: number;
}

interface Operation {
  readonly id: string;
  readonly ask: Ask;
  readonly done: (answer: Answer | undefined) => void;
  tries: number;
  /** On which it is under way; undefined if it has to be sent (again). */
  carrier: Carrier | undefined;
  sentAt: number;
  pausing: NodeJS.Timeout | undefined;
}

/** An operation that was begun. */
export interface Asked {
  /** Undefined if it was given up or the worker has ended. */
  answer: Promise<Answer | undefined>;
  giveUp(): void;
}

/**
 * The frames of a worker that want an answer. An operation keeps its message id
 * until it has one, over any number of connections: the cluster does it once,
 * and answers a repeat with the receipt of the first time. So whoever asks need
 * not know that the connection broke in between.
 */
export class Operations {
  /** How many sessions have begun. */
  session = 0;
  private carrier: Carrier | undefined; // of the current session
  private readonly waiting = new Map<string, Operation>(); // in the order they were begun
  private readonly listeners = new Set<() => void>();
  private heardAt = now();
  private over = false;

  /** Sends a frame. A refusal that may pass (no leader, an unknown result) is no answer: the same frame is sent again after a while. */
  ask(ask: Ask): Asked {
    let operation!: Operation;
    const answer = new Promise<Answer | undefined>((done) => {
      operation = { id: newId(), ask, done, tries: 0, carrier: undefined, sentAt: 0, pausing: undefined };
    });
    if (this.over) {
      operation.done(undefined);
    } else {
      this.waiting.set(operation.id, operation);
      this.send(operation);
    }
    return { answer, giveUp: () => this.end(operation, undefined) };
  }

  /** Calls back when a later session begins, until the function it returns is called. */
  onSession(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Begins a session: what has no answer yet is sent on it, oldest first. */
  attach(carrier: Carrier): void {
    this.carrier = carrier;
    this.heardAt = now();
    this.session++;
    for (const operation of this.waiting.values()) this.send(operation);
    for (const listener of [...this.listeners]) listener();
  }

  /** Ends the session. Answers that still come from its carrier are dropped. */
  detach(): void {
    this.carrier = undefined;
    for (const operation of this.waiting.values()) operation.carrier = undefined;
  }

  /** Ends everything: nobody is answered any more. */
  close(): void {
    this.over = true;
    for (const operation of [...this.waiting.values()]) this.end(operation, undefined);
  }

  /** Gives an answer to the operation that waits for it on this carrier. Says no if it is not of the kind that was asked for. */
  deliver(carrier: Carrier, id: string, got: Ack | PulseError): boolean {
    const operation = this.waiting.get(id);
    if (operation === undefined || operation.carrier !== carrier) return true; // given up, or a second answer
    const refused = got instanceof PulseError ? got : undefined;
    if (!(got instanceof PulseError) && !answers(operation.ask, got)) return false;
    operation.carrier = undefined;
    this.heardAt = now();
    if (refused?.retryable === true) {
      operation.pausing = setTimeout(() => {
        operation.pausing = undefined;
        this.send(operation);
      }, backoff(operation.tries++, againFirstMs, againMostMs));
      return true;
    }
    const answer = { sentAt: operation.sentAt, session: this.session };
    this.end(operation, got instanceof PulseError ? { ...answer, refused: got } : { ...answer, ack: got });
    return true;
  }

  /** For how long the oldest operation under way has had no answer, and for how long none has come at all. */
  silence(): { oldest: number; quiet: number } {
    const at = now();
    let oldest = 0;
    for (const operation of this.waiting.values()) if (operation.carrier !== undefined) oldest = Math.max(oldest, at - operation.sentAt);
    return { oldest, quiet: at - this.heardAt };
  }

  /** Hands an operation to the carrier, unless it is under way or there is none. */
  private send(operation: Operation): void {
    if (this.carrier === undefined || operation.carrier !== undefined || operation.pausing !== undefined) return;
    operation.carrier = this.carrier;
    operation.sentAt = now();
    this.carrier.send(operation.id, operation.ask);
  }

  private end(operation: Operation, answer: Answer | undefined): void {
    clearTimeout(operation.pausing);
    this.waiting.delete(operation.id);
    operation.done(answer);
  }
}

function answers(ask: Ask, ack: Ack): boolean {
  switch (ask.type) {
    case "worker.capacity":
      return ack.welcome !== undefined;
    case "worker.resume":
      return ack.lease !== undefined && ack.receipt === undefined;
    default:
      return ack.receipt !== undefined && ack.lease !== undefined;
  }
}
