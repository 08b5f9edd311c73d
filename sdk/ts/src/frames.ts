import { members, RawJson, stringify } from "./json.js";

/** The subprotocol whose frames these are; the schema is schema/worker.v1.json. */
export const subprotocol = "pulse.worker.v1";
export const frameBytesMax = 1 << 20;

export interface Capability {
  handler: string;
  handler_version: string;
  payload_version: string;
}

export interface Hello {
  instance_id: string;
  instance_secret: string;
  queue_id: string;
  capabilities: Capability[];
  capacity: number;
  cancellation_notifications: boolean;
  concurrency_keys: boolean;
}

/** Names an attempt to the cluster. The secret proves that it was given to us. */
export interface AttemptRef {
  task_id: string;
  attempt_id: string;
  epoch: string;
  lease_secret: string;
}

export interface Capacity {
  sequence: string;
  capacity: number;
  drain: boolean;
}

export type Outcome = "SUCCEEDED" | "FAILED" | "UNKNOWN" | "CANCELLED";

/** How an attempt ended, but for the reference to it. */
export interface Finish {
  outcome: Outcome;
  retryable: boolean;
  /** "" with SUCCEEDED alone. */
  error_code: string;
  result: RawJson;
}

/** What a worker asks for after the hello. Each is one operation. */
export type Ask =
  | { type: "worker.capacity"; body: Capacity }
  | { type: "worker.resume" | "task.start" | "task.renew"; body: AttemptRef }
  | { type: "task.finish"; body: Finish & { ref: AttemptRef } };

export interface Welcome {
  session_id: string;
  epoch: string;
  lease_duration_ms: number;
  draining: boolean;
}

/** Authority as the cluster saw it when it answered. Times in milliseconds of its clock. */
export interface Lease {
  active: boolean;
  state: string;
  leaseUntilMs: number;
  serverTimeMs: number;
  cancelRequested: boolean;
}

export interface Receipt {
  task_state: string;
  disposition: "APPLIED" | "EVIDENCE_ONLY";
}

/** A task as it was assigned, with the attempt that runs it. */
export interface Assignment {
  ref: AttemptRef;
  task: Record<string, unknown>;
  payload: RawJson;
  leaseUntilMs: number;
  serverTimeMs: number;
  concurrencyToken: string | undefined;
}

export type ServerBody =
  | { type: "worker.welcome"; welcome: Welcome }
  | { type: "task.assign"; assignment: Assignment }
  | { type: "task.cancel"; attemptId: string }
  | { type: "ack"; ack: Ack }
  | { type: "error"; code: string; message: string };

/** One of the three kinds of answers. */
export interface Ack {
  welcome?: Welcome;
  lease?: Lease;
  receipt?: Receipt;
}

export type ServerFrame = ServerBody & { sessionId: string | undefined; replyTo: string | undefined };

export function encodeHello(messageId: string, body: Hello): string {
  return stringify({ protocol_version: "1", type: "worker.hello", message_id: messageId, body });
}

export function encode(messageId: string, sessionId: string, ask: Ask): string {
  return stringify({ protocol_version: "1", type: ask.type, message_id: messageId, session_id: sessionId, body: ask.body });
}

/** A frame that is not what the schema promises. It ends the connection. */
export class FrameError extends Error {
  override readonly name = "FrameError";
}

/** Reads a frame of the gateway. */
export function decodeServer(text: string): ServerFrame {
  let frame: Shape;
  try {
    frame = new Shape(JSON.parse(text), "");
  } catch (error) {
    if (error instanceof FrameError) throw error;
    throw new FrameError(`pulse: the gateway sent a frame that is no JSON: ${String(error)}`);
  }
  const ids = { sessionId: frame.optional("session_id"), replyTo: frame.optional("reply_to") };
  const type = frame.text("type");
  switch (type) {
    case "worker.welcome":
      return { type, ...ids, welcome: welcomeOf(frame.object("body")) };
    case "task.assign":
      return { type, ...ids, assignment: assignmentOf(frame.object("body"), text) };
    case "task.cancel":
      return { type, ...ids, attemptId: frame.object("body").text("attempt_id") };
    case "ack":
      return { type, ...ids, ack: ackOf(frame.object("body")) };
    case "error":
      return { type, ...ids, code: frame.object("error").text("code"), message: frame.object("error").text("message") };
    default:
      throw new FrameError(`pulse: unexpected frame ${type}`);
  }
}

