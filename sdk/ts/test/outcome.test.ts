import assert from "node:assert/strict";
import { test } from "node:test";
import type { RecoverySafety } from "../src/index.js";
import { cancelled, cancelRequested, conclude, failed, leaseLost, retryable, unknown, workerStopped } from "../src/outcome.js";

const plain = new Error("no luck");
const aborted = Object.assign(new Error("The operation was aborted"), { name: "AbortError" });

// outcome, retryable, code; for an idempotent task and for any other.
const table: { name: string; stop?: unknown; thrown: unknown; idempotent: string; reconcile: string }[] = [
  { name: "retryable", thrown: retryable(plain), idempotent: "FAILED again handler_error", reconcile: "FAILED again handler_error" },
  { name: "failed", thrown: failed("bad_payload", plain), idempotent: "FAILED bad_payload", reconcile: "FAILED bad_payload" },
  { name: "retryable failed", thrown: retryable(failed("busy", plain)), idempotent: "FAILED again busy", reconcile: "FAILED again busy" },
  { name: "wrapped", thrown: new Error("outer", { cause: failed("busy", plain) }), idempotent: "FAILED busy", reconcile: "FAILED busy" },
  { name: "a code that is none", thrown: failed("no code", plain), idempotent: "FAILED handler_error", reconcile: "FAILED handler_error" },
  { name: "unknown", thrown: unknown(plain), idempotent: "UNKNOWN handler_error", reconcile: "UNKNOWN handler_error" },
  { name: "an error", thrown: plain, idempotent: "FAILED again handler_error", reconcile: "UNKNOWN handler_error" },
  { name: "no error at all", thrown: "just text", idempotent: "FAILED again handler_error", reconcile: "UNKNOWN handler_error" },
  { name: "nothing", thrown: undefined, idempotent: "FAILED again handler_error", reconcile: "UNKNOWN handler_error" },
  { name: "cancelled", stop: cancelRequested, thrown: cancelled(), idempotent: "CANCELLED cancelled", reconcile: "CANCELLED cancelled" },
  { name: "cancelled by a lost lease", stop: leaseLost, thrown: cancelled(), idempotent: "FAILED again lease_lost", reconcile: "FAILED again lease_lost" },
  { name: "cancelled by a stopping worker", stop: workerStopped, thrown: cancelled(), idempotent: "FAILED again worker_stopped", reconcile: "FAILED again worker_stopped" },
  { name: "the signal's reason", stop: cancelRequested, thrown: cancelRequested, idempotent: "CANCELLED cancelled", reconcile: "UNKNOWN handler_error" },
  { name: "an AbortError", stop: cancelRequested, thrown: aborted, idempotent: "CANCELLED cancelled", reconcile: "UNKNOWN handler_error" },
  { name: "an AbortError of a lost lease", stop: leaseLost, thrown: aborted, idempotent: "FAILED again lease_lost", reconcile: "UNKNOWN lease_lost" },
  { name: "another error after a request", stop: cancelRequested, thrown: plain, idempotent: "FAILED again handler_error", reconcile: "UNKNOWN handler_error" },
];

for (const row of table) {
  test(`a handler that throws: ${row.name}`, () => {
    for (const safety of ["IDEMPOTENT", "RECONCILE_ONLY"] as RecoverySafety[]) {
      const f = conclude(safety, row.stop, { thrown: row.thrown });
      assert.equal([f.outcome, ...(f.retryable ? ["again"] : []), f.error_code].join(" "), safety === "IDEMPOTENT" ? row.idempotent : row.reconcile);
      assert.ok(!f.retryable || f.outcome === "FAILED", "the schema allows retryable with FAILED alone");
    }
  });
}

test("a result is kept, and one that cannot be leaves the outcome unknown", () => {
  assert.deepEqual(conclude("IDEMPOTENT", undefined, { value: undefined }), { outcome: "SUCCEEDED", retryable: false, error_code: "", result: conclude("IDEMPOTENT", undefined, { value: {} }).result });
  const bad = conclude("IDEMPOTENT", undefined, { value: NaN });
  assert.equal(`${bad.outcome} ${bad.error_code}`, "UNKNOWN bad_result");
  assert.equal(conclude("IDEMPOTENT", undefined, { thrown: failed("x", plain, { seen: 2 }) }).result.text, '{"seen":2}');
  assert.equal(conclude("IDEMPOTENT", undefined, { thrown: failed("x", plain, { seen: NaN }) }).result.text, '{"error":"no luck"}');
});

test("the text of an error is cut so that it stays text", () => {
  const f = conclude("IDEMPOTENT", undefined, { thrown: new Error("x".repeat(4095) + "😀") });
  const { error } = JSON.parse(f.result.text) as { error: string };
  assert.equal(error, "x".repeat(4095) + "\ufffd");
});
