import { randomBytes } from "node:crypto";
import { Api, escape, newId, type ConnectionOptions, type Logger } from "./api.js";
import { Attempt, type Crew, type Handler } from "./attempt.js";
import { CapacityReport } from "./capacity.js";
import { PulseError } from "./error.js";
import type { Assignment, Capability, Hello } from "./frames.js";
import { Link, type Sink } from "./link.js";
import { Operations } from "./operations.js";
import type { Task } from "./task.js";
import { decode } from "./types.js";
import { backoff, Latch, now, pause } from "./wait.js";

const capacityDefault = 16;
const capacityMost = 256;
const handlersMost = 32;

const drainTimeoutDefaultMs = 30_000;
const stopGraceMs = 5_000; // for handlers whose signal has been aborted at last
const drainAnswerMs = 2_000; // for the cluster to hear of the drain

const heartbeatDefaultMs = 60_000;

const reconnectFirstMs = 1_000;
const reconnectMostMs = 60_000;
const stableAfterMs = 60_000; // a session that lasted this long starts the back-off anew
const contestedMost = 3; // supersessions in a row before the worker takes a new identity

const liveMost = 8; // bounds the attempts known here, in multiples of the capacity
const pastMost = 4096; // bounds the ended attempts remembered, to know a late repeat of their offer

export interface WorkerOptions extends ConnectionOptions {
  /** Default "default". */
  namespace?: string | undefined;
  /** Default "default". */
  queue?: string | undefined;
  /** Handlers at the same time, 1 to 256. Default 16. */
  capacity?: number | undefined;
  /** How long running handlers may go on when run's signal has been aborted, before theirs is too. Default 30 s. */
  drainTimeoutMs?: number | undefined;
  /** How long a connection may be idle before the worker tries, with an operation that goes through the log, whether the way to the cluster is still open. Default 1 minute; 0 never. */
  heartbeatMs?: number | undefined;
}

/** How a worker stands with the cluster. */
export interface Health {
  /** Registered, and as far as known alive. */
  connected: boolean;
  /** Of the current or last connection. */
  addr: string | undefined;
  instanceId: string;
  sessionId: string | undefined;
  /** Gets no new tasks: run's signal was aborted, or an operator asked for it. */
  draining: boolean;
  /** Why it is not, or was last not, connected. */
  lastError: unknown;
}

/** What a worker has done since it was made. */
export interface Stats {
  /** Offers received, less repeats. */
  assigned: number;
  /** Offers received again and dropped. */
  repeated: number;
  started: number;
  /** Outcomes the cluster has taken, by kind. */
  succeeded: number;
  failed: number;
  unknown: number;
  cancelled: number;
  /** Outcomes that came too late and changed nothing. */
  evidence: number;
  leasesLost: number;
  sessions: number;
  /** Handlers running now. */
  running: number;
}

/**
 * Runs the handlers of one queue: make it, give it its handlers, run it. It is
 * one instance to the cluster, with an identity made anew for each Worker: a
 * process that is restarted is another worker.
 */
export class Worker {
  private readonly api: Api;
  private readonly namespace: string;
  private readonly queue: string;
  private readonly capacity: number;
  private readonly drainTimeoutMs: number;
  private readonly heartbeatMs: number;
  private readonly handlers = new Map<string, { capability: Capability; handler: Handler }>();

  private readonly operations = new Operations();
  private readonly report: CapacityReport;
  private readonly draining = new Latch(); // no new task is to be begun
  private readonly stop = new Latch(); // running handlers have to stop
  private readonly end = new Latch(); // nobody waits any more
  private readonly idle = new Latch(); // draining, and no attempt is left

  private began = false;
  private identity = newIdentity();
  private queueId: string | undefined; // until looked up
  private readonly live = new Map<string, Attempt>();
  private readonly past = new Set<string>(); // in the order they ended
  private readonly line: (() => void)[] = []; // attempts that wait for a place
  private readonly log: Logger;
  private readonly counted: Stats = { assigned: 0, repeated: 0, started: 0, succeeded: 0, failed: 0, unknown: 0, cancelled: 0, evidence: 0, leasesLost: 0, sessions: 0, running: 0 };
  private state: Omit<Health, "instanceId"> = { connected: false, addr: undefined, sessionId: undefined, draining: false, lastError: undefined };