function ackOf(body: Shape): Ack {
  if (body.has("receipt")) {
    const receipt = body.object("receipt");
    const disposition = receipt.text("disposition");
    if (disposition !== "APPLIED" && disposition !== "EVIDENCE_ONLY") throw new FrameError(`pulse: unknown disposition ${disposition}`);
    return { receipt: { task_state: receipt.text("task_state"), disposition }, lease: leaseOf(body.object("lease")) };
  }
  return body.has("active") ? { lease: leaseOf(body) } : { welcome: welcomeOf(body) };
}

function welcomeOf(body: Shape): Welcome {
  return { session_id: body.text("session_id"), epoch: body.text("epoch"), lease_duration_ms: body.number("lease_duration_ms"), draining: body.flag("draining") };
}

function leaseOf(body: Shape): Lease {
  return {
    active: body.flag("active"),
    state: body.text("state"),
    leaseUntilMs: millisOf(body.text("lease_until")),
    serverTimeMs: millisOf(body.text("server_time")),
    cancelRequested: body.has("cancel_requested_at"),
  };
}

function assignmentOf(body: Shape, text: string): Assignment {
  const task = body.object("task");
  // From the text, so that its numbers stay what they are.
  const inFrame = (around: string | undefined, name: string) => (around === undefined ? undefined : members(around).get(name));
  const payload = inFrame(inFrame(inFrame(text, "body"), "task"), "payload");
  if (payload === undefined) throw new FrameError("pulse: an assignment without a payload");
  return {
    ref: { task_id: task.text("id"), attempt_id: body.text("attempt_id"), epoch: body.text("epoch"), lease_secret: body.text("lease_secret") },
    task: task.value,
    payload: new RawJson(payload),
    leaseUntilMs: millisOf(body.text("lease_until")),
    serverTimeMs: millisOf(body.text("server_time")),
    concurrencyToken: body.optional("concurrency_token"),
  };
}

/** An instant in milliseconds since 1970, with a fraction: a Date would drop the microseconds. */
export function millisOf(time: string): number {
  const m = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?Z$/.exec(time);
  const whole = m === null ? NaN : Date.parse(`${m[1]}Z`);
  if (m === null || Number.isNaN(whole)) throw new FrameError(`pulse: not a time: ${time}`);
  return whole + Number(m[2] ?? 0) * 1000;
}

/** An object of a frame, whose members are of the types that are asked for, or else the frame is no good. */
class Shape {
  readonly value: Record<string, unknown>;

  constructor(
    value: unknown,
    private readonly path: string,
  ) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new FrameError(`pulse: a frame whose ${path || "root"} is no object`);
    this.value = value as Record<string, unknown>;
  }

  has(name: string): boolean {
    return Object.hasOwn(this.value, name);
  }
  object(name: string): Shape {
    return new Shape(this.value[name], `${this.path}/${name}`);
  }
  text(name: string): string {
    return this.of("string", name) as string;
  }
  number(name: string): number {
    return this.of("number", name) as number;
  }
  flag(name: string): boolean {
    return this.of("boolean", name) as boolean;
  }
  optional(name: string): string | undefined {
    return this.has(name) ? this.text(name) : undefined;
  }
  private of(type: string, name: string): unknown {
    const member = this.value[name];
    if (typeof member !== type) throw new FrameError(`pulse: a frame whose ${this.path}/${name} is no ${type}`);
    return member;
  }
}
