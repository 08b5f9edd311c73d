import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

test("programs on pages compile", () => {
  const dir = join(root, "dist", "pages");
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(dir, { recursive: true });
  let programs = 0;
  for (const page of ["README.md", "../../docs/workers.md"]) {
    for (const [, program] of readFileSync(join(root, page), "utf8").matchAll(/```ts\n(.*?)```/gs)) {
      writeFileSync(join(dir, `${programs++}.ts`), program!);
    }
  }
  assert.ok(programs >= 3, `only ${programs} programs were found`);
  const config = { extends: "../../tsconfig.json", compilerOptions: { noEmit: true, rootDir: root, paths: { "pulse-sdk": ["../../src/index.ts"] }, typeRoots: ["../../node_modules/@types"] }, include: ["."], exclude: [] };
  writeFileSync(join(dir, "tsconfig.json"), JSON.stringify(config));
  writeFileSync(join(dir, "package.json"), '{"type":"module"}');
  const tsc = spawnSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", dir], { encoding: "utf8" });
  assert.equal(tsc.stdout + tsc.stderr, "");
  assert.equal(tsc.status, 0);
});
