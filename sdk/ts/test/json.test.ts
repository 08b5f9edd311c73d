import assert from "node:assert/strict";
import { test } from "node:test";
import { businessJson, check, elements, JsonNumber, members, parse, raw, stringify } from "../src/json.js";

test("numbers keep their text on the way through a program", () => {
  for (const text of ['{"a":2.50,"b":12345678901234567890,"c":[1E5,-0,1e-7,0.1]}', "1e308", "-12.0", '"2.50"', "[]", "{}", "true", '{"__proto__":1.0}']) {
    assert.equal(stringify(parse(text)), text);
  }
});

test("a number is a JavaScript number only where that has the same text", () => {
  assert.deepEqual(parse("[1,-2.5,1e+21]"), [1, -2.5, 1e21]);
  for (const text of ["2.50", "9007199254740993", "1E5", "-0"]) {
    const number = parse(text);
    assert.ok(number instanceof JsonNumber, text);
    assert.equal(number.text, text);
    assert.equal(+number, Number(text));
  }
  assert.equal(new JsonNumber("12345678901234567890").toBigInt(), 12345678901234567890n);
});

test("what is not JSON by the cluster's rules is refused", () => {
  const bad = ["", "{", '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "[1,]", '{"a":1,}', "01", "+1", ".5", "1.", "1e400", "9".repeat(65), "NaN", "nul", '"\\ud800"', '"\ud800"', '"a\nb"', "1 2", "'a'", "{a:1}", "[", '"', '"\\', "\ufeff1", "[".repeat(65) + "]".repeat(65)];
  for (const text of bad) assert.throws(() => check(text), SyntaxError, JSON.stringify(text));
  check("[".repeat(64) + "]".repeat(64));
  check(' {"a" : [ 1 , "\\ud83d\\ude00" ] }\n');
});

test("whatever JSON.parse reads the same way is read so", () => {
  // Texts made by rule and then damaged, the same in every run.
  let seed = 1;
  const random = (n: number) => (seed = (seed * 48271) % 2147483647) % n;
  const make = (depth: number): string => {
    switch (random(depth > 3 ? 4 : 6)) {
      case 0:
        return ["0", "-1", "2.5", "1e3", "true", "false", "null"][random(7)]!;
      case 1:
        return ['"a"', '""', '"\\n"', '"é"', '"\\u00e9"', '" "'][random(6)]!;
      case 2:
        return String(random(1e9));
      case 3:
        return [" 1", "1 ", "\t2"][random(3)]!;
      case 4:
        return `[${Array.from({ length: random(4) }, () => make(depth + 1)).join(",")}]`;
      default:
        return `{${Array.from({ length: random(4) }, (_, i) => `"${i}":${make(depth + 1)}`).join(", ")}}`;
    }
  };
  let good = 0;
  const rounds = 4_000;
  for (let i = 0; i < rounds; i++) {
    let text = make(0);
    if (random(2) === 0) {
      const at = random(text.length + 1);
      text = text.slice(0, at) + ["", ",", "}", '"', "0", "\\", "]", ":"][random(8)] + text.slice(at + random(2));
    }
    let want: string | undefined;
    try {
      want = JSON.stringify(JSON.parse(text));
    } catch {
      want = undefined;
    }
    let got: string | undefined;
    try {
      got = JSON.stringify(JSON.parse(stringify(parse(text))));
    } catch (error) {
      assert.ok(error instanceof SyntaxError, String(error));
    }
    // Only a name twice in an object is stricter here.
    if (want === undefined || got !== undefined) assert.equal(got, want, text);
    else assert.throws(() => parse(text), /more than once/, text);
    if (want !== undefined) good++;
  }
  assert.ok(good > rounds / 3 && good < rounds, `${good} of ${rounds} texts were good`);
});

test("values become the JSON that JSON.stringify makes of them, and more", () => {
  const when = new Date(0);
  const plain = { a: [1, undefined, null, , "x"], b: undefined, c: () => 1, d: { e: when }, f: "\u2028é\n", g: new Number(2), h: -1e21 };
  assert.equal(stringify(plain), JSON.stringify(plain));
  assert.equal(stringify({ big: 12345678901234567890n, text: raw(' [ 2.50 ] '), number: new JsonNumber("1.0") }), '{"big":12345678901234567890,"text": [ 2.50 ] ,"number":1.0}');
  const self: unknown[] = [];
  self.push(self);
  for (const bad of [NaN, Infinity, "\ud800", { "\udc00": 1 }, self]) assert.throws(() => stringify(bad), TypeError);
});

test("nothing becomes an empty object, and what the cluster would not keep is refused", () => {
  for (const nothing of [undefined, null, raw(" null ")]) assert.equal(businessJson(nothing).text, "{}");
  assert.equal(businessJson(raw('{ "a": 2.50 }')).text, '{ "a": 2.50 }');
  assert.throws(() => businessJson("x".repeat(256 << 10)), RangeError);
  assert.throws(() => businessJson("é".repeat(128 << 10)), RangeError);
  assert.throws(() => businessJson(parse("[".repeat(63) + "]".repeat(63))), SyntaxError);
});

test("the texts of members and elements are taken as they stand", () => {
  assert.deepEqual([...members('{ "a" : {"b":[1,"}"]} ,"\\u0063": 2.50 , "d":"\\"," }')], [["a", '{"b":[1,"}"]}'], ["c", "2.50"], ["d", '"\\","']]);
  assert.deepEqual(elements('[ 1.0 , [2,"]"], {"a":"\\\\"} ]'), ["1.0", '[2,"]"]', '{"a":"\\\\"}']);
  assert.deepEqual(elements(" [ ] "), []);
});
