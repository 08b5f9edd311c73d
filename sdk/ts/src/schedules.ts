import { businessJson, stringify, type RawJson } from "./json.js";
import { snake, type RecoverySafety, type RetryPolicy, type Time } from "./types.js";
import type { PulseError } from "./error.js";

/**
 * What happens to a time while a run is not over: skip leaves it out, allow runs it
 * beside the other, buffer_one runs one time when the other is over. A run that needs
 * a review is not over.
 */
export type Overlap = "skip" | "allow" | "buffer_one";

/** What to run, and when. Either cron or everyMs is needed. */
export interface ScheduleSpec {
  /** Five fields (minute, hour, day of the month, month, day of the week), six with a second in front, or @hourly and the like. */
  cron?: string;
  /** IANA name, with cron. Default UTC. */
  timeZone?: string;
  /** An interval of at least a second. Its times are the multiples of it since startAt, or since 1970 in UTC. */
  everyMs?: number;
  /** No time is before it. */
  startAt?: Date | Time;
  /** All times are before it. */
  endAt?: Date | Time;
  /** It ends after as many runs. */
  maxFires?: number;
  /** Times are late by a part of it that is fixed for the schedule. */
  jitterMs?: number;
  /** Default skip. */
  overlap?: Overlap;
  /** How late a time may be dealt with; one that is later is missed. Default an hour. */
  catchUpWindowMs?: number;
  paused?: boolean;
  /** What each time submits. */
  task: ScheduledTask;
}

/** The task of a schedule: a TaskSpec without business key and times of its own, which follow from the schedule. */
export interface ScheduledTask {
  /** Default: the client's. */
  queue?: string;
  handler: string;
  /** Default "1". */
  handlerVersion?: string;
  /** Default "1". */
  payloadVersion?: string;
  /** Becomes JSON. RawJson is sent byte for byte; nothing is {}. */
  payload?: unknown;
  concurrencyKey?: string;
  /** 0 to 9, 9 first. */
  priority?: number;
  /** Default IDEMPOTENT. */
  recoverySafety?: RecoverySafety;
  retry?: Partial<RetryPolicy>;
  /** Counts from the submission. */
  startDeadlineMs?: number;
  /** Counts from the submission. Default: the queue's. */
  deadlineMs?: number;
}

/** A schedule with how it stands. */
export interface ScheduleInfo {
  id: string;
  name: string;
  namespace: string;
  /** Grows with what people change. */
  revision: bigint;
  state: "active" | "paused" | "ended";
  cron?: string;
  timeZone?: string;
  everyMs?: number;
  startAt?: Time;
  endAt?: Time;
  maxFires?: bigint;
  jitterMs: number;
  overlap: Overlap;
  catchUpWindowMs: number;
  paused: boolean;
  /** Without its payload in lists. */
  task: Omit<ScheduledTask, "payload"> & { queue: string; payload?: RawJson };
  nextAt?: Time;
  /** nextAt and jitter. */
  nextDueAt?: Time;
  lastAt?: Time;
  /** The time that waits for a run to be over. */
  bufferedAt?: Time;
  /** The next times; none in lists. */
  upcoming: Time[];
  /** Runs that are not over. */
  openTasks: bigint;
  fired: bigint;
  /** By trigger and backfill. */
  ordered: bigint;
  skipped: bigint;
  missed: bigint;
  refused: bigint;
  /** The last ten times, newest first. */
  recent: Fire[];
  createdAt: Time;
  updatedAt: Time;
}

/** What became of a time, or of several that were missed or backfilled. */
export interface Fire {
  nominalAt: Time;
  /** The last of several. */
  until?: Time;
  at: Time;
  outcome: "fired" | "skipped" | "buffered" | "missed" | "refused" | "triggered" | "backfilled";
  taskId?: string;
  reason?: string;
  message?: string;
  times?: bigint;
}

/** What became of the times of a range, or would. */
export interface Backfill {
  dryRun: boolean;
  times: number;
  /** Times that had no task. */
  missing: number;
  /** Of these, those that have one now; none in a dry run. */
  submitted: number;
  /** Existed says that the time had a task before. */
  results: { nominalAt: Time; taskId?: string; existed: boolean; error?: PulseError }[];
}

/** The members about when a schedule runs. */
export function timesOf(spec: Omit<ScheduleSpec, "task">): object {
  const { cron, timeZone, everyMs, startAt, endAt, maxFires, jitterMs, overlap, catchUpWindowMs } = spec;
  return { cron, timeZone, everyMs, startAt, endAt, maxFires, jitterMs, overlap, catchUpWindowMs };
}

/** A ScheduleSpec as the API takes it. */
export function scheduleBody(spec: ScheduleSpec, queue: string, expectedRevision: bigint | undefined): string {
  const { payload, ...rest } = spec.task;
  const task = { queue, handler_version: "1", payload_version: "1", ...snake(rest), payload: businessJson(payload) };
  return stringify({ ...snake({ ...timesOf(spec), paused: spec.paused, expectedRevision }), task });
}
