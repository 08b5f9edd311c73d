/**
 * A worker with one handler, and a client that gives it a task. Against
 * `pulse dev` on this machine:
 *
 *     npm ci && npm run build && node dist/example/resize.js
 */
import { Client, failed, raw, Worker, type JsonNumber } from "../src/index.js";

const addrs = [process.env["PULSE_ADDR"] ?? "http://127.0.0.1:7400"];
const queue = process.env["PULSE_QUEUE"] ?? "default";

const worker = new Worker({ addrs, queue }).handle("resize", "1", "1", async (task, signal) => {
  // exact() keeps a price like 12.50 what it is; value() is enough for the rest.
  const { image, price } = task.payload.exact<{ image: number; price: JsonNumber }>();
  if (!Number.isInteger(image)) throw failed("bad_payload", new Error("image must be a number"));
  signal.throwIfAborted(); // somebody cancelled, or the lease is lost
  return { resized: image, price };
});

const stop = new AbortController();
for (const name of ["SIGINT", "SIGTERM"] as const) process.once(name, () => stop.abort());
const ended = worker.run(stop.signal); // reconnects for ever, drains when stop is aborted

const client = new Client({ addrs, queue });
const { id } = await client.submit({ handler: "resize", payload: raw(`{"image":17,"price":12.50}`) }, { signal: stop.signal });
const done = await client.wait(id, { signal: stop.signal });
console.log(done.state, done.result?.text);

await ended;
