import { answerLost, Api, callTimeoutMs, doubted, escape, mayRetry, newId, type ConnectionOptions, type Request } from "./api.js";
import { AnswerError, CallAborted, PulseError } from "./error.js";
import { businessJson, elements, members, stringify } from "./json.js";
import { decode, isSettled, isTerminal, snake } from "./types.js";
import { scheduleBody, timesOf, type Backfill, type ScheduleInfo, type ScheduleSpec } from "./schedules.js";
import type { AttemptInfo, QueueInfo, QueueSettings, RecoverySafety, RetryPolicy, ReviewDecision, State, TaskEvent, TaskInfo, Time } from "./types.js";
import { now, pause } from "./wait.js";
import { follow } from "./watch.js";

const batchTasksMax = 1000; // of one request
const batchBytesMax = 7 << 20; // below the 8 MiB that the API takes
const batchTimeoutMs = 60_000;
const waitPollMs = 25_000; // how long one request of wait may wait at the gateway

export interface ClientOptions extends ConnectionOptions {
  /** Default "default". */
  namespace?: string | undefined;
  /** Of tasks that name none. Default "default". */
  queue?: string | undefined;
}

/** What changes one call. */
export interface CallOptions {
  /** Ends the call. Without one it goes on until the cluster has answered. */
  signal?: AbortSignal | undefined;
  /** A key of your own, so that a repeat by another process within 24 hours gets the first answer too. */
  idempotencyKey?: string | undefined;
  /** Refuses a change with revision_conflict unless the task or queue is at this revision. */
  expectedRevision?: bigint | undefined;
  /** The reason for a change. It goes on record with it, and into the history of the task or schedule that it is about. */
  note?: string | undefined;
  /** Lets any node answer a read from what it has. */
  stale?: boolean | undefined;
}

/** A submission. Handler and versions choose the workers that may run it; what is absent is left to the queue. */
export interface TaskSpec {
  /** Of submit. Default: the client's. */
  queue?: string;
  handler: string;
  /** Default "1". */
  handlerVersion?: string;
  /** Default "1". */
  payloadVersion?: string;
  /** Becomes JSON. RawJson is sent byte for byte; nothing is {}. */
  payload?: unknown;
  /** Names the work itself, e.g. an order: a second submission with equal content finds the first task, one with other content is refused with conflict. */
  businessKey?: string;
  /** Names a resource that only one task may work on at a time. */
  concurrencyKey?: string;
  /** 0 to 9, 9 first. */
  priority?: number;
  delayMs?: number;
  /** Instead of delayMs. */
  availableAt?: Date | string;
  startDeadlineAt?: Date | string;
  deadlineAt?: Date | string;
  /** Default IDEMPOTENT. */
  recoverySafety?: RecoverySafety;
  retry?: Partial<RetryPolicy>;
}

/** The outcome of one task of a batch. */
export type BatchItem = { task: TaskInfo; error?: undefined } | { task?: undefined; error: PulseError };

export interface TaskFilter {
  queue?: string;
  state?: State | State[];
  handler?: string;
  businessKey?: string;
  concurrencyKey?: string;
  waitingReason?: string;
}

/** A decision about a task in NEEDS_REVIEW. It is recorded. */
export interface Review {
  decision: ReviewDecision;
  /** Why; always needed. */
  note: string;
  /** With SUCCEEDED. */
  result?: unknown;
  /** With FAILED. */
  errorCode?: string;
  /** With RETRY, when the task's own has passed. */
  deadlineAt?: Date | string;
}

/**
 * Submits tasks and looks after them. It needs no closing.
 *
 * A call repeats what failed in a way that may pass (no leader, a full queue, an
 * unknown result, a network error) until its signal is aborted. That is safe:
 * every call that changes something carries an Idempotency-Key of its own, under
 * which the cluster answers a repeat with the first answer. So give each call a
 * signal with an end: `{ signal: AbortSignal.timeout(30_000) }`.
 */
