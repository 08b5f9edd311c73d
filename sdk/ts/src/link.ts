import WebSocket from "ws";
import { newId, type Api } from "./api.js";
import { infoOf } from "./codes.js";
import { PulseError, refusalOf } from "./error.js";
import { decodeServer, encode, encodeHello, frameBytesMax, FrameError, subprotocol, type Ask, type Assignment, type Hello, type ServerFrame, type Welcome } from "./frames.js";
import type { Carrier, Operations } from "./operations.js";
import { now } from "./wait.js";

const handshakeMs = 10_000; // from the dial to the welcome
const pingEveryMs = 10_000;
const pongWithinMs = 5_000;
const closeWithinMs = 2_000;
const refusalBytesMax = 64 << 10; // as much as is read of a refused upgrade

// An operation without an answer for this part of a lease, within these bounds,
// says that the way to the cluster is broken, whatever pings say.
const silencePart = 4;
const silenceLeastMs = 2_000;
const silenceMostMs = 10_000;

/** Takes what comes by itself. */
export interface Sink {
  assigned(offer: Assignment): void;
  cancelled(attemptId: string): void;
}

/** One connection to a gateway, from its welcome on. */
export class Link implements Carrier {
  private unsent = 0; // frames that the kernel has not taken yet
  private over = false;
  private readonly ended: Promise<unknown>;
  private end!: (why: unknown) => void;
  private early: [WebSocket.RawData, boolean][] = []; // what came right behind the welcome, before serve
  private heard: (data: WebSocket.RawData, binary: boolean) => void = (data, binary) => this.early.push([data, binary]);

  private constructor(
    readonly addr: string,
    readonly welcome: Welcome,
    private readonly ws: WebSocket,
    private readonly room: number,
  ) {
    this.ended = new Promise((resolve) => (this.end = resolve));
    ws.on("message", (data, binary) => this.heard(data, binary));
    ws.on("error", (error) => this.fail(error));
    ws.on("close", (code, reason) => this.fail(new Error(`pulse: the connection was closed: ${code} ${reason.toString()}`)));
  }

  /** Ends the connection; the first reason counts. */
  private fail(why: unknown): void {
    this.over = true;
    this.end(why);
  }

  /** Connects to the gateway in use and registers there. Throws a PulseError if it refuses. `room` bounds the frames that wait to be sent. */
  static async dial(api: Api, hello: Hello, room: number, life: AbortSignal): Promise<Link> {
    const { base } = api.addr();
    const ws = new WebSocket(base.replace(/^http/, "ws") + "/v1/worker", subprotocol, {
      headers: api.headers(),
      maxPayload: frameBytesMax,
      perMessageDeflate: false,
      handshakeTimeout: handshakeMs,
      ...api.tls,
    });
    let limit: NodeJS.Timeout | undefined;
    const gone = () => ws.terminate();
    try {
      return await new Promise<Link>((resolve, reject) => {
        const id = newId();
        limit = setTimeout(() => reject(new Error(`pulse: ${base} did not welcome the worker in ${handshakeMs} ms`)), handshakeMs);
        life.addEventListener("abort", gone, { once: true });
        ws.on("error", reject);
        ws.on("close", (code, reason) => reject(new Error(`pulse: ${base} closed the connection: ${code} ${reason.toString()}`)));
        ws.on("unexpected-response", (request, answer) => {
          let text = "";
          answer.setEncoding("utf8");
          answer.on("data", (part: string) => (text.length < refusalBytesMax ? (text += part) : request.destroy()));
          answer.on("close", () => reject(refusalOf(answer.statusCode ?? 0, answer.headers["retry-after"], text)));
        });
        ws.on("open", () => ws.send(encodeHello(id, hello)));
        ws.once("message", (data, binary) => {
          try {
            const frame = read(data, binary);
            if (frame.type === "error") throw new PulseError(frame.code, frame.message);
            if (frame.type !== "worker.welcome" || frame.replyTo !== id) throw new FrameError(`pulse: ${base} answered the hello with ${frame.type}`);
            ws.removeAllListeners();
            resolve(new Link(base, frame.welcome, ws, room));
          } catch (error) {
            reject(error as Error);
          }
        });
      });
    } catch (error) {
      ws.removeAllListeners();
      ws.on("error", () => {}); // of an end that is our own
      ws.terminate();
      throw error;
    } finally {
      clearTimeout(limit);
      life.removeEventListener("abort", gone);
    }
  }