  /** Connects to nothing before run. Throws on options that cannot be. */
  constructor(options: WorkerOptions = {}) {
    this.api = new Api(options);
    this.log = this.api.log;
    this.namespace = options.namespace ?? "default";
    this.queue = options.queue ?? "default";
    this.capacity = options.capacity ?? capacityDefault;
    this.drainTimeoutMs = options.drainTimeoutMs ?? drainTimeoutDefaultMs;
    this.heartbeatMs = options.heartbeatMs ?? heartbeatDefaultMs;
    if (!Number.isInteger(this.capacity) || this.capacity < 1 || this.capacity > capacityMost) {
      throw new RangeError(`pulse: capacity is ${this.capacity}, must be 1 to ${capacityMost}`);
    }
    this.report = new CapacityReport(this.operations, this.capacity, this.heartbeatMs, this.log, (draining) => this.drainedByOperator(draining));
  }

  /**
   * Registers a handler for tasks submitted with exactly this name, handler
   * version and payload version; at most 32, all of them before run. Throws on a
   * name that no task can have and on a repeat, which are mistakes in the program.
   */
  handle(name: string, version: string, payloadVersion: string, handler: Handler): this {
    const capability = { handler: name, handler_version: version, payload_version: payloadVersion };
    const what = `handle(${[name, version, payloadVersion].map((text) => JSON.stringify(text)).join(", ")})`;
    if (this.began) throw new Error(`pulse: ${what} after run`);
    if (typeof handler !== "function") throw new TypeError(`pulse: ${what} without a handler`);
    if (!validName(name, 128) || !validName(version, 64) || !validName(payloadVersion, 32)) {
      throw new TypeError(`pulse: ${what}: a letter or digit, then letters, digits and _ . : -`);
    }
    const key = keyOf(name, version, payloadVersion);
    if (this.handlers.has(key)) throw new Error(`pulse: ${what} twice`);
    if (this.handlers.size === handlersMost) throw new Error(`pulse: a worker has at most ${handlersMost} handlers`);
    this.handlers.set(key, { capability, handler });
    return this;
  }

  /**
   * Connects and works until the signal is aborted. Whatever fails on the way
   * there, it tries again for ever, at another address each time; health() and
   * the log tell how it goes.
   *
   * When the signal is aborted, the worker drains: it begins nothing new, lets
   * running handlers finish for drainTimeoutMs, and then aborts their signals with
   * workerStopped. It resolves once the outcomes of all of them are with the
   * cluster, and rejects if some handlers would not return or some outcome could
   * not be handed over.
   */
  async run(signal: AbortSignal): Promise<void> {
    if (this.handlers.size === 0) throw new Error("pulse: a worker without handlers has nothing to do; call handle before run");
    if (this.began) throw new Error("pulse: a Worker runs once; make a new one");
    this.began = true;
    const life = new AbortController();
    const connection = this.stayConnected(life.signal);
    this.report.begin();
    const told = await new Promise<Latch>((resolve) => {
      const begin = () => resolve(this.beginDrain());
      if (signal.aborted) begin();
      else signal.addEventListener("abort", begin, { once: true });
    });
    try {
      await this.drain(told);
    } finally {
      this.report.close();
      this.operations.close();
      this.end.fire();
      life.abort();
      await connection;
      this.disconnected(undefined);
    }
  }

  /** Makes sure that no attempt begins any more, and asks the cluster for no more. The latch fires when it has heard. */
  private beginDrain(): Latch {
    this.state.draining = true;
    this.log.info("draining", { attempts: this.live.size });
    this.draining.fire();
    if (this.live.size === 0) this.idle.fire();
    return this.report.drain();
  }

