import assert from "node:assert/strict";
import { test } from "node:test";
import { millisOf } from "../src/frames.js";
import { LeaseBelief } from "../src/lease.js";

const lease = (ms: number) => ({ active: true, state: "RUNNING", leaseUntilMs: 5_000_000 + ms, serverTimeMs: 5_000_000, cancelRequested: false });

test("a lease is counted from the moment the request left, less a margin", () => {
  const belief = new LeaseBelief(Infinity);
  belief.learn(lease(10_000), 100);
  assert.equal(belief.until, 100 + 10_000 - 1_000);
  assert.ok(belief.renew >= 100 + 10_000 / 3 && belief.renew <= 100 + 10_000 / 2, String(belief.renew));
  belief.learn(lease(60_000), 100);
  assert.equal(belief.until, 100 + 60_000 - 2_000); // the margin has an end
});

test("an older answer never shortens a lease, and nothing lengthens it past the limit", () => {
  const belief = new LeaseBelief(20_000);
  belief.learn(lease(10_000), 5_000);
  belief.learn(lease(10_000), 1_000);
  assert.equal(belief.until, 14_000);
  belief.learn(lease(60_000), 6_000);
  assert.equal(belief.until, 20_000);
});

test("a lease that is over gives no right, and renewals have a brake", () => {
  const belief = new LeaseBelief(Infinity);
  belief.learn(lease(-5), 1_000);
  assert.ok(belief.until < 1_000 && belief.renew >= 1_200);
});

test("times keep their microseconds", () => {
  assert.equal(millisOf("2026-01-02T03:04:05.000250Z") - millisOf("2026-01-02T03:04:05Z"), 0.25);
  for (const bad of ["2026-01-02", "2026-13-02T03:04:05Z", "2026-01-02T03:04:05+01:00", "2026-01-02T03:04:05.1234567Z"]) assert.throws(() => millisOf(bad), bad);
});
