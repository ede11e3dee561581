// One head's attention on the prompt: a heat map with token labels, a readout, and the prompt as a strip.

const OPEN_PANELS = new Set();
const LEAST_REST = 2e-3; // weights are kept in steps of 1/65000: less than this is mostly rounding

class AttentionPanel {
  constructor(label, matrices, view) {
    const head = DATA.heads[INDEX.get(label)];
    [this.queries, this.keys] = tokensOf(head.stack);
    Object.assign(this, { label, view, ...matrices, mode: "weight", query: this.queries.length - 1, key: 0 });
    this.value = view.value.map(toNumber);
    this.key = this.strongestKey(this.query);
    this.element = make("div", { class: "panel", "data-panel": "attention" });
  }

  at(values, q, k) {
    return values[q * this.keys.length + k];
  }

  strongestKey(q) {
    let best = 0;
    for (let k = 0; k < this.keys.length; k++) if (this.at(this.weight, q, k) > this.at(this.weight, q, best)) best = k;
    return best;
  }

  // What is shaded: the weight, what it sends, what is left without the first key, or the score before softmax.
  shown(q, k) {
    const weight = this.at(this.weight, q, k);
    if (weight === -Infinity) return weight;
    if (this.mode === "sent") return weight * this.value[k];
    if (this.mode === "rescaled") return k === 0 || this.rest(q) < LEAST_REST ? -Infinity : weight / this.rest(q);
    return this.mode === "score" ? this.at(this.score, q, k) : weight;
  }

  // What a query leaves to all keys but the first.
  rest(q) {
    this.rests ??= this.queries.map((_, row) => this.keys.reduce((sum, __, k) => (k && this.at(this.weight, row, k) !== -Infinity ? sum + this.at(this.weight, row, k) : sum), 0));
    return this.rests[q];
  }

  range() {
    if (this.mode === "weight" || this.mode === "rescaled") return [0, 1];
    let [low, high] = [0, -Infinity];
    this.queries.forEach((_, q) => this.keys.forEach((__, k) => {
      const value = this.shown(q, k);
      if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }));
    return [low, high > low ? high : low + 1];
  }

  build(host) {
    host.append(this.element);
    this.canvas = make("canvas", { tabindex: 0, role: "img" });
    this.rows = svg("svg");
    this.columns = svg("svg");
    this.readout = make("p", { class: "readout", "aria-live": "polite" });
    this.strip = make("div", { class: "strip", "aria-label": "Where the chosen token looks" });
    this.ramp = make("span", { class: "ramp" });
    const map = make("div", { class: "attention" }, this.rows, this.canvas, make("span"), this.columns);
    this.element.append(
      make("h4", {}, "Attention", make("span", { class: "quiet" }, "query down, key across")),
      make("div", { class: "controls" }, this.menu(), this.ramp), map, this.readout, this.strip);
    this.canvas.setAttribute("aria-label", `Attention of ${this.label}; the largest weights are listed as text below.`);
    this.listen();
    this.layout();
    this.draw();
  }

  menu() {
    const choices = [["weight", "weight, 0 to 1"], ["own", "weight, 0 to largest"], ["sent", "weight × value norm"], ["rescaled", "weight without the first key"]];
    if (this.score !== null) choices.push(["score", "score before softmax"]);
    const select = make("select", { class: "shading" }, ...choices.map(([value, text]) => make("option", { value }, text)));
    select.addEventListener("change", () => { this.mode = select.value; this.draw(); });
    return make("label", {}, "Shade ", select);
  }

  layout() {
    const left = labelRoom(this.queries);
    const room = this.element.clientWidth - left - 4;
    this.cell = Math.min(Math.max(Math.floor(room / this.keys.length), 8), 34);
    const [w, h] = [this.cell * this.keys.length, this.cell * this.queries.length];
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.width = w * this.ratio;
    this.canvas.height = h * this.ratio;
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${h}px`;
    this.rowTexts = rowLabels(this.rows, this.queries, this.cell, left);
    this.columnTexts = columnLabels(this.columns, this.keys, this.cell);
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const [low, high] = this.range();
    const [cell, gap] = [this.cell, this.cell > 9 ? 1 : 0];
    const wrong = cssColour("--nan");
    this.queries.forEach((_, q) => this.keys.forEach((__, k) => {
      const value = this.shown(q, k);
      if (value === -Infinity) return;
      context.fillStyle = Number.isNaN(value) ? wrong : rgb(shade("ramp", (value - low) / (high - low)));
      context.fillRect(k * cell, q * cell, cell - gap, cell - gap);
    }));
    context.lineWidth = 1.5;
    context.strokeStyle = cssColour("--message");
    context.strokeRect(this.key * cell - 0.75, this.query * cell - 0.75, cell + 0.5, cell + 0.5);
    this.rowTexts.forEach((text, n) => text.classList.toggle("on", n === this.query));
    this.columnTexts.forEach((text, n) => text.classList.toggle("on", n === this.key));
    const ramp = make("canvas");
    drawRamp(ramp, "ramp");
    this.ramp.replaceChildren(written(low, 3), ramp, written(high, 3));
    this.tell();
  }

  tell() {
    const [q, k] = [this.query, this.key];
    const weight = this.at(this.weight, q, k);
    const masked = weight === -Infinity;
    const [low, high] = this.range();
    const score = this.score === null ? "not kept" : written(this.at(this.score, q, k));
    const words = masked ? " masked: this query cannot see this key." : ` weight ${written(weight)}, score ${score}, value norm ${written(this.value[k])}.`;
    this.readout.replaceChildren("Query ", tokenElement(this.queries[q], q), " → key ", tokenElement(this.keys[k], k), ":", words);
    this.strip.replaceChildren(...this.keys.map((token, n) => this.stripToken(token, n, low, high)));
  }

  stripToken(token, n, low, high) {
    const element = tokenElement(token, n, "button");
    const value = this.shown(this.query, n);
    if (Number.isNaN(value)) element.style.background = cssColour("--nan");
    else if (value > -Infinity) {
      const colour = shade("ramp", (value - low) / (high - low));
      element.style.background = rgb(colour);
      element.style.color = inkOn(colour);
    } else element.style.opacity = "0.55";
    element.classList.toggle("chosen", this.queries === this.keys && n === this.query);
    element.classList.toggle("pointed", n === this.key);
    element.addEventListener("pointerenter", () => { if (n !== this.key) this.choose(this.query, n); });
    element.addEventListener("click", () => (this.queries === this.keys ? this.choose(n, this.strongestKey(n)) : this.choose(this.query, n)));
    return element;
  }

  // The crosshair is shared by all open cards whose matrices have the same sides.
  choose(q, k) {
    for (const panel of OPEN_PANELS) {
      if (panel.element.isConnected && panel.queries === this.queries && panel.keys === this.keys) panel.place(q, k);
    }
  }

  place(q, k) {
    this.query = Math.min(Math.max(q, 0), this.queries.length - 1);
    this.key = Math.min(Math.max(k, 0), this.keys.length - 1);
    this.draw();
  }

  listen() {
    OPEN_PANELS.add(this);
    lockable(this.canvas, (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.choose(Math.floor((event.clientY - box.top) / this.cell), Math.floor((event.clientX - box.left) / this.cell));
    });
    arrowKeys(this.canvas, (down, right) => this.choose(this.query + down, this.key + right));
  }
}
