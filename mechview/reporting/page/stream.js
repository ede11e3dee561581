// The residual stream of the prompt: what was written where, for which token, and what could be read when.

const STREAM = document.getElementById("stream-host");
const STREAM_METRICS = [
  ["norm", "norm of what was added", "stream units", "ramp"],
  ["cosine", "cosine to the stream before it was written", "", "div"],
  ["shares", "share of the predicted token's logit", "logits", "div"],
];

function streamPanel(title, note, ...content) {
  return make("div", { class: "panel" }, make("h3", {}, title, make("span", { class: "quiet" }, note)), ...content);
}

async function gridOf(packed) {
  const [low, high] = packed.range.map(Number);
  return unpack(packed.codes, low, high);
}

// Largest size among the cells that are finite; the first position stands apart and does not set the scale.
function reach(values, across) {
  let most = 0;
  values.forEach((value, n) => { if (Number.isFinite(value) && (across === 1 || n % across) && Math.abs(value) > most) most = Math.abs(value); });
  return most || 1;
}

function colourOf(value, top, kind) {
  if (!Number.isFinite(value)) return channels(cssColour("--nan"));
  return shade(kind, kind === "div" ? (value / top + 1) / 2 : value / top);
}

class StreamGrid {
  // `words(row, column)` is written into the cells, which are then as wide as words need, where there is room for that.
  constructor(rows, tokens, words = null) {
    Object.assign(this, { rows, tokens, row: rows.length - 1, column: tokens.length - 1 });
    this.words = tokens.length <= 160 ? words : null;
    this.canvas = make("canvas", { tabindex: 0, role: "img" });
    this.names = svg("svg", { "aria-hidden": "true" });
    this.columns = svg("svg");
    this.readout = make("p", { class: "readout", "aria-live": "polite" });
    this.element = make("div", {}, make("div", { class: "attention" }, this.names, this.canvas, make("span"), this.columns), this.readout);
    this.listen();
  }

  show(values, top, kind, tell) {
    Object.assign(this, { values, top, kind, tell });
    this.layout();
    this.draw();
  }

  layout() {
    const left = Math.max(...this.rows.map((name) => name.length)) * 6.7 + 14;
    const room = this.element.clientWidth - left - 4;
    this.cell = this.words ? 58 : Math.min(Math.max(Math.floor(room / this.tokens.length), 5), 34);
    this.height = this.words ? 20 : Math.max(Math.min(20, Math.floor(560 / this.rows.length)), 9);
    const [w, h] = [this.cell * this.tokens.length, this.height * this.rows.length];
    this.ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: w * this.ratio, height: h * this.ratio });
    Object.assign(this.canvas.style, { width: `${w}px`, height: `${h}px` });
    this.names.setAttribute("width", left);
    this.names.setAttribute("height", h);
    const size = Math.min(this.height, 11);
    this.texts = this.rows.map((name, n) => {
      const text = svg("text", { x: left - 6, y: (n + 0.5) * this.height + size * 0.35, "text-anchor": "end" }, name);
      text.style.fontSize = `${size}px`;
      return text;
    });
    this.names.replaceChildren(...this.texts);
    this.columnTexts = columnLabels(this.columns, this.tokens, this.cell);
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const gap = this.cell > 9 ? 1 : 0;
    context.font = "11px monospace";
    this.values.forEach((value, n) => {
      const [row, column] = [Math.floor(n / this.tokens.length), n % this.tokens.length];
      const colour = colourOf(value, this.top, this.kind);
      context.fillStyle = rgb(colour);
      context.fillRect(column * this.cell, row * this.height, this.cell - gap, this.height - gap);
      if (!this.words) return;
      context.fillStyle = inkOn(colour);
      context.fillText(this.words(row, column).slice(0, 7), column * this.cell + 4, (row + 0.5) * this.height + 4);
    });
    context.lineWidth = 1.5;
    context.strokeStyle = cssColour("--message");
    context.strokeRect(this.column * this.cell - 0.75, this.row * this.height - 0.75, this.cell + 0.5, this.height + 0.5);
    this.texts.forEach((text, n) => text.classList.toggle("on", n === this.row));
    this.columnTexts.forEach((text, n) => text.classList.toggle("on", n === this.column));
    const value = this.values[this.row * this.tokens.length + this.column];
    this.readout.replaceChildren(`${this.rows[this.row]} at `, tokenElement(this.tokens[this.column], this.column), ": ", ...this.tell(value, this.row, this.column));
  }

  choose(row, column) {
    this.row = Math.min(Math.max(row, 0), this.rows.length - 1);
    this.column = Math.min(Math.max(column, 0), this.tokens.length - 1);
    this.draw();
  }

  listen() {
    const point = (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.choose(Math.floor((event.clientY - box.top) / this.height), Math.floor((event.clientX - box.left) / this.cell));
    };
    lockable(this.canvas, point);
    arrowKeys(this.canvas, (down, right) => this.choose(this.row + down, this.column + right));
  }
}