  /** Waits for what is running, with less and less patience. */
  private async drain(told: Latch): Promise<void> {
    if (!(await this.idle.within(this.drainTimeoutMs))) {
      this.stop.fire();
      if (!(await this.idle.within(stopGraceMs))) {
        throw new Error(`pulse: ${this.live.size} attempts were not brought to an end when the worker stopped`);
      }
    }
    // Leaving without a word would be safe too, but a task offered this very
    // moment would wait for its offer to end.
    if (this.state.connected) await told.within(drainAnswerMs);
  }

  /** How the worker stands now. */
  health(): Health {
    return { ...this.state, instanceId: this.identity.id };
  }

  /** What the worker has done so far. */
  stats(): Stats {
    return { ...this.counted };
  }

  /** Holds one session after the other. */
  private async stayConnected(life: AbortSignal): Promise<void> {
    let contested = 0;
    for (let failures = 0; ; failures++) {
      const { place } = this.api.addr();
      let began: number | undefined;
      let why: unknown;
      try {
        const link = await this.register(life);
        began = now();
        this.connected(link);
        why = await link.serve(this.operations, this.sink, life);
      } catch (error) {
        why = error;
      }
      if (life.aborted) return;
      if (began !== undefined && now() - began >= stableAfterMs) contested = failures = 0;
      this.api.moveOn(place);
      contested = this.takeLesson(why, contested);
      const delayMs = backoff(failures, reconnectFirstMs, reconnectMostMs);
      this.disconnected(why);
      this.log.warn("not connected, trying again", { delayMs: Math.round(delayMs), error: String(why) });
      if (!(await pause(delayMs, life))) return;
    }
  }

  private async register(life: AbortSignal): Promise<Link> {
    this.queueId ??= await this.findQueue(life);
    const hello: Hello = {
      instance_id: this.identity.id,
      instance_secret: this.identity.secret,
      queue_id: this.queueId,
      capabilities: [...this.handlers.values()].map(({ capability }) => capability),
      capacity: this.capacity,
      cancellation_notifications: true,
      concurrency_keys: true,
    };
    // An attempt has at most three operations under way, and there are at most
    // twice as many attempts as places.
    return Link.dial(this.api, hello, 8 * this.capacity, life);
  }

  /** Looks the queue's id up; a hello that does not find it makes the worker look again. */
  private async findQueue(life: AbortSignal): Promise<string> {
    const path = `/v1/namespaces/${escape(this.namespace)}/queues/${escape(this.queue)}`;
    const queue = decode<{ id?: unknown }>(await this.api.try({ method: "GET", path }, life));
    if (typeof queue.id !== "string") throw new Error(`pulse: no id in the answer about queue ${this.namespace}/${this.queue}`);
    return queue.id;
  }

  /**
   * Changes what would make the next session fail like the last.
   *
   * Being superseded once can be our own doing: a hello that we gave up on was
   * still under way and got through after the next one. Being superseded again
   * and again means that another process has our identity, which random numbers
   * do not explain but a cloned machine does. Then both would throw each other
   * out for ever, so this one becomes somebody else: its running attempts are
   * lost, which their handlers learn as leaseLost.
   */
  private takeLesson(why: unknown, contested: number): number {
    const code = why instanceof PulseError ? why.code : undefined;
    if (code === "not_found") this.queueId = undefined;
    if (code === "session_superseded" && contested + 1 < contestedMost) return contested + 1;
    if (code === "session_superseded" || code === "identity_conflict") {
      // With identity_conflict the queue was deleted and made again, so it has
      // another id.
      this.identity = newIdentity();
      this.queueId = undefined;
      this.report.forget();
      this.log.error("the identity of this worker is taken or no longer fits; going on under a new one", { instance: this.identity.id });
      return 0;
    }
    return contested;
  }

  private connected(link: Link): void {
    this.counted.sessions++;
    this.state = { connected: true, addr: link.addr, sessionId: link.welcome.session_id, draining: this.state.draining, lastError: undefined };
    this.log.info("connected", { addr: link.addr, instance: this.identity.id, session: link.welcome.session_id });
    this.drainedByOperator(link.welcome.draining);
  }

