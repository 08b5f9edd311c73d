import { randomBytes } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";
import { AnswerError, CallAborted, PulseError, refusalOf } from "./error.js";
import { backoff, now, pause } from "./wait.js";

/** Where a node listens unless told otherwise. */
export const defaultAddr = "http://127.0.0.1:7400";

/** Bounds one try of an ordinary request. It is above the time an election may take, because the gateway waits for the new leader. */
export const callTimeoutMs = 15_000;
/** Bounds the body of one answer. */
const answerBytesMax = 128 << 20;
const retryFirstMs = 100;
const retryMostMs = 5_000;
const triesQuiet = 4; // about a second of them
/** How long a call waits before it asks whether its node still runs, how long the answer is good for all calls, and how long it may take. */
const vitalMs = 3_000;

/** Where log lines go: console, pino and their like fit. */
export interface Logger {
  debug(message: string, more?: object): void;
  info(message: string, more?: object): void;
  warn(message: string, more?: object): void;
  error(message: string, more?: object): void;
}

/** Warnings and errors on standard error, and nothing else. */
export const defaultLogger: Logger = {
  debug() {},
  info() {},
  warn: (message, more) => console.warn(`pulse: ${message}`, more ?? ""),
  error: (message, more) => console.error(`pulse: ${message}`, more ?? ""),
};

/** How to speak TLS with addresses that begin with https. */
export interface TlsOptions {
  /** Certificates to trust instead of the system's, as PEM. */
  ca?: string | Buffer;
  /** The client's own certificate and key, as PEM. */
  cert?: string | Buffer;
  key?: string | Buffer;
}

export interface ConnectionOptions {
  /** Of nodes or a balancer; another is tried when one fails. Default: pulse dev on this machine. */
  addrs?: string[] | undefined;
  token?: string | undefined;
  tls?: TlsOptions | undefined;
  logger?: Logger | undefined;
}

/** One API request. It can be sent any number of times: whatever changes something carries an Idempotency-Key, under which the cluster answers a repeat with the first answer. */
export interface Request {
  method: "GET" | "PUT" | "POST" | "DELETE";
  /** Escaped. */
  path: string;
  query?: URLSearchParams | undefined;
  /** JSON. */
  body?: string | undefined;
  key?: string | undefined;
  /** Why: the reason that a change goes on record with. */
  note?: string | undefined;
  headers?: Record<string, string>;
  /** Limit of one try. */
  tryMs?: number;
  /** Called if the answer is the remembered one of an earlier request under the key. */
  replayed?: () => void;
}

/**
 * The HTTP side of a cluster as both Client and Worker need it: some addresses
 * of which one is in use, a credential, and the rule for trying again.
 */
export class Api {
  readonly log: Logger;
  readonly tls: TlsOptions;
  private readonly addrs: URL[];
  private readonly token: string | undefined;
  private readonly agents: Record<string, http.Agent>;
  private readonly vitals = new Map<string, { at: number; alive: Promise<boolean> }>(); // of each address
  private place = 0; // in addrs, modulo its length; moves on when a try fails