// Bars from the largest share to the rest, each starting where the one before ended.
function waterfallChart(fall) {
  const others = fall.rest_count ? [[`${fall.rest_count} others`, Number(fall.rest)]] : [];
  const bars = [...fall.bars.map(([name, value]) => [name, Number(value)]), ...others, ["total", Number(fall.total)]];
  const row = 20;
  const chart = svg("svg", { class: "chart", viewBox: `0 0 560 ${bars.length * row + 26}`, role: "img" });
  chart.append(svg("title", {}, `Shares of the logit of ${fall.target}: ${bars.map(([name, value]) => `${name} ${written(value, 3)}`).join(", ")}.`));
  let end = 0;
  const spans = bars.map(([name, value]) => {
    const start = name === "total" ? 0 : end;
    end = start + (Number.isFinite(value) ? value : 0);
    return [start, end];
  });
  const [low, high] = [Math.min(0, ...spans.flat()), Math.max(0, ...spans.flat())];
  const x = (value) => 112 + (370 * (value - low)) / (high - low || 1);
  chart.append(svg("line", { class: "axis-line", x1: x(0), x2: x(0), y1: 0, y2: bars.length * row }));
  bars.forEach(([name, value], n) => {
    const [start, stop] = spans[n];
    const kind = name === "total" ? "sum" : value < 0 ? "falling" : "rising";
    chart.append(svg("text", { x: 104, y: n * row + 14, "text-anchor": "end" }, name));
    chart.append(svg("rect", { class: `bar ${kind}`, x: Math.min(x(start), x(stop)), width: Math.max(Math.abs(x(stop) - x(start)), 0.5), y: n * row + 3, height: row - 6, rx: 1 }));
    chart.append(svg("text", { class: Number.isFinite(value) ? "" : "nan-text", x: Math.max(x(start), x(stop)) + 6, y: n * row + 14 }, written(value, 3)));
  });
  chart.append(svg("text", { x: x(0), y: bars.length * row + 18, "text-anchor": "middle" }, "0 (logits)"));
  return chart;
}

// Two curves over depth: the mean over positions, and the first position by itself.
function growthChart(curve, points, title) {
  const [first, rest] = [curve.first, curve.rest].map((values) => values.map(toNumber));
  const drawn = rest.every(Number.isNaN) ? first : rest;
  const { chart, area, y } = frame(160, largest(drawn.map(Math.abs)) * 1.04, `${title}: ${drawn.map((value, n) => `${points[n]} ${written(value, 3)}`).join(", ")}`);
  const x = (n) => area.left + 6 + ((area.right - area.left - 12) * n) / Math.max(points.length - 1, 1);
  const line = (values, kind) => {
    const places = values.map((value, n) => [x(n), y(value)]).filter(([, at]) => Number.isFinite(at) && at > -400);
    if (places.length) chart.append(svg("path", { class: `line ${kind}`, d: path(places) }));
  };
  line(rest, "pattern");
  if (curve.name === "cosine") line(first, "nullline");
  chart.append(svg("text", { x: x(0), y: 155 }, points[0]));
  chart.append(svg("text", { x: area.right, y: 155, "text-anchor": "end" }, points[points.length - 1]));
  const words = `First position: ${written(first[0], 3)} at ${points[0]}, ${written(first[first.length - 1], 3)} at the end.`;
  return [chart, make("p", { class: "quiet" }, words)];
}

