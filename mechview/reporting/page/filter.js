// Filter expressions over heads, such as `layer>=1 and induction>0.4`: a small parser, nothing is evaluated as code.
//
// either  := both ("or" both)*          both := one ("and" one)*
// one     := "not" one | "(" either ")" | name operator value | word
// A name is layer, head, kv, offset, stack, label or a metric (its start is enough); a word is part of a label, or `pinned`.

const OPERATORS = {
  ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, "<": (a, b) => a < b,
  "=": (a, b) => a === b, "==": (a, b) => a === b, "!=": (a, b) => a !== b,
};
const PINNED = new Set();

function lexemes(text) {
  const found = [];
  const pattern = /\s*(?:(>=|<=|==|!=|[<>=()])|(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?![\w.])|([\w.]+))/giy;
  while (pattern.lastIndex < text.trimEnd().length) {
    const start = pattern.lastIndex;
    const match = pattern.exec(text);
    if (!match) throw new Error(`"${text.slice(start).trim()}" cannot be read here`);
    const [, sign, number, word] = match;
    found.push(sign ? { sign } : number ? { number: Number(number) } : { word });
  }
  return found;
}

// A quantity measured both on the test prompts and on the page's prompt has its group in its name: test.entropy.
function metricNames(open) {
  const groups = { "from weights": "weights", "on test prompts": "test" };
  const twice = (metric) => open.filter((other) => other.name === metric.name).length > 1;
  return open.map((metric) => ({ metric, name: twice(metric) ? `${groups[metric.group] ?? "prompt"}.${metric.name}` : metric.name }));
}

function metricNamed(name) {
  const wanted = name.toLowerCase();
  const group = `on prompt ${promptNumber}`;
  const open = metricNames(DATA.metrics.filter((metric) => !metric.group.startsWith("on prompt") || metric.group === group));
  const exact = open.filter((one) => one.name === wanted || one.metric.name === wanted);
  const fits = exact.length ? exact : open.filter((one) => one.name.startsWith(wanted) || one.metric.name.startsWith(wanted));
  if (fits.length === 1) return fits[0].metric;
  const names = [...new Set((fits.length ? fits : open).map((one) => one.name))].join(", ");
  throw new Error(fits.length ? `"${name}" could be ${names}` : `there is no "${name}"; there are layer, head, kv, offset, stack, label, ${names}`);
}

function readerOf(name) {
  const own = name.toLowerCase();
  if (["layer", "head", "kv", "offset", "stack", "label"].includes(own)) return (n) => DATA.heads[n][own];
  const metric = metricNamed(name);
  return (n) => (metric.values[n] === null ? NaN : Number(metric.values[n]));
}

class FilterParser {
  constructor(text) {
    this.parts = lexemes(text);
    this.at = 0;
  }

  take(test) {
    const part = this.parts[this.at];
    if (!part || !test(part)) return null;
    this.at += 1;
    return part;
  }

  whole() {
    const found = this.either();
    if (this.at < this.parts.length) throw new Error(`"${Object.values(this.parts[this.at])[0]}" is not expected here`);
    return found;
  }

  joined(inner, word, merge) {
    let found = inner();
    while (this.take((part) => part.word && part.word.toLowerCase() === word)) {
      const [left, right] = [found, inner()];
      found = (n) => merge(left(n), right(n));
    }
    return found;
  }

  either() { return this.joined(() => this.both(), "or", (a, b) => a || b); }

  both() { return this.joined(() => this.one(), "and", (a, b) => a && b); }

  one() {
    if (this.take((part) => part.word && part.word.toLowerCase() === "not")) {
      const inner = this.one();
      return (n) => !inner(n);
    }
    if (this.take((part) => part.sign === "(")) {
      const inner = this.either();
      if (!this.take((part) => part.sign === ")")) throw new Error("a bracket is not closed");
      return inner;
    }
    const name = this.take((part) => part.word);
    if (!name) throw new Error(this.parts.length ? "something is missing here" : "nothing was asked for");
    return this.compared(name.word);
  }

  compared(name) {
    const sign = this.take((part) => part.sign in OPERATORS);
    if (!sign) return this.named(name);
    const value = this.take((part) => part.word || part.number !== undefined);
    if (!value) throw new Error(`what should ${name} be compared with?`);
    const [read, holds] = [readerOf(name), OPERATORS[sign.sign]];
    const wanted = value.word ?? value.number;
    return (n) => {
      const own = read(n);
      return typeof own === "string" ? holds(own.toLowerCase(), String(wanted).toLowerCase()) : own !== null && !Number.isNaN(own) && holds(own, wanted);
    };
  }

  named(name) {
    if (name.toLowerCase() === "pinned") return (n) => PINNED.has(DATA.heads[n].label);
    return (n) => DATA.heads[n].label.toLowerCase().includes(name.toLowerCase());
  }
}

// Whether each head fits; an empty expression fits all.
function filterHeads(text) {
  if (!text.trim()) return DATA.heads.map(() => true);
  const fits = new FilterParser(text).whole();
  return DATA.heads.map((_, n) => fits(n));
}
