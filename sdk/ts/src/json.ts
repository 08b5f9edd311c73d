/**
 * JSON whose numbers keep their text.
 *
 * Pulse stores and delivers payloads and results as the very bytes that were
 * sent, so `2.50` stays `2.50` and `12345678901234567890` loses no digit. A
 * JavaScript number cannot promise either. So here JSON is text first: `parse`
 * reads a number that a JavaScript number would not give back as a `JsonNumber`,
 * `stringify` writes it as it was, and `RawJson` is text that is sent untouched.
 *
 * The rules are those of the cluster, which refuses what breaks them: no name
 * twice in an object, no half of a surrogate pair, numbers of at most 64
 * characters in the range of a double, at most 64 containers inside each other.
 */

const depthMax = 64;
const numberCharsMax = 64;

/** A number by its text, as `parse` makes it where a JavaScript number would change it. */
export class JsonNumber {
  constructor(readonly text: string) {
    if (!/^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$/.test(text) || text.length > numberCharsMax || !Number.isFinite(Number(text))) {
      throw new SyntaxError(`not a JSON number that the cluster keeps: ${text.slice(0, 80)}`);
    }
  }
  /** The nearest double, so that `n * 2` works, with the digits a double has. */
  valueOf(): number {
    return Number(this.text);
  }
  toString(): string {
    return this.text;
  }
  /** The exact integer. Throws on a fraction or an exponent. */
  toBigInt(): bigint {
    return BigInt(this.text);
  }
}

/** JSON by its text: what the cluster delivers, and what is sent as it is. */
export class RawJson {
  constructor(readonly text: string) {}
  /** The value with JavaScript numbers, which have 15 to 17 digits and forget how they were written. */
  value<T = unknown>(): T {
    return JSON.parse(this.text) as T;
  }
  /** The value with a JsonNumber wherever a JavaScript number would change the text. */
  exact<T = unknown>(): T {
    return parse(this.text) as T;
  }
  toString(): string {
    return this.text;
  }
}

/** Text to send as it is, e.g. a payload on its way through. Throws if it is no JSON by the rules. */
export function raw(text: string): RawJson {
  check(text);
  return new RawJson(text);
}

/**
 * Reads JSON by the rules above. A number becomes a number if that has the same
 * text, and a JsonNumber otherwise.
 */
export function parse(text: string): unknown {
  return new Reader(text).document();
}

/** Throws a SyntaxError unless the text is JSON by the rules. */
export function check(text: string, depth = depthMax): void {
  new Reader(text, depth).document();
}

/**
 * Writes JSON like JSON.stringify, and a JsonNumber, a bigint and RawJson as
 * what they stand for. Throws on what JSON cannot say: NaN, infinities, cycles.
 */
export function stringify(value: unknown): string {
  return write(value, []) ?? "null";
}

/** The texts of the members of an object, unread. The text has to be good JSON already. */
export function members(text: string): Map<string, string> {
  return new Reader(text).members();
}

/** The texts of the elements of an array, unread. The text has to be good JSON already. */
export function elements(text: string): string[] {
  return new Reader(text).elements();
}

class Reader {
  private at = 0;

  constructor(
    private readonly text: string,
    private readonly deepest = depthMax,
  ) {}

  document(): unknown {
    const value = this.value(1);
    this.blank();
    if (this.at < this.text.length) this.fail("must end after one value");
    return value;
  }

  members(): Map<string, string> {
    const found = new Map<string, string>();
    this.open("{", "}", () => {
      const name = this.name();
      found.set(name, this.spanned());
    });
    return found;
  }

  elements(): string[] {
    const found: string[] = [];
    this.open("[", "]", () => found.push(this.spanned()));
    return found;
  }

  private fail(why: string): never {
    throw new SyntaxError(`the JSON text breaks a rule at character ${this.at}: ${why}`);
  }

  private blank(): void {
    for (;;) {
      const c = this.text.charCodeAt(this.at);
      if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return;
      this.at++;
    }
  }

  /** Reads a container: what is between its brackets, one by one. */
  private open(first: string, last: string, one: () => void): void {
    this.blank();
    if (this.text[this.at] !== first) this.fail(`must begin with ${first}`);
    this.at++;
    this.blank();
    if (this.text[this.at] === last) {
      this.at++;
      return;
    }
    for (;;) {
      one();
      this.blank();
      const next = this.text[this.at];
      if (next === undefined) this.fail(`must end with ${last}`);
      this.at++;
      if (next === last) return;
      if (next !== ",") {
        this.at--;
        this.fail("must be followed by a comma or the end of its container");
      }
    }
  }

  private name(): string {
    this.blank();
    if (this.text[this.at] !== '"') this.fail("a name must be a string");
    const name = this.string();
    this.blank();
    if (this.text[this.at] !== ":") this.fail("a name must be followed by a colon");
    this.at++;
    return name;
  }

  /** The text of the value that comes next. */
  private spanned(): string {
    this.blank();
    const start = this.at;
    for (let depth = 0; ; this.at++) {
      switch (this.text[this.at]) {
        case undefined:
          return this.text.slice(start);
        case '"':
          this.skipString();
          break;
        case "{":
        case "[":
          depth++;
          break;
        case "}":
        case "]":
        case ",":
          if (depth === 0) return this.text.slice(start, this.at).trimEnd();
          if (this.text[this.at] !== ",") depth--;
      }
    }
  }