async function streamRows(stream, tokens) {
  const grid = new StreamGrid(stream.components, tokens);
  const choices = STREAM_METRICS.filter(([name]) => stream[name]);
  const menu = make("select", { id: "stream-metric" }, ...choices.map(([name, words]) => make("option", { value: name }, words)));
  const panel = streamPanel("What was added, where", `rows add up to the stream within ${written(stream.error, 2)}`,
    make("div", { class: "controls" }, make("label", {}, "Shade ", menu)), grid.element);
  const paint = async () => {
    const [name, words, unit, kind] = choices.find(([key]) => key === menu.value);
    const values = await gridOf(stream[name]);
    const top = name === "cosine" ? 1 : reach(values, tokens.length);
    grid.canvas.setAttribute("aria-label", `${words}, components down and positions across; arrow keys read single cells.`);
    grid.show(values, top, kind, (value) => [`${words} ${written(value)} ${unit}`]);
  };
  menu.addEventListener("change", paint);
  return [panel, paint];
}

async function lensPanel(lens, tokens) {
  const word = (row, column) => lens.words[lens.top[row][column]];
  const grid = new StreamGrid(lens.points, tokens, word);
  const [prob, entropy, kl] = await Promise.all([lens.prob, lens.entropy, lens.kl].map(gridOf));
  const panel = streamPanel("Logit lens", `last row equals the model's output within ${written(lens.error, 2)}`,
    make("p", { class: "quiet" }, "Probability of the likeliest token when the stream is read at each point. A readout that early layers were not trained for."), grid.element);
  grid.canvas.setAttribute("aria-label", "Probability of the likeliest token, points of the stream down and positions across; arrow keys read single cells.");
  const tell = (value, row, column) => {
    const n = row * tokens.length + column;
    return ["reads ", make("span", { class: "token" }, make("bdi", {}, word(row, column))), ` with probability ${written(value, 3)}, entropy ${written(entropy[n], 3)} nat, KL to the output ${written(kl[n], 3)} nat`];
  };
  return [panel, () => grid.show(prob, 1, "ramp", tell)];
}

async function showStream() {
  if (!STREAM) return;
  const stream = currentPrompt().stream;
  const tokens = Object.values(currentPrompt().tokens)[0] && (currentPrompt().tokens.decoder || currentPrompt().tokens.encoder);
  const parts = [];
  const [rows, paintRows] = await streamRows(stream, tokens);
  if (stream.fall) {
    const { target, position, error } = stream.fall;
    parts.push([streamPanel("Who speaks for the prediction", `sums within ${written(error, 2)}`, make("p", { class: "quiet" }, "Shares of the logit of ",
      make("span", { class: "token" }, make("bdi", {}, target)), ` at position ${position}, the largest first. A share is direct: what later layers make of a write is not in it.`), waterfallChart(stream.fall)), null]);
  }
  parts.push([rows, paintRows]);
  if (stream.lens) parts.push(await lensPanel(stream.lens, tokens));
  const curves = stream.growth.map((curve) => streamPanel(curve.name === "norm" ? "Growth of the stream" : "Cosine to the final stream", "mean over positions, the first aside",
    ...growthChart(curve, stream.points, curve.name === "norm" ? "Norm of the stream by point" : "Cosine to the final stream by point")));
  STREAM.replaceChildren(...parts.map(([panel]) => panel), make("div", { class: "two wide" }, ...curves), ...stream.missing.map((words) => make("p", { class: "notices" }, words)));
  for (const [, paint] of parts) if (paint) await paint();
}
