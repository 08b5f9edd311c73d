import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { createInterface } from "node:readline";
import { after, before, test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { CallAborted, Client, PulseError, raw, type TaskInfo } from "../src/index.js";
import { Api } from "../src/api.js";
import { Node, Wire } from "./node.js";

const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const end = () => ({ signal: AbortSignal.timeout(60_000) });

let node: Node;
let client: Client;
before(async () => {
  node = await Node.start();
  client = new Client({ addrs: [node.url], logger: quiet });
});
after(() => node.stop());

test("a task is submitted, waited for and read back", async () => {
  const task = await client.submit({ handler: "echo", payload: { hi: 1.5 }, priority: 7, retry: { maxAttempts: 2 } }, end());
  const done = await client.wait(task.id, end());
  assert.equal(`${done.state} ${done.result?.text} ${done.priority} ${done.retry.maxAttempts}`, 'SUCCEEDED {"hi":1.5} 7 2');
  assert.ok(done.revision > task.revision && typeof done.revision === "bigint");
  assert.deepEqual(await client.get(task.id, { ...end(), stale: true }), done);
});

test("a business key is one task, and other content under it is refused", async () => {
  const first = await client.submit({ handler: "echo", payload: raw("2.50"), businessKey: "order/1" }, end());
  const again = await client.submit({ handler: "echo", payload: raw("2.50"), businessKey: "order/1" }, end());
  assert.equal(`${again.id} ${again.duplicate}`, `${first.id} true`);
  await assert.rejects(client.submit({ handler: "echo", payload: raw("2.5"), businessKey: "order/1" }, end()), (error: PulseError) => {
    assert.equal(`${error.code} ${error.status} ${error.existingTaskId}`, `conflict 409 ${first.id}`);
    return true;
  });
});

test("a remembered answer says so, and a task says who decided about it", async () => {
  const options = { ...end(), idempotencyKey: "once" };
  const spec = { handler: "nobody", payload: raw("2.50"), concurrencyKey: "account/1" };
  const first = await client.submit(spec, options);
  const again = await client.submit(spec, options);
  assert.equal(`${first.replayed} ${again.replayed} ${again.id === first.id}`, "undefined true true");
  const gone = await client.cancel(first.id, { ...options, idempotencyKey: "gone", note: "the order was withdrawn" });
  assert.equal(`${gone.state} ${gone.replayed} ${gone.decision?.decision} ${gone.decision?.note}`, "CANCELLED undefined CANCEL the order was withdrawn");
  assert.equal((await client.cancel(first.id, { ...options, idempotencyKey: "gone", note: "the order was withdrawn" })).replayed, true);
  assert.deepEqual((await client.get(first.id, end())).decision, gone.decision);
});

test("a request that breaks a rule names the place", async () => {
  await assert.rejects(client.submit({ handler: "echo", priority: 11 }, end()), (error: PulseError) => {
    assert.equal(error.code, "invalid_argument");
    assert.equal(error.violations[0]?.path, "/priority");
    assert.ok(error.message.includes("/priority"));
    return true;
  });
});

test("a batch says what became of each task", async () => {
  const specs = Array.from({ length: 1003 }, (_, i) => ({ handler: "echo", payload: i, priority: i === 5 ? 99 : 0 }));
  const items = await client.submitBatch(specs, { ...end(), idempotencyKey: "batch-1" });
  assert.equal(items.length, 1003);
  assert.equal(items[5]?.error?.code, "invalid_argument");
  const again = await client.submitBatch(specs, { ...end(), idempotencyKey: "batch-1" });
  assert.deepEqual(again.map((item) => item.task?.id), items.map((item) => item.task?.id));
});

test("lists come page by page, newest first", async () => {
  await client.putQueue("listed", { paused: true }, end());
  const ids: string[] = [];
  for (let i = 0; i < 250; i++) ids.push((await client.submit({ queue: "listed", handler: "echo", payload: i, availableAt: new Date(Date.now() + (i % 2) * 3_600_000) }, end())).id);
  const seen: TaskInfo[] = [];
  for await (const task of client.list({ queue: "listed" }, end())) seen.push(task);
  assert.deepEqual(seen.map((task) => task.id), ids.reverse());
  const delayed: TaskInfo[] = [];
  for await (const task of client.list({ queue: "listed", waitingReason: "delayed", state: ["WAITING", "LEASED"] }, end())) delayed.push(task);
  assert.equal(delayed.length, 125);
  assert.equal(delayed[0]?.waiting?.reason, "delayed");
  const queue = await client.resumeQueue("listed", end());
  assert.equal(queue.paused ?? false, false);
});

test("a schedule is set, looked after and forgotten", async () => {
  const task = { handler: "echo", payload: raw('{"of":2.50}'), retry: { maxAttempts: 2 } };
  const times = await client.previewSchedule({ cron: "30 2 29 2 *", timeZone: "Asia/Kathmandu" }, { ...end(), limit: 2 });
  assert.deepEqual(times.map((t) => t.slice(4)), ["-02-28T20:45:00Z", "-02-28T20:45:00Z"]);
  const made = await client.putSchedule("leap", { cron: "30 2 29 2 *", timeZone: "Asia/Kathmandu", maxFires: 3, jitterMs: 5000, overlap: "buffer_one", task }, end());
  assert.equal(`${made.state} ${made.revision} ${made.maxFires} ${made.jitterMs} ${made.overlap} ${made.task.queue} ${made.task.payload?.text}`, 'active 1 3 5000 buffer_one default {"of":2.50}');
  await assert.rejects(client.putSchedule("leap", { everyMs: 3_600_000, task }, { ...end(), expectedRevision: 9n }), (error: PulseError) => error.code === "revision_conflict");

  const run = await client.triggerSchedule("leap", { ...end(), note: "a first try" });
  assert.equal((await client.wait(run.id, end())).result?.text, '{"of":2.50}');
  const paused = await client.pauseSchedule("leap", { ...end(), note: "grüße" });
  assert.equal(`${paused.state} ${paused.nextAt}`, "paused undefined");
  const resumed = await client.resumeSchedule("leap", end());
  assert.equal(`${resumed.state} ${resumed.nextAt === times[0]}`, "active true");
  const read = await client.getSchedule("leap", { ...end(), upcoming: 2 });
  assert.deepEqual(read.upcoming, times);
  assert.equal(`${read.ordered} ${read.fired} ${read.recent[0]?.outcome} ${read.recent[0]?.taskId === run.id}`, "1 0 triggered true");

  await client.putSchedule("hourly", { everyMs: 3_600_000, paused: true, task: { ...task, deadlineMs: 60_000 } }, end());
  const range = { from: new Date(Date.now() - 3 * 3_600_000), until: new Date(Date.now() - 1000) };
  const would = await client.backfillSchedule("hourly", { ...range, dryRun: true }, end());
  const did = await client.backfillSchedule("hourly", range, end());
  const again = await client.backfillSchedule("hourly", range, end());
  assert.equal(`${would.dryRun} ${would.missing} ${would.submitted} ${did.submitted} ${again.missing} ${again.submitted}`, `true ${did.times} 0 ${did.times} 0 0`);
  assert.deepEqual(again.results.map((one) => [one.taskId, one.existed]), did.results.map((one) => [one.taskId, true]));

  const names: string[] = [];
  for await (const schedule of client.listSchedules(end())) names.push(`${schedule.name} ${schedule.task.payload?.text} ${schedule.ordered}`);
  assert.deepEqual(names, [`hourly undefined ${did.times}`, "leap undefined 1"]);
  for (const name of ["hourly", "leap"]) await client.deleteSchedule(name, { ...end(), note: "done with it" });
  await assert.rejects(client.getSchedule("leap", end()), (error: PulseError) => error.status === 404);

  const audit = await client.call<{ changes: { action: string; target: string; note?: string }[] }>("GET", "/v1/audit?action=pulse.schedule.", undefined, end());
  const why = Object.fromEntries(audit.changes.filter((c) => c.target === "leap").map((c) => [c.action, c.note]));
  assert.deepEqual(why, { "pulse.schedule.Delete": "done with it", "pulse.schedule.Resume": undefined, "pulse.schedule.Pause": "grüße", "pulse.schedule.Trigger": "a first try", "pulse.schedule.Put": undefined });
});

test("a watch sees each change once, over a broken connection", async () => {
  const wire = await Wire.to(node);
  const watcher = new Client({ addrs: [wire.url], logger: quiet });
  const task = await client.submit({ handler: "sleep", payload: { ms: 300 } }, end());
  const types: string[] = [];
  for await (const event of watcher.watch(task.id, end())) {
    types.push(event.state);
    assert.equal(event.taskId, task.id);
    wire.cut();
    wire.up();
  }
  assert.deepEqual(types, ["WAITING", "LEASED", "RUNNING", "SUCCEEDED"]);
  wire.close();
});

test("a watch of everything begins where it is told to", async () => {
  const stop = new AbortController();
  const first = await client.submit({ handler: "echo", businessKey: "watched/1" }, end());
  let after = "";
  for await (const event of client.watch(first.id, end())) after = event.id;
  const second = await client.submit({ handler: "echo", businessKey: "watched/2" }, end());
  await client.wait(second.id, end());
  const states: string[] = [];
  for await (const event of client.watchAll(after, { signal: stop.signal })) {
    if (event.taskId === second.id) states.push(event.state);
    if (event.state === "SUCCEEDED" && event.taskId === second.id) break;
  }
  assert.deepEqual(states, ["WAITING", "LEASED", "RUNNING", "SUCCEEDED"]);
});

test("a call outlasts a cluster that is away, and ends with its signal", async () => {
  const own = await Node.start();
  const patient = new Client({ addrs: [own.url], logger: quiet });
  await own.kill();
  await assert.rejects(patient.submit({ handler: "echo" }, { signal: AbortSignal.timeout(300) }), (error: CallAborted) => {
    assert.ok(error instanceof CallAborted);
    assert.equal((error.reason as Error).name, "TimeoutError");
    assert.match(String(error.cause), /ECONNREFUSED/);
    return true;
  });
  const submitted = patient.submit({ handler: "echo" }, end());
  await own.restart();
  assert.equal((await patient.wait((await submitted).id, end())).state, "SUCCEEDED");
  await own.stop();
});

test("a paused node is left long before the call's own limit", async () => {
  const asked: number[] = [];
  let silent = -1;
  const servers = [0, 1].map((n) =>
    createServer((request, response) => {
      if (request.url !== "/healthz") asked.push(n);
      if (silent < 0) silent = n; // the first that is asked
      if (n !== silent) response.end("{}");
    }),
  );
  try {
    const addrs = await Promise.all(
      servers.map(async (server) => {
        await once(server.listen(0, "127.0.0.1"), "listening");
        return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
      }),
    );
    const api = new Api({ addrs, logger: quiet });
    assert.equal(await api.call({ method: "GET", path: "/v1/namespaces", tryMs: 600_000 }, AbortSignal.timeout(60_000)), "{}");
    assert.deepEqual(asked, [silent, 1 - silent]);
  } finally {
    for (const server of servers) {
      server.closeAllConnections();
      server.close();
    }
  }
});

test("a request is repeated under one key, and what a proxy says is no answer of the cluster", async () => {
  const keys: (string | undefined)[] = [];
  const proxy = createServer((request, answer) => {
    keys.push(request.headers["idempotency-key"] as string | undefined);
    if (keys.length < 3) return void answer.writeHead(keys.length === 1 ? 502 : 503, { "Retry-After": "0" }).end("<html>no upstream</html>");
    answer.writeHead(keys.length === 3 ? 404 : 500).end("gone");
  });
  proxy.listen(0, "127.0.0.1");
  await once(proxy, "listening");
  const lost = new Client({ addrs: [`http://127.0.0.1:${(proxy.address() as AddressInfo).port}`], logger: quiet });
  await assert.rejects(lost.submit({ handler: "echo" }, end()), (error: PulseError) => error.code === "not_found" && error.status === 404);
  assert.equal(keys.length, 3);
  assert.ok(keys[0] !== undefined && keys.every((key) => key === keys[0]));
  proxy.close();
  proxy.closeAllConnections();
});

type Try = string | null | string[]; // the code of a refusal, no answer, or those of its items

/** A server that answers with one try after another, and with no_leader when they are used up. */
async function scripted(t: TestContext, tries: Try[]): Promise<{ client: Client; signal: AbortSignal }> {
  const planned = tries.length;
  const enough = new AbortController(); // aborted once a try beyond them has been answered
  const debug = (_: string, more?: Record<string, unknown>) => void (Number(more?.["tries"]) > planned && enough.abort(new Error("enough")));
  const infos = { conflict: 409, invalid_argument: 400, result_unknown: 504 } as Record<string, number>;
  const problem = (code: string) => ({ status: infos[code] ?? 503, code, detail: "by the test", retryable: !["conflict", "invalid_argument"].includes(code) });
  const server = createServer((request, answer) => {
    request.resume();
    const next = tries.length > 0 ? tries.shift()! : "no_leader";
    if (next === null) return void request.socket.destroy();
    if (typeof next === "string") return void answer.writeHead(problem(next).status).end(JSON.stringify(problem(next)));
    answer.end(JSON.stringify({ results: next.map((code) => (code === "" ? { id: "ab", state: "WAITING" } : { error: problem(code) })) }));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  t.after(() => (server.closeAllConnections(), server.close()));
  const addrs = [`http://127.0.0.1:${(server.address() as AddressInfo).port}`];
  return { client: new Client({ addrs, logger: { ...quiet, debug } }), signal: enough.signal };
}

test("a refusal does not hide a try whose answer was lost", async (t) => {
  for (const [first, code] of [
    [null, "result_unknown"],
    ["unavailable", "no_leader"],
  ] as const) {
    const { client, signal } = await scripted(t, [first]);
    await assert.rejects(client.cancel("ab", { signal }), (error: CallAborted) => (error.cause as PulseError).code === code);
  }
});

test("an item of a batch does not hide a try whose answer was lost", async (t) => {
  const mixed = ["", "unavailable", "conflict", "invalid_argument"];
  const cases: [string, Try[], string[]][] = [
    ["no try was lost", [mixed], mixed],
    ["one before was lost", [null, mixed], ["", "result_unknown", "conflict", "invalid_argument"]],
    ["one since was lost", [mixed, null], ["", "result_unknown", "result_unknown", "invalid_argument"]],
    ["one before was unknown", [["result_unknown", "queue_full"], ["no_leader", "no_leader"]], ["result_unknown", "no_leader"]],
    ["one was taken after all", [["result_unknown", "queue_full"], ["", "no_leader"]], ["", "no_leader"]],
  ];
  for (const [name, tries, want] of cases) {
    const { client, signal } = await scripted(t, tries);
    const items = await client.submitBatch(want.map(() => ({ handler: "echo" })), { signal });
    assert.deepEqual(items.map((item) => item.error?.code ?? ""), want, name);
  }
});

test("the example runs, and its process ends by itself when it is told to stop", async () => {
  await client.putQueue("example", {}, end());
  const script = fileURLToPath(new URL("../example/resize.js", import.meta.url));
  const example = spawn(process.execPath, [script], { env: { ...process.env, PULSE_ADDR: node.url, PULSE_QUEUE: "example" }, stdio: ["ignore", "pipe", "inherit"] });
  const gone = once(example, "exit");
  const lines = createInterface({ input: example.stdout });
  assert.match(String((await once(lines, "line"))[0]), /SUCCEEDED {"resized":17,"price":12\.50}/);
  example.kill("SIGTERM");
  assert.deepEqual(await gone, [0, null]);
});