  private skipString(): void {
    for (this.at++; this.text[this.at] !== '"' && this.at < this.text.length; this.at++) {
      if (this.text[this.at] === "\\") this.at++;
    }
  }

  private value(depth: number): unknown {
    this.blank();
    switch (this.text[this.at]) {
      case "{":
        return this.object(depth);
      case "[": {
        if (depth > this.deepest) this.fail("is nested too deeply");
        const list: unknown[] = [];
        this.open("[", "]", () => list.push(this.value(depth + 1)));
        return list;
      }
      case '"':
        return this.string();
      case "t":
        return this.word("true", true);
      case "f":
        return this.word("false", false);
      case "n":
        return this.word("null", null);
      default:
        return this.number();
    }
  }

  private object(depth: number): unknown {
    if (depth > this.deepest) this.fail("is nested too deeply");
    const found: Record<string, unknown> = {};
    this.open("{", "}", () => {
      const name = this.name();
      if (Object.hasOwn(found, name)) this.fail(`the name ${JSON.stringify(name)} appears more than once in its object`);
      const value = this.value(depth + 1);
      // Not an assignment: "__proto__" is a name like any other.
      Object.defineProperty(found, name, { value, enumerable: true, configurable: true, writable: true });
    });
    return found;
  }

  private word<T>(text: string, value: T): T {
    if (!this.text.startsWith(text, this.at)) this.fail("must be a JSON value");
    this.at += text.length;
    return value;
  }

  private string(): string {
    const start = this.at;
    this.skipString();
    this.at++;
    if (this.at > this.text.length) this.fail("a string must end with a quote");
    let value: string;
    try {
      value = JSON.parse(this.text.slice(start, this.at)) as string;
    } catch {
      this.at = start;
      this.fail("is not a JSON string");
    }
    if (hasLoneSurrogate(value)) this.fail("contains half of a surrogate pair");
    return value;
  }

  private number(): number | JsonNumber {
    const pattern = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
    pattern.lastIndex = this.at;
    const text = pattern.exec(this.text)?.[0];
    if (text === undefined) this.fail("must be a JSON value");
    if (text.length > numberCharsMax) this.fail("a number must have at most 64 characters");
    const value = Number(text);
    if (!Number.isFinite(value)) this.fail("a number must be in the range of an IEEE 754 double");
    this.at += text.length;
    return String(value) === text ? value : new JsonNumber(text);
  }
}

export function hasLoneSurrogate(text: string): boolean {
  return /\p{Surrogate}/u.test(text);
}

/** The text of a value, or undefined for what JSON leaves out. */
function write(given: unknown, around: object[]): string | undefined {
  let value = given;
  if (value instanceof RawJson || value instanceof JsonNumber) return value.text;
  if (typeof value === "object" && value !== null && typeof (value as { toJSON?: unknown }).toJSON === "function") {
    value = (value as { toJSON(): unknown }).toJSON();
    if (value instanceof RawJson || value instanceof JsonNumber) return value.text;
  }
  switch (typeof value) {
    case "bigint":
      return value.toString();
    case "number":
      if (!Number.isFinite(value)) throw new TypeError(`JSON has no ${value}`);
      return Object.is(value, -0) ? "-0" : String(value);
    case "string":
      if (hasLoneSurrogate(value)) throw new TypeError("a string with half of a surrogate pair has no UTF-8");
      return JSON.stringify(value);
    case "boolean":
      return String(value);
    case "object":
      break;
    default:
      return undefined;
  }
  if (value === null) return "null";
  if (value instanceof Number || value instanceof String || value instanceof Boolean) return write(value.valueOf(), around);
  if (around.includes(value)) throw new TypeError("a value that contains itself has no JSON");
  const inside = [...around, value];
  if (Array.isArray(value)) return `[${Array.from(value, (element) => write(element, inside) ?? "null").join(",")}]`;
  const parts: string[] = [];
  for (const [name, member] of Object.entries(value)) {
    const text = write(member, inside);
    if (text === undefined) continue;
    if (hasLoneSurrogate(name)) throw new TypeError("a name with half of a surrogate pair has no UTF-8");
    parts.push(`${JSON.stringify(name)}:${text}`);
  }
  return `{${parts.join(",")}}`;
}

/** What payloads and results may be: at most 256 KiB, no null, and flat enough for the frame they travel in. */
const businessBytesMax = 256 << 10;
const businessDepthMax = depthMax - 2;

/**
 * Makes the JSON of a payload or result. Nothing (undefined, null) becomes {},
 * because the cluster keeps no null. Throws if the cluster would not keep it.
 */
export function businessJson(value: unknown): RawJson {
  const text = value === undefined || value === null ? "{}" : stringify(value);
  if (text.trim() === "null") return new RawJson("{}");
  check(text, businessDepthMax);
  const bytes = Buffer.byteLength(text);
  if (bytes > businessBytesMax) throw new RangeError(`the JSON text has ${bytes} bytes, at most ${businessBytesMax} are kept`);
  return new RawJson(text);
}