  constructor(options: ConnectionOptions) {
    this.log = options.logger ?? defaultLogger;
    this.tls = options.tls ?? {};
    this.token = options.token;
    const given = options.addrs === undefined || options.addrs.length === 0 ? [defaultAddr] : options.addrs;
    this.addrs = given.map((addr) => {
      const url = tryUrl(addr);
      if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) {
        throw new TypeError(`pulse: address ${JSON.stringify(addr)} is not of the form http://host:port`);
      }
      url.pathname = url.pathname.replace(/\/+$/, "");
      url.search = url.hash = "";
      return url;
    });
    // Many processes start from one configuration: let them not all begin at its
    // first line.
    for (let i = this.addrs.length - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [this.addrs[i], this.addrs[j]] = [this.addrs[j]!, this.addrs[i]!];
    }
    this.agents = { "http:": new http.Agent({ keepAlive: true }), "https:": new https.Agent({ keepAlive: true, ...this.tls }) };
  }

  /** The address in use, and its place for moveOn. */
  addr(): { base: string; place: number } {
    return { base: this.addrs[this.place % this.addrs.length]!.href.replace(/\/$/, ""), place: this.place };
  }

  /** Leaves an address for the next, once, however many calls found it wanting at the same time. */
  moveOn(place: number): void {
    if (this.place === place) this.place++;
  }

  headers(): Record<string, string> {
    const headers: Record<string, string> = { "User-Agent": "pulse-ts-sdk" };
    if (this.token !== undefined && this.token !== "") headers["Authorization"] = `Bearer ${this.token}`;
    return headers;
  }

  /** Sends a request until there is a final answer or the signal is aborted, and returns the answer's body. */
  call(r: Request, signal?: AbortSignal): Promise<string> {
    return this.persist(`${r.method} ${r.path}`, signal, () => this.try(r, signal));
  }

  /**
   * Repeats attempt while its error says that another may do better.
   *
   * A refusal speaks of its own try. If the answer to an earlier one was lost, that
   * one may have been carried out, whatever the last one promises: the refusal of a
   * change becomes a result_unknown then.
   */
  async persist<T>(what: string, signal: AbortSignal | undefined, attempt: () => Promise<T>): Promise<T> {
    let lost: unknown;
    let last: unknown;
    const givenUp = () => {
      const hidden = lost !== undefined && last instanceof PulseError && last.code !== "result_unknown" && !what.startsWith("GET ");
      return new CallAborted(signal?.reason, hidden ? doubted(last as PulseError, lost) : last);
    };
    for (let tries = 0; ; tries++) {
      if (signal?.aborted) throw givenUp();
      const { place } = this.addr();
      try {
        return await attempt();
      } catch (error) {
        last = error;
        if (signal?.aborted) throw givenUp();
        if (!mayRetry(error)) throw error;
        if (answerLost(error)) lost = error;
        this.moveOn(place);
        const delay = Math.max(backoff(tries, retryFirstMs, retryMostMs), error instanceof PulseError ? error.retryAfterMs : 0);
        // Once aloud: a caller whose signal never ends should know why it waits.
        this.log[tries === triesQuiet ? "warn" : "debug"]("request still failing, trying again", { request: what, tries: tries + 1, delayMs: Math.round(delay), error: String(error) });
        if (!(await pause(delay, signal))) throw givenUp();
      }
    }
  }

  /** Sends a request once, to the address in use, and returns the answer's body. */
  async try(r: Request, signal?: AbortSignal): Promise<string> {
    const limit = new AbortController();
    const tryMs = r.tryMs ?? callTimeoutMs;
    const timer = setTimeout(() => limit.abort(new Error(`pulse: no answer in ${tryMs} ms`)), tryMs);
    const ended = () => limit.abort(signal?.reason);
    signal?.addEventListener("abort", ended, { once: true });
    const release = this.whileAlive(limit);
    try {
      return await readBody(await this.send(r, limit.signal));
    } finally {
      clearTimeout(timer);
      release();
      signal?.removeEventListener("abort", ended);
    }
  }

  /**
   * Ends a call when the node in use answers nothing at all any more, so that it
   * can go to another one. A call may rightly take long (an election, a long
   * poll), and a process that was paused or cut off keeps its connections open;
   * its health check tells the two apart.
   */
  private whileAlive(limit: AbortController): () => void {
    if (this.addrs.length === 1) return () => {};
    const { base } = this.addr();
    let over = false;
    const look = async () => {
      const alive = await this.answers(base);
      if (over) return;
      if (alive) timer = setTimeout(look, vitalMs);
      else limit.abort(new Error("pulse: the node does not answer its health check: it may be paused or cut off"));
    };
    let timer = setTimeout(look, vitalMs);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }

  /** Asks a node's process for a sign of life, unless somebody just has. */
  private answers(base: string): Promise<boolean> {
    const known = this.vitals.get(base);
    if (known !== undefined && now() - known.at < vitalMs) return known.alive;
    const url = new URL(`${base}/healthz`);
    const alive = new Promise<boolean>((resolve) => {
      const request = (url.protocol === "https:" ? https : http).request(url, { agent: this.agents[url.protocol], signal: AbortSignal.timeout(vitalMs) });
      request.on("response", (answer) => {
        answer.resume();
        resolve(true);
      });
      request.on("error", () => resolve(false));
      request.end();
    });
    this.vitals.set(base, { at: now(), alive });
    return alive;
  }

  /** Sends a request and returns the answer with its body unread, or throws the refusal it carries. */
  async send(r: Request, signal: AbortSignal): Promise<http.IncomingMessage> {
    if (signal.aborted) throw signal.reason;
    const query = r.query === undefined || r.query.size === 0 ? "" : `?${r.query}`;
    const url = new URL(this.addr().base + r.path + query);
    const headers = { ...this.headers(), ...r.headers };
    if (r.body !== undefined) headers["Content-Type"] = "application/json";
    if (r.body !== undefined) headers["Content-Length"] = String(Buffer.byteLength(r.body));
    if (r.key !== undefined) headers["Idempotency-Key"] = r.key;
    if (r.note !== undefined && r.note.trim() !== "") headers["X-Pulse-Note"] = headerText(r.note);
    const answer = await new Promise<http.IncomingMessage>((resolve, reject) => {
      const request = (url.protocol === "https:" ? https : http).request(url, { method: r.method, headers, agent: this.agents[url.protocol], signal });
      request.on("response", resolve);
      request.on("error", (error) => reject(signal.aborted ? signal.reason : error));
      request.end(r.body);
    });
    const status = answer.statusCode ?? 0;
    if (status >= 200 && status < 300) {
      if (answer.headers["idempotency-replayed"] === "true") r.replayed?.();
      return answer;
    }
    const retryAfter = answer.headers["retry-after"];
    throw refusalOf(status, retryAfter, await readBody(answer));
  }
}