export class Client {
  private readonly api: Api;
  private readonly namespace: string;
  private readonly queue: string;

  /** Connects to nothing yet. Throws on an address that is none. */
  constructor(options: ClientOptions = {}) {
    this.api = new Api(options);
    this.namespace = options.namespace ?? "default";
    this.queue = options.queue ?? "default";
  }

  /** Hands a task to the cluster. Once it is back the task survives any single node. */
  async submit(spec: TaskSpec, options: CallOptions = {}): Promise<TaskInfo> {
    return this.changeTask(`${this.queuePath(spec.queue)}/tasks`, submission(spec), options);
  }

  /**
   * Submits many tasks to one queue, in as few requests as the limits allow. It
   * is not atomic: each task stands for itself, in the order given, and items
   * that were refused for the moment are submitted again until the signal ends.
   * If it throws, some may have been taken: repeat the whole call under the same
   * idempotencyKey to find out.
   */
  async submitBatch(specs: TaskSpec[], options: CallOptions & { queue?: string } = {}): Promise<BatchItem[]> {
    const encoded = specs.map(submission);
    const key = options.idempotencyKey ?? newId();
    const items: BatchItem[] = [];
    while (items.length < encoded.length) {
      const { body, count } = batchBody(encoded.slice(items.length));
      // The key names the place of the request in the batch, so that the same
      // batch is cut and keyed the same way whoever repeats it.
      items.push(...(await this.submitChunk(options, body, count, `${key}/${items.length}`)));
    }
    return items;
  }

  /**
   * Repeats a request until none of its items was refused for the moment only;
   * those already taken answer as before. When the signal ends the last answer
   * stands, but for what another try may have done since, or before: see Chunk.
   */
  private async submitChunk(options: CallOptions & { queue?: string }, body: string, count: number, key: string): Promise<BatchItem[]> {
    const r: Request = { method: "POST", path: `${this.queuePath(options.queue)}/tasks:batch`, body, key, tryMs: batchTimeoutMs };
    const part = new Chunk();
    try {
      return await this.api.persist(r.path, options.signal, async () => {
        let text: string;
        try {
          text = await this.api.try(r, options.signal);
        } catch (error) {
          part.failed(error);
          throw error;
        }
        const answer = decode<{ results: (TaskInfo & { error?: PulseError })[] }>(text);
        if (answer.results.length !== count) throw new AnswerError(`pulse: ${answer.results.length} results for ${count} tasks`);
        return part.answered(answer.results.map((result) => (result.error === undefined ? { task: result } : { error: result.error })));
      });
    } catch (error) {
      if (part.items !== undefined && error instanceof CallAborted) return part.outcome();
      throw error;
    }
  }

  /** Reads a task. */
  async get(id: string, options: CallOptions = {}): Promise<TaskInfo> {
    return decode(await this.read(this.taskPath(id), new URLSearchParams(), options));
  }

  /** The task once it is settled: SUCCEEDED, FAILED, CANCELLED, or NEEDS_REVIEW, which waits for a person. Outlasts restarts of the cluster. */
  async wait(id: string, options: CallOptions = {}): Promise<TaskInfo> {
    for (;;) {
      const query = new URLSearchParams({ wait_state: "terminal", timeout_ms: String(waitPollMs) });
      const started = now();
      const task = decode<TaskInfo>(await this.api.call({ method: "GET", path: this.taskPath(id), query, tryMs: waitPollMs + callTimeoutMs }, options.signal));
      if (isSettled(task.state)) return task;
      // An answer that came at once did not wait; asking again at once would be
      // a loop without a brake.
      if (now() - started < 1000 && !(await pause(1000, options.signal))) throw new CallAborted(options.signal?.reason);
    }
  }

  /** Asks that a task not be run, or be stopped if it is running. What it returns may still be RUNNING: the handler is told and decides how it ends. */
  cancel(id: string, options: CallOptions = {}): Promise<TaskInfo> {
    return this.actOn(id, "cancel", { note: options.note }, options);
  }