  private disconnected(why: unknown): void {
    this.state.connected = false;
    this.state.lastError = why;
  }

  private drainedByOperator(draining: boolean): void {
    if (draining && !this.state.draining) this.log.warn("drained by an operator: this worker gets no more tasks; restart it to take up work again");
    this.state.draining = draining || this.draining.fired;
  }

  private readonly sink: Sink = {
    assigned: (offer) => this.assigned(offer),
    cancelled: (attemptId) => this.live.get(attemptId)?.askCancel(),
  };

  /** Begins an attempt, unless it is a repeat of one. What is dropped for another reason stays an offer and lapses: nothing has run. */
  private assigned(offer: Assignment): void {
    const id = offer.ref.attempt_id;
    if (this.live.has(id) || this.past.has(id)) {
      this.counted.repeated++;
      return;
    }
    if (this.draining.fired) return;
    if (this.live.size >= liveMost * this.capacity) {
      // More than the cluster should give: handlers that outlived their leases
      // have their places taken.
      this.log.warn("no room for an offer", { attempt: id });
      return;
    }
    const attempt = new Attempt(this.crew, offer);
    this.live.set(id, attempt);
    this.counted.assigned++;
    void attempt
      .live()
      .catch((error: unknown) => this.log.error("an attempt broke off", { attempt: id, error: String(error) }))
      .then(() => this.ended(id));
  }

  private ended(id: string): void {
    this.live.delete(id);
    this.past.add(id);
    if (this.past.size > pastMost) {
      const [oldest] = this.past;
      this.past.delete(oldest!);
    }
    if (this.live.size === 0 && this.draining.fired) this.idle.fire();
  }

  private readonly crew: Crew = this.makeCrew();

  private makeCrew(): Crew {
    return {
      operations: this.operations,
      log: {
        debug: (message, more) => this.log.debug(message, more),
        info: (message, more) => this.log.info(message, more),
        warn: (message, more) => this.log.warn(message, more),
        error: (message, more) => this.log.error(message, more),
      },
      stop: this.stop,
      end: this.end,
      handlerOf: (task: Task) => this.handlers.get(keyOf(task.handler, task.handlerVersion, task.payloadVersion))?.handler,
      takePlace: (ms, withdrawn) => this.takePlace(ms, withdrawn),
      leavePlace: () => {
        this.counted.running--;
        this.line.shift()?.();
      },
      linger: (places) => this.report.lose(places),
      count: (what) => {
        const name = what === "started" || what === "leasesLost" || what === "evidence" ? what : (what.toLowerCase() as "succeeded" | "failed" | "unknown" | "cancelled");
        this.counted[name]++;
      },
    };
  }

  /**
   * Waits until a handler may run. Gives up when the offer has lapsed, was
   * withdrawn, or the worker drains: nothing has run, and the cluster offers the
   * task to somebody else.
   */
  private async takePlace(ms: number, withdrawn: Latch): Promise<boolean> {
    if (this.draining.fired) return false;
    if (this.counted.running < this.capacity) {
      this.counted.running++;
      return true;
    }
    const wait = new AbortController();
    let taken = false;
    const turn = () => {
      taken = true;
      this.counted.running++; // at once, so that nobody takes it between
      wait.abort();
    };
    this.line.push(turn);
    const forget = [withdrawn, this.draining].map((latch) => latch.on(() => wait.abort()));
    await pause(ms, wait.signal);
    forget.forEach((stop) => stop());
    const at = this.line.indexOf(turn);
    if (at >= 0) this.line.splice(at, 1);
    return taken;
  }
}

function newIdentity(): { id: string; secret: string } {
  return { id: newId(), secret: randomBytes(32).toString("base64url") };
}

function keyOf(name: string, version: string, payloadVersion: string): string {
  return `${name} ${version} ${payloadVersion}`;
}

function validName(name: string, charsMost: number): boolean {
  return name.length <= charsMost && /^[A-Za-z0-9][A-Za-z0-9_.:-]*$/.test(name);
}
