import assert from "node:assert/strict";
import dns from "node:dns";
import { after, before, test, type TestContext } from "node:test";
import { cancelled, Client, failed, leaseLost, parse, raw, retryable, stringify, Worker, workerStopped, type Handler, type QueueSettings, type Task, type TaskInfo, type TaskSpec, type WorkerOptions } from "../src/index.js";
import { Node, Wire } from "./node.js";

const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const end = () => ({ signal: AbortSignal.timeout(60_000) });

let node: Node;
before(async () => void (node = await Node.start()));
after(() => node.stop());

let queues = 0;

/** A queue of its own with a worker that runs handler "work", until the test ends. */
async function working(t: TestContext, handler: Handler, options: WorkerOptions & { settings?: QueueSettings; via?: Node; wire?: Wire } = {}) {
  const { settings, via = node, wire, ...rest } = options;
  const queue = `q${++queues}`;
  const client = new Client({ addrs: [via.url], queue, logger: quiet });
  await client.putQueue(queue, settings, end());
  const worker = new Worker({ addrs: [wire?.url ?? via.url], queue, logger: quiet, ...rest }).handle("work", "1", "1", handler);
  const stop = new AbortController();
  const ended = worker.run(stop.signal);
  t.after(async () => {
    stop.abort();
    await ended.catch(() => {}); // a test that cares awaits it
    wire?.close(); // not before the worker has said all it had to say
  });
  const submit = (spec: Partial<TaskSpec> = {}) => client.submit({ handler: "work", ...spec }, end());
  const run = async (spec: Partial<TaskSpec> = {}) => client.wait((await submit(spec)).id, end());
  const wanted = async (id: string, good: (task: TaskInfo) => boolean) => {
    for (;;) {
      const task = await client.get(id, end());
      if (good(task)) return task;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  };
  return { client, worker, submit, run, wanted, stop: () => stop.abort(), ended, queue };
}

/** A handler that waits for the end of its signal, and tells of it. */
function untilAborted(andThen: () => unknown = () => undefined) {
  let began!: (task: Task) => void;
  const running = new Promise<Task>((resolve) => (began = resolve));
  let told!: (reason: unknown) => void;
  const reason = new Promise<unknown>((resolve) => (told = resolve));
  const handler: Handler = (task, signal) =>
    new Promise((resolve, reject) => {
      began(task);
      signal.addEventListener("abort", () => {
        told(signal.reason);
        try {
          resolve(andThen());
        } catch (error) {
          reject(error as Error);
        }
      });
    });
  return { handler, running, reason };
}

test("a payload reaches the handler as it was sent, and the result its reader", async (t) => {
  const payload = '{ "amount": 2.50, "big":12345678901234567890, "e": 1E5 }';
  let seen: Task | undefined;
  const { run, client } = await working(t, (task) => {
    seen = task;
    return task.payload;
  });
  const task = await run({ payload: raw(payload), concurrencyKey: "account/1", businessKey: "é/1" });
  assert.equal(task.state, "SUCCEEDED");
  assert.equal(task.payload.text, payload);
  assert.equal(task.result?.text, payload);
  assert.equal(stringify(task.result?.exact<{ amount: unknown }>().amount), "2.50");
  assert.equal(seen?.payload.text, payload);
  assert.equal(seen?.id, task.id);
  assert.equal(seen?.businessKey, "é/1");
  assert.ok(seen!.concurrencyToken! > 0n && seen!.fencingToken === seen!.concurrencyToken);
  assert.deepEqual(seen?.retry, task.retry);
  const [attempt] = await client.attempts(task.id, end());
  assert.equal(attempt?.epoch, seen?.epoch);
  assert.equal(attempt?.result?.text, payload);
});

test("what a handler says decides how the task ends", async (t) => {
  const { run } = await working(t, (task) => {
    switch (task.payload.value<string>()) {
      case "failed":
        throw failed("no_luck", new Error("really not"));
      case "again":
        if (task.attemptCount === 1) throw retryable(new Error("not yet"));
        return { attempt: task.attemptCount };
      case "bad result":
        return { x: NaN };
      default:
        throw new Error("who knows");
    }
  });
  const no = await run({ payload: "failed" });
  assert.equal(`${no.state} ${no.errorCode} ${no.result?.text}`, 'FAILED no_luck {"error":"really not"}');
  const again = await run({ payload: "again", retry: { initialDelayMs: 0, maxDelayMs: 0 } });
  assert.equal(`${again.state} ${again.result?.text}`, 'SUCCEEDED {"attempt":2}');
  const twice = await run({ payload: "x", recoverySafety: "RECONCILE_ONLY" });
  assert.equal(`${twice.state} ${twice.effectUncertain}`, "NEEDS_REVIEW true");
  const bad = await run({ payload: "bad result", recoverySafety: "RECONCILE_ONLY" });
  assert.equal(`${bad.state} ${bad.errorCode}`, "NEEDS_REVIEW bad_result");
});

test("a lease is renewed for as long as the handler runs", async (t) => {
  let renewed!: () => void;
  const enough = new Promise<void>((resolve) => (renewed = resolve));
  const { client, submit, worker } = await working(t, () => enough, { settings: { leaseDurationMs: 1000, offerDurationMs: 1000 } });
  const task = await submit();
  for (let renewals = 0; renewals < 4; ) renewals = (await client.attempts(task.id, end()))[0]?.renewals ?? 0;
  renewed();
  const done = await client.wait(task.id, end());
  assert.equal(`${done.state} ${done.attemptCount} ${worker.stats().leasesLost}`, "SUCCEEDED 1 0");
});

test("a cancellation reaches the handler, which decides", async (t) => {
  const h = untilAborted(() => {
    throw cancelled();
  });
  const { client, submit } = await working(t, h.handler);
  const task = await submit();
  await h.running;
  await client.cancel(task.id, { ...end(), note: "not needed" });
  assert.match(String(await h.reason), /cancellation was requested/);
  const done = await client.wait(task.id, end());
  assert.equal(`${done.state} ${done.effectUncertain ?? false}`, "CANCELLED false");
});

test("a cancellation while the worker is away reaches the handler when it is back", async (t) => {
  const wire = await Wire.to(node);
  const h = untilAborted(() => "finished all the same");
  const { client, submit } = await working(t, h.handler, { wire });
  const task = await submit();
  await h.running;
  wire.cut();
  await client.cancel(task.id, end());
  wire.up();
  assert.match(String(await h.reason), /cancellation was requested/);
  assert.equal((await client.wait(task.id, end())).state, "SUCCEEDED");
});

for (const [what, text] of [["a start", "task.assign"], ["a finish", '"operation":"start"']] as const) {
  test(`${what} whose answer is lost is repeated under its id and takes effect once`, async (t) => {
    const wire = await Wire.to(node);
      let runs = 0;
    const { client, submit, worker } = await working(t, () => ++runs, { wire, settings: { leaseDurationMs: 8000 } });
    while (!worker.health().connected) await new Promise((resolve) => setTimeout(resolve, 10));
    const before = wire.connections;
    wire.muteOnce(text); // what comes behind it never arrives
    const done = await client.wait((await submit({ recoverySafety: "RECONCILE_ONLY" })).id, end());
    assert.equal(`${done.state} ${done.attemptCount} ${done.result?.text} ${runs}`, "SUCCEEDED 1 1 1");
    while (worker.stats().succeeded === 0) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.ok(wire.connections > before, "the worker connected anew");
    const [attempt] = await client.attempts(done.id, end());
    const operations = attempt!.receipts.map((receipt) => receipt.operation).filter((operation) => operation !== "RENEW");
    assert.deepEqual(operations, ["START", "FINISH"]);
    assert.deepEqual(attempt!.evidence, []);
  });
}

test("a handler that outlives its lease is told in time, and its report is kept as evidence", async (t) => {
  const wire = await Wire.to(node);
  const h = untilAborted(() => ({ written: 3 }));
  const { client, submit, wanted, worker } = await working(t, h.handler, { wire, settings: { leaseDurationMs: 1000, offerDurationMs: 1000 } });
  const task = await submit({ recoverySafety: "RECONCILE_ONLY" });
  await h.running;
  wire.cut();
  const over = client.wait(task.id, end());
  assert.equal(await h.reason, leaseLost);
  assert.equal((await over).state, "NEEDS_REVIEW");
  wire.up();
  while (worker.stats().evidence === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  const [attempt] = await client.attempts(task.id, end());
  assert.equal(`${attempt?.state} ${attempt?.evidence[0]?.outcome} ${attempt?.evidence[0]?.result?.text}`, 'EXPIRED SUCCEEDED {"written":3}');
  const open = await wanted(task.id, () => true);
  assert.ok(open.effectUncertain, "evidence decides nothing");
  assert.ok(open.reviewSince !== undefined && open.decision === undefined);
  const settled = await client.review(task.id, { decision: "SUCCEEDED", note: "the evidence says so", result: parse('{"written":3.0}') }, end());
  assert.equal(`${settled.state} ${settled.result?.text}`, 'SUCCEEDED {"written":3.0}');
  const { decision } = settled;
  assert.equal(`${decision?.decision} ${decision?.note} ${decision?.at === settled.completedAt}`, "SUCCEEDED the evidence says so true");
  assert.ok((decision?.by ?? "") !== "" && settled.reviewSince === undefined);
});

test("a signal is aborted before the attempt's timeout", async (t) => {
  const h = untilAborted(() => "as far as it got");
  const { client, submit } = await working(t, h.handler);
  const task = await submit({ retry: { attemptTimeoutMs: 2000 } });
  const seen = await h.running;
  assert.ok(seen.remainingMs <= 1800, `${seen.remainingMs} ms are left`);
  assert.equal(await h.reason, leaseLost);
  const done = await client.wait(task.id, end());
  assert.equal(`${done.state} ${done.result?.text}`, 'SUCCEEDED "as far as it got"'); // there was still time to say so
});

test("a worker that stops finishes what it runs and takes nothing more", async (t) => {
  let finish!: () => void;
  const enough = new Promise<void>((resolve) => (finish = resolve));
  let began!: () => void;
  const running = new Promise<void>((resolve) => (began = resolve));
  const { client, submit, worker, stop, ended } = await working(t, () => (began(), enough.then(() => "done")));
  const first = await submit();
  await running;
  stop();
  assert.ok(worker.health().draining);
  const second = await submit();
  finish();
  await ended;
  assert.equal((await client.get(first.id, end())).state, "SUCCEEDED");
  const left = await client.get(second.id, end());
  assert.ok(left.state === "WAITING" || left.state === "LEASED", left.state);
  assert.equal(left.payload.text, "{}");
});

test("a worker that cannot wait any longer aborts its handlers and still reports", async (t) => {
  const h = untilAborted(() => {
    throw cancelled();
  });
  const { client, submit, stop, ended, wanted } = await working(t, h.handler, { drainTimeoutMs: 1 });
  const task = await submit({ retry: { initialDelayMs: 3_600_000, maxDelayMs: 3_600_000 } });
  await h.running;
  stop();
  await ended;
  assert.equal(await h.reason, workerStopped);
  const back = await wanted(task.id, (task) => task.state === "WAITING");
  assert.equal(back.waiting?.reason, "retry_backoff");
  const [attempt] = await client.attempts(task.id, end());
  assert.equal(`${attempt?.state} ${attempt?.errorCode}`, "FAILED worker_stopped");
});

test("handlers never run beyond the capacity", async (t) => {
  let running = 0;
  let most = 0;
  const { client } = await working(
    t,
    async () => {
      most = Math.max(most, ++running);
      await new Promise((resolve) => setTimeout(resolve, 5));
      running--;
    },
    { capacity: 3 },
  );
  const items = await client.submitBatch(Array.from({ length: 60 }, (_, i) => ({ handler: "work", payload: i })), end());
  for (const item of items) assert.equal((await client.wait(item.task!.id, end())).state, "SUCCEEDED");
  assert.equal(most, 3);
});

test("a worker waits for a queue that does not exist yet", async (t) => {
  const queue = `q${++queues}`;
  const worker = new Worker({ addrs: [node.url], queue, logger: quiet }).handle("work", "1", "1", () => "here");
  const stop = new AbortController();
  const ended = worker.run(stop.signal);
  t.after(() => (stop.abort(), ended));
  while (!/not_found/.test(String(worker.health().lastError))) await new Promise((resolve) => setTimeout(resolve, 10));
  const client = new Client({ addrs: [node.url], queue, logger: quiet });
  await client.putQueue(queue, {}, end());
  assert.equal((await client.wait((await client.submit({ handler: "work" }, end())).id, end())).result?.text, '"here"');
});

test("a node killed under a running handler finds the same attempt again", async (t) => {
  const own = await Node.start();
  t.after(() => own.stop());
  let finish!: () => void;
  const enough = new Promise<void>((resolve) => (finish = resolve));
  let began!: () => void;
  const running = new Promise<void>((resolve) => (began = resolve));
  let runs = 0;
  const { client, submit, worker } = await working(t, () => (runs++, began(), enough.then(() => 4711n)), { via: own });
  const task = await submit({ recoverySafety: "RECONCILE_ONLY" });
  await running;
  await own.kill();
  finish(); // nobody is there to hear it
  await own.restart();
  const done = await client.wait(task.id, end());
  assert.equal(`${done.state} ${done.attemptCount} ${done.result?.text} ${runs} ${done.effectUncertain ?? false}`, "SUCCEEDED 1 4711 1 false");
  assert.equal(worker.stats().sessions, 2);
});

test("a name that leads to another address is looked up again", async (t) => {
  const old = await Wire.to(node);
  const port = Number(new URL(old.url).port);
  const next = await Wire.to(node, "127.0.0.2", port);
  t.after(() => [old, next].forEach((wire) => wire.close()));
  let address = "127.0.0.1";
  const lookup = dns.lookup as (...args: unknown[]) => void;
  t.mock.method(dns, "lookup", (name: string, options: { all?: boolean }, answer: (...args: unknown[]) => void) => {
    if (name !== "localhost") return lookup(name, options, answer);
    if (options.all) answer(null, [{ address, family: 4 }]);
    else answer(null, address, 4);
  });
  const addrs = [`http://localhost:${port}`];
  const { run, queue } = await working(t, (task) => task.payload, { addrs });
  const client = new Client({ addrs, queue, logger: quiet });
  assert.equal((await run({ payload: 1 })).state, "SUCCEEDED");
  const { id } = await client.submit({ handler: "work", payload: 2 }, end());
  assert.equal((await client.wait(id, end())).state, "SUCCEEDED");
  assert.equal(next.connections, 0);

  address = "127.0.0.2";
  old.cut();
  assert.equal((await run({ payload: 3 })).state, "SUCCEEDED"); // by the worker, over the new one
  assert.ok(next.connections > 0);
  const again = await client.submit({ handler: "work", payload: 4 }, end());
  assert.equal((await client.wait(again.id, end())).state, "SUCCEEDED");
});

test("mistakes in the program are said at once", async () => {
  const worker = new Worker();
  assert.throws(() => new Worker({ capacity: 0 }), /1 to 256/);
  assert.throws(() => new Worker({ addrs: ["127.0.0.1:7400"] }), /http:\/\/host:port/);
  assert.throws(() => worker.handle("no spaces", "1", "1", () => {}), /a letter or digit/);
  worker.handle("work", "1", "1", () => {});
  assert.throws(() => worker.handle("work", "1", "1", () => {}), /twice/);
  await assert.rejects(new Worker().run(AbortSignal.abort()), /call handle before run/);
});
