import { mayRetry, type Api } from "./api.js";
import { AnswerError, CallAborted } from "./error.js";
import { decode, type TaskEvent } from "./types.js";
import { backoff, pause } from "./wait.js";

/** How long a stream may be silent before it is opened anew: a gateway sends a comment more often than that, so silence is a dead peer. */
const watchIdleMs = 60_000;
/** Bounds what has been read of one event. */
const eventCharsMax = 1 << 20;
const retryFirstMs = 100;
const retryMostMs = 5_000;

/** Reads server-sent events. A stream that ends or falls silent is opened again behind the last event. */
export async function* follow(api: Api, path: string, after: string | undefined, signal: AbortSignal | undefined): AsyncGenerator<TaskEvent, void, undefined> {
  const place = { after };
  for (let tries = 0; ; tries++) {
    if (signal?.aborted) throw new CallAborted(signal.reason);
    const addr = api.addr().place;
    let failure: unknown;
    try {
      for await (const event of stream(api, path, place, signal)) {
        if (event === "over") return;
        tries = 0;
        yield event;
      }
    } catch (error) {
      if (signal?.aborted) throw new CallAborted(signal.reason, error);
      if (!mayRetry(error)) throw error;
      failure = error;
      api.moveOn(addr);
    }
    api.log.debug("watch interrupted, going on behind the last event", { path, after: place.after, error: String(failure) });
    if (!(await pause(backoff(tries, retryFirstMs, retryMostMs), signal))) throw new CallAborted(signal?.reason, failure);
  }
}

/** Reads one stream to its end, and keeps place.after at the last id that was complete. "over" says that nothing will follow. */
async function* stream(api: Api, path: string, place: { after: string | undefined }, signal: AbortSignal | undefined): AsyncGenerator<TaskEvent | "over", void, undefined> {
  const limit = new AbortController();
  const ended = () => limit.abort(signal?.reason);
  signal?.addEventListener("abort", ended, { once: true });
  const silence = setTimeout(() => limit.abort(new Error("pulse: the stream fell silent")), watchIdleMs);
  try {
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (place.after !== undefined && place.after !== "") headers["Last-Event-ID"] = place.after;
    const answer = await api.send({ method: "GET", path, headers }, limit.signal);
    if (answer.statusCode === 204) return yield "over";
    answer.setEncoding("utf8");
    let rest = "";
    for await (const part of answer as AsyncIterable<string>) {
      silence.refresh();
      rest += part;
      if (rest.length > eventCharsMax) throw new AnswerError(`pulse: an event of more than ${eventCharsMax} characters`);
      const blocks = rest.split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const { id, data } = fields(block);
        if (id !== "") place.after = id; // an id without data moves on all the same
        if (data !== undefined) yield { ...decode<TaskEvent>(data), id: place.after ?? "" };
      }
    }
  } finally {
    clearTimeout(silence);
    signal?.removeEventListener("abort", ended);
    limit.abort(); // closes a stream that the reader left
  }
}

function fields(block: string): { id: string; data: string | undefined } {
  let id = "";
  let data: string | undefined;
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "id") id = value;
    if (name === "data") data = data === undefined ? value : `${data}\n${value}`;
  }
  return { id, data };
}