/** Text as a header can carry it: in one line, as bytes of UTF-8. */
function headerText(text: string): string {
  return Buffer.from(text.trim().split(/\s+/).join(" "), "utf8").toString("latin1");
}

function tryUrl(text: string): URL | null {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

async function readBody(answer: http.IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of answer as AsyncIterable<Buffer>) {
    parts.push(part);
    size += part.length;
    if (size > answerBytesMax) throw new AnswerError(`pulse: an answer of more than ${answerBytesMax} bytes`);
  }
  return Buffer.concat(parts).toString("utf8");
}

/** A refusal says itself whether it may be repeated; anything else is a network that failed, unless it is an answer nobody can read. */
export function mayRetry(error: unknown): boolean {
  if (error instanceof PulseError) return error.retryable;
  return !(error instanceof AnswerError);
}

/** Whether a try may have been carried out: it was sent, or may have been, and nobody said what became of it. */
export function answerLost(error: unknown): boolean {
  if (error instanceof PulseError) return error.code === "result_unknown";
  if (error instanceof AggregateError && error.errors.length > 0) return error.errors.some(answerLost);
  const syscall = (error as { syscall?: unknown } | undefined)?.syscall;
  return syscall !== "connect" && syscall !== "getaddrinfo";
}

/** What a refusal becomes if another try may have been carried out. */
export function doubted(refusal: PulseError, lost: unknown): PulseError {
  return new PulseError("result_unknown", `a try may have been carried out, as its answer was lost (${String(lost)}); the last one was refused: ${refusal.message}`);
}

/** Makes an id or an Idempotency-Key: 128 random bits. */
export function newId(): string {
  return randomBytes(16).toString("hex");
}

/**
 * Writes a name for use as one path segment. Everything but letters, digits, "-"
 * and "_" is percent-encoded, so that no name can look like a verb (":free") or
 * like a step in the path ("..").
 */
export function escape(name: string): string {
  return Array.from(Buffer.from(name, "utf8"), (byte) => {
    const c = String.fromCharCode(byte);
    return /[A-Za-z0-9_-]/.test(c) ? c : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }).join("");
}