  /** Queues a frame. A queue that is full belongs to a connection that no longer moves, and ends it. */
  send(messageId: string, ask: Ask): void {
    if (this.ws.readyState !== WebSocket.OPEN) return; // its end is on the way; the operation is sent again on the next
    if (this.unsent >= this.room) return this.fail(new Error("pulse: the gateway does not read fast enough"));
    this.unsent++;
    this.ws.send(encode(messageId, this.welcome.session_id, ask), (error) => {
      this.unsent--;
      if (error) this.fail(error);
    });
  }

  /** Serves the connection to its end, and says why that came. */
  async serve(operations: Operations, sink: Sink, life: AbortSignal): Promise<unknown> {
    const done = () => this.close();
    operations.attach(this);
    const timers = [this.ping(), this.watch(operations)];
    this.heard = (data, binary) => {
      if (this.over) return; // it belongs to a session that is over
      try {
        this.take(read(data, binary), operations, sink);
      } catch (error) {
        this.fail(error);
      }
    };
    for (const [data, binary] of this.early.splice(0)) this.heard(data, binary);
    life.addEventListener("abort", done, { once: true });
    if (life.aborted) done();
    const why = await this.ended;
    life.removeEventListener("abort", done);
    timers.forEach(clearInterval);
    operations.detach();
    this.ws.removeAllListeners();
    this.ws.on("error", () => {}); // of an end that is our own
    this.ws.terminate();
    return why;
  }

  /** Handles one frame. What it throws ends the connection. */
  private take(frame: ServerFrame, operations: Operations, sink: Sink): void {
    if (frame.sessionId !== undefined && frame.sessionId !== this.welcome.session_id) throw new FrameError(`pulse: a frame of another session: ${frame.type}`);
    switch (frame.type) {
      case "task.assign":
        return sink.assigned(frame.assignment);
      case "task.cancel":
        return sink.cancelled(frame.attemptId);
      case "ack":
        if (operations.deliver(this, frame.replyTo ?? "", frame.ack)) return;
        break;
      case "error": {
        const refusal = new PulseError(frame.code, frame.message);
        // Without a frame it answers, or fatal, it ends the session, not the
        // operations: they are sent again on the next one.
        if (frame.replyTo === undefined || infoOf(frame.code).fatal) throw refusal;
        operations.deliver(this, frame.replyTo, refusal);
        return;
      }
      case "worker.welcome":
    }
    throw new FrameError(`pulse: unexpected frame ${frame.type}`);
  }

  /** Ends a connection on which operations get no answer. */
  private watch(operations: Operations): NodeJS.Timeout {
    const limit = Math.min(Math.max(this.welcome.lease_duration_ms / silencePart, silenceLeastMs), silenceMostMs);
    return everyTick(limit / 4, () => {
      if (operations.silence().oldest > limit) this.fail(new Error("pulse: the gateway left an operation without an answer for too long"));
    });
  }

  /** Finds a dead peer while nothing else is under way. */
  private ping(): NodeJS.Timeout {
    let sentAt: number | undefined; // of a ping without a pong
    let lastAt = now();
    this.ws.on("pong", () => (sentAt = undefined));
    return everyTick(pongWithinMs / 4, () => {
      if (sentAt !== undefined) {
        if (now() - sentAt > pongWithinMs) this.fail(new Error("pulse: the gateway does not answer pings"));
      } else if (now() - lastAt >= pingEveryMs) {
        sentAt = lastAt = now();
        if (this.ws.readyState === WebSocket.OPEN) this.ws.ping();
      }
    });
  }

  /** Says goodbye, so that the gateway need not find out. */
  private close(): void {
    const limit = setTimeout(() => this.fail(new Error("pulse: the worker is done")), closeWithinMs);
    void this.ended.then(() => clearTimeout(limit));
    this.ws.close(1000);
  }
}

/**
 * Looks every so often, but not when a handler has kept the thread for so long
 * that the look comes late: what it looks for may have arrived unread meanwhile.
 */
function everyTick(ms: number, look: () => void): NodeJS.Timeout {
  let due = now() + ms;
  return setInterval(() => {
    const late = now() - due > ms;
    due = now() + ms;
    if (!late) look();
  }, ms);
}

function read(data: WebSocket.RawData, binary: boolean): ServerFrame {
  if (binary) throw new FrameError("pulse: the gateway sent a binary message");
  return decodeServer(data.toString());
}