  /** Submits a task that is SUCCEEDED, FAILED or CANCELLED again, as a new task, which it returns. */
  retry(id: string, options: CallOptions = {}): Promise<TaskInfo> {
    return this.actOn(id, "retry", { note: options.note }, options);
  }

  /** Settles a task in NEEDS_REVIEW, or sends it back to WAITING. */
  review(id: string, review: Review, options: CallOptions = {}): Promise<TaskInfo> {
    const result = review.result === undefined ? undefined : businessJson(review.result);
    return this.actOn(id, "review", { ...review, result }, options);
  }

  private async actOn(id: string, verb: string, change: object, options: CallOptions): Promise<TaskInfo> {
    return this.changeTask(`${this.taskPath(id)}:${verb}`, stringify(snake({ ...change, expectedRevision: options.expectedRevision })), options);
  }

  /** Every run of a task that is kept, oldest first, with the receipts of its operations and the evidence that arrived too late. */
  async attempts(id: string, options: CallOptions = {}): Promise<AttemptInfo[]> {
    return decode<{ attempts: AttemptInfo[] }>(await this.read(`${this.taskPath(id)}/attempts`, new URLSearchParams(), options)).attempts;
  }

  /** Walks over tasks, newest first, page by page as the loop goes on. Tasks that arrive meanwhile are not seen and move nothing. */
  list(filter: TaskFilter = {}, options: CallOptions = {}): AsyncGenerator<TaskInfo, void, undefined> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(snake(filter))) for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
    return this.pages<TaskInfo>("/tasks", "tasks", query, options);
  }

  private async *pages<T>(path: string, name: string, query: URLSearchParams, options: CallOptions): AsyncGenerator<T, void, undefined> {
    for (;;) {
      const page = await this.read(this.path(path), query, options);
      const parts = members(page);
      for (const item of elements(parts.get(name) ?? "[]")) yield decode<T>(item);
      const cursor = parts.get("next_cursor");
      if (cursor === undefined) return;
      query.set("cursor", JSON.parse(cursor) as string);
    }
  }

  /** The changes of a task from its beginning, each once and in order, and then as they happen, until the task is in a terminal state. */
  async *watch(id: string, options: CallOptions = {}): AsyncGenerator<TaskEvent, void, undefined> {
    for await (const event of follow(this.api, `${this.taskPath(id)}/watch`, undefined, options.signal)) {
      yield event;
      if (isTerminal(event.state)) return;
    }
  }

  /**
   * The changes of all tasks of the namespace as they happen, starting behind the
   * event with the id `after`, or now. Events are kept for days, not for ever: a
   * PulseError with status 410 ends a watch that was away too long.
   */
  watchAll(after?: string, options: CallOptions = {}): AsyncGenerator<TaskEvent, void, undefined> {
    return follow(this.api, this.path("/events"), after, options.signal);
  }

  /** Creates a queue or replaces its settings. */
  async putQueue(name: string, settings: QueueSettings = {}, options: CallOptions = {}): Promise<QueueInfo> {
    return decode(await this.change("PUT", this.queuePath(name), stringify(snake({ ...settings, expectedRevision: options.expectedRevision })), options));
  }

  async getQueue(name: string, options: CallOptions = {}): Promise<QueueInfo> {
    return decode(await this.read(this.queuePath(name), new URLSearchParams(), options));
  }

  /** Stops assignments from a queue; it keeps taking tasks. */
  async pauseQueue(name: string, options: CallOptions = {}): Promise<QueueInfo> {
    return decode(await this.change("POST", `${this.queuePath(name)}:pause`, stringify(snake({ expectedRevision: options.expectedRevision })), options));
  }

  /** Lets a paused queue go on. */
  async resumeQueue(name: string, options: CallOptions = {}): Promise<QueueInfo> {
    return decode(await this.change("POST", `${this.queuePath(name)}:resume`, stringify(snake({ expectedRevision: options.expectedRevision })), options));
  }

  /** Creates a schedule or replaces its settings. A change of its times holds from now on. */
  async putSchedule(name: string, spec: ScheduleSpec, options: CallOptions = {}): Promise<ScheduleInfo> {
    return decode(await this.change("PUT", this.schedulePath(name), scheduleBody(spec, this.queue, options.expectedRevision), options));
  }

  /** Reads a schedule with its next times, 10 of them if not said otherwise. */
  async getSchedule(name: string, options: CallOptions & { upcoming?: number } = {}): Promise<ScheduleInfo> {
    const query = new URLSearchParams(options.upcoming === undefined ? {} : { upcoming: String(options.upcoming) });
    return decode(await this.read(this.schedulePath(name), query, options));
  }

  /** Walks over the schedules of the namespace, by name, page by page as the loop goes on. They have no payloads and no next times. */
  listSchedules(options: CallOptions = {}): AsyncGenerator<ScheduleInfo, void, undefined> {
    return this.pages<ScheduleInfo>("/schedules", "schedules", new URLSearchParams(), options);
  }

  /** Lets no time of a schedule come. What it has submitted goes on. */
  pauseSchedule(name: string, options: CallOptions = {}): Promise<ScheduleInfo> {
    return this.switchSchedule(name, "pause", options);
  }

  /** Lets a paused schedule go on, from now: times that passed meanwhile are left out. */
  resumeSchedule(name: string, options: CallOptions = {}): Promise<ScheduleInfo> {
    return this.switchSchedule(name, "resume", options);
  }

  private async switchSchedule(name: string, verb: string, options: CallOptions): Promise<ScheduleInfo> {
    return decode(await this.change("POST", `${this.schedulePath(name)}:${verb}`, stringify(snake({ note: options.note, expectedRevision: options.expectedRevision })), options));
  }

  /** Submits a schedule's task now. While a run is not over it is refused with conflict, unless the overlap policy is allow or allowOverlap is set. */
  async triggerSchedule(name: string, options: CallOptions & { allowOverlap?: boolean } = {}): Promise<TaskInfo> {
    return this.changeTask(`${this.schedulePath(name)}:trigger`, stringify(snake({ note: options.note, allowOverlap: options.allowOverlap })), options);
  }

  /** Submits the tasks of the times from `from` to before `until`, both in the past, that have none: at most 500 times in one call. With dryRun it only tells them. */
  async backfillSchedule(name: string, range: { from: Date | Time; until: Date | Time; dryRun?: boolean }, options: CallOptions = {}): Promise<Backfill> {
    return decode(await this.change("POST", `${this.schedulePath(name)}:backfill`, stringify(snake({ ...range, note: options.note })), options));
  }

  /** The next times of a schedule that need not exist; of the spec only what is about times counts. */
  async previewSchedule(spec: Omit<ScheduleSpec, "task">, options: CallOptions & { limit?: number } = {}): Promise<Time[]> {
    const body = stringify(snake({ ...timesOf(spec), limit: options.limit }));
    return decode<{ upcoming: Time[] }>(await this.change("POST", this.path("/schedules:preview"), body, options)).upcoming;
  }

  /** Forgets a schedule. The tasks that it has submitted stay. */
  async deleteSchedule(name: string, options: CallOptions = {}): Promise<void> {
    const query = options.expectedRevision === undefined ? undefined : new URLSearchParams({ expected_revision: String(options.expectedRevision) });
    await this.api.call({ method: "DELETE", path: this.schedulePath(name), query, key: options.idempotencyKey ?? newId(), note: options.note }, options.signal);
  }

  private schedulePath(name: string): string {
    return this.path(`/schedules/${escape(name)}`);
  }

  /**
   * Any other request of the API, e.g. call("GET", "/v1/cluster"). The answer has
   * names in camel case. The path has to be escaped.
   */
  async call<T = unknown>(method: Request["method"], path: string, body?: unknown, options: CallOptions = {}): Promise<T> {
    const text = body === undefined ? undefined : stringify(body);
    const key = method === "GET" ? undefined : (options.idempotencyKey ?? newId());
    const answer = await this.api.call({ method, path, body: text, key, note: options.note }, options.signal);
    return (answer === "" ? undefined : decode(answer)) as T;
  }

  // The two kinds of calls: a GET, and everything else.

  private read(path: string, query: URLSearchParams, options: CallOptions): Promise<string> {
    if (options.stale === true) query.set("consistency", "stale");
    return this.api.call({ method: "GET", path, query }, options.signal);
  }

  private change(method: Request["method"], path: string, body: string, options: CallOptions): Promise<string> {
    return this.api.call({ method, path, body, key: options.idempotencyKey ?? newId(), note: options.note }, options.signal);
  }

  /** A change that answers with a task, which tells whether it is a remembered answer. */
  private async changeTask(path: string, body: string, options: CallOptions): Promise<TaskInfo> {
    let replayed = false;
    const key = options.idempotencyKey ?? newId();
    const text = await this.api.call({ method: "POST", path, body, key, note: options.note, replayed: () => (replayed = true) }, options.signal);
    const task = decode<TaskInfo>(text);
    return replayed ? { ...task, replayed } : task;
  }

  private path(rest: string): string {
    return `/v1/namespaces/${escape(this.namespace)}${rest}`;
  }

  private queuePath(queue: string | undefined): string {
    return this.path(`/queues/${escape(queue ?? this.queue)}`);
  }

  private taskPath(id: string): string {
    return this.path(`/tasks/${escape(id)}`);
  }
}

/** What the tries of a request for many tasks have said of them. */
class Chunk {
  /** Of the newest answer. */
  items: BatchItem[] | undefined;
  /** By place: why a try before that answer may have taken it. */
  private readonly lost: unknown[] = [];
  /** Why a try after it may have taken any. */
  private since: unknown;

  /** Notes a try without an answer about the items. */
  failed(error: unknown): void {
    if (answerLost(error)) this.since = error;
  }

  /** Notes an answer. Throws the refusal that another try may mend, if there is one. */
  answered(items: BatchItem[]): BatchItem[] {
    let again: PulseError | undefined;
    items.forEach(({ error }, i) => {
      if (this.since !== undefined) this.lost[i] = this.since;
      if (error === undefined || !mayRetry(error)) return;
      again ??= error;
      if (answerLost(error)) this.lost[i] = error;
    });
    this.items = items;
    this.since = undefined;
    if (again !== undefined) throw again;
    return items;
  }

  /** The items, each with a refusal only if no other try may have taken it. One that is final says that none before it did; and what breaks a rule is never taken. */
  outcome(): BatchItem[] {
    return (this.items ?? []).map((item, i) => {
      const { error } = item;
      if (error === undefined || error.code === "result_unknown" || error.code === "invalid_argument") return item;
      const lost = this.since ?? (error.retryable ? this.lost[i] : undefined);
      return lost === undefined ? item : { error: doubted(error, lost) };
    });
  }
}

/** A TaskSpec as the API takes it. */
function submission(spec: TaskSpec): string {
  const { queue: _, payload, ...rest } = spec;
  return stringify({ handler_version: "1", payload_version: "1", ...snake(rest), payload: businessJson(payload) });
}

/** Packs as many tasks as one request may carry, at least one. */
function batchBody(tasks: string[]): { body: string; count: number } {
  let bytes = 0;
  let count = 0;
  for (const task of tasks) {
    bytes += Buffer.byteLength(task) + 1;
    if (count === batchTasksMax || (count > 0 && bytes > batchBytesMax)) break;
    count++;
  }
  return { body: `{"tasks":[${tasks.slice(0, count).join(",")}]}`, count };
}
