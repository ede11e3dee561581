// One head's attention on the prompt: a heat map with token labels, a readout, and the prompt as a strip.

const LONGEST_LABEL = 14;

class AttentionPanel {
  constructor(label, matrices, view) {
    const head = DATA.heads[INDEX.get(label)];
    [this.queries, this.keys] = tokensOf(head.stack);
    Object.assign(this, { label, view, ...matrices, mode: "weight", query: this.queries.length - 1, key: 0 });
    this.value = view.value.map(toNumber);
    this.key = this.strongestKey(this.query);
    this.element = make("div", { class: "panel" });
  }

  at(values, q, k) {
    return values[q * this.keys.length + k];
  }

  strongestKey(q) {
    let best = 0;
    for (let k = 0; k < this.keys.length; k++) if (this.at(this.weight, q, k) > this.at(this.weight, q, best)) best = k;
    return best;
  }

  // What is shaded: the weight, or the weight times the size of what is sent.
  shown(q, k) {
    const weight = this.at(this.weight, q, k);
    return this.mode === "sent" && Number.isFinite(weight) ? weight * this.value[k] : weight;
  }

  top() {
    if (this.mode === "weight") return 1;
    let most = 0;
    this.queries.forEach((_, q) => this.keys.forEach((__, k) => {
      const value = this.shown(q, k);
      if (Number.isFinite(value) && value > most) most = value;
    }));
    return most || 1;
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
    const choices = [["weight", "weight, 0 to 1"], ["own", "weight, 0 to largest"], ["sent", "weight × value norm"]];
    const select = make("select", { class: "shading" }, ...choices.map(([value, text]) => make("option", { value }, text)));
    select.addEventListener("change", () => { this.mode = select.value; this.draw(); });
    return make("label", {}, "Shade ", select);
  }

  layout() {
    const width = (tokens) => Math.min(Math.max(...tokens.map((token) => token[0].length)), LONGEST_LABEL) * 6.7 + 28;
    const left = width(this.queries);
    const room = this.element.clientWidth - left - 4;
    this.cell = Math.min(Math.max(Math.floor(room / this.keys.length), 8), 22);
    const [w, h] = [this.cell * this.keys.length, this.cell * this.queries.length];
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.width = w * this.ratio;
    this.canvas.height = h * this.ratio;
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${h}px`;
    const size = Math.min(this.cell + 1, 11);
    this.rowTexts = this.labels(this.rows, this.queries, left, h, (n) => ({ x: left - 6, y: (n + 0.5) * this.cell + size * 0.35, "text-anchor": "end" }));
    const depth = width(this.keys) * 0.9;
    this.columnTexts = this.labels(this.columns, this.keys, w, depth, (n) => {
      const x = (n + 0.5) * this.cell + size * 0.3;
      return { x, y: 8, "text-anchor": "end", transform: `rotate(-60 ${x} 8)` };
    });
    for (const text of [...this.rowTexts, ...this.columnTexts]) text.style.fontSize = `${size}px`;
  }

  labels(host, tokens, width, height, place) {
    host.replaceChildren();
    host.setAttribute("width", width);
    host.setAttribute("height", height);
    host.setAttribute("aria-hidden", "true");
    host.style.overflow = "visible";
    const every = Math.max(1, Math.ceil(9 / this.cell));
    return tokens.map((token, n) => {
      const shown = token[0].length > LONGEST_LABEL ? token[0].slice(0, LONGEST_LABEL - 1) + "…" : token[0];
      const text = svg("text", place(n));
      text.append(svg("tspan", { class: "token-text" }, shown), svg("tspan", { dx: 4 }, String(n)), svg("title", {}, `${JSON.stringify(token[1])}, position ${n}`));
      if (n % every === 0) host.append(text);
      return text;
    });
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const [cell, top, gap] = [this.cell, this.top(), this.cell > 9 ? 1 : 0];
    const wrong = cssColour("--nan");
    this.queries.forEach((_, q) => this.keys.forEach((__, k) => {
      const value = this.shown(q, k);
      if (value === -Infinity) return;
      context.fillStyle = Number.isNaN(value) ? wrong : rgb(shade("ramp", value / top));
      context.fillRect(k * cell, q * cell, cell - gap, cell - gap);
    }));
    context.lineWidth = 1.5;
    context.strokeStyle = cssColour("--message");
    context.strokeRect(this.key * cell - 0.75, this.query * cell - 0.75, cell + 0.5, cell + 0.5);
    this.rowTexts.forEach((text, n) => text.classList.toggle("on", n === this.query));
    this.columnTexts.forEach((text, n) => text.classList.toggle("on", n === this.key));
    const ramp = make("canvas");
    drawRamp(ramp, "ramp");
    this.ramp.replaceChildren("0", ramp, written(top, 3));
    this.tell();
  }

  tell() {
    const [q, k] = [this.query, this.key];
    const weight = this.at(this.weight, q, k);
    const masked = weight === -Infinity;
    const score = this.score === null ? "not kept" : written(this.at(this.score, q, k));
    const words = masked ? " masked: this query cannot see this key." : ` weight ${written(weight)}, score ${score}, value norm ${written(this.value[k])}.`;
    this.readout.replaceChildren("Query ", tokenElement(this.queries[q], q), " → key ", tokenElement(this.keys[k], k), ":", words);
    this.strip.replaceChildren(...this.keys.map((token, n) => this.stripToken(token, n)));
  }

  stripToken(token, n) {
    const element = tokenElement(token, n, "button");
    const weight = this.at(this.weight, this.query, n);
    if (Number.isNaN(weight)) element.style.background = cssColour("--nan");
    else if (weight > -Infinity) {
      const colour = shade("ramp", this.shown(this.query, n) / this.top());
      element.style.background = rgb(colour);
      element.style.color = inkOn(colour);
    } else element.style.opacity = "0.55";
    element.classList.toggle("chosen", this.queries === this.keys && n === this.query);
    element.addEventListener("click", () => (this.queries === this.keys ? this.choose(n, this.strongestKey(n)) : this.choose(this.query, n)));
    return element;
  }

  choose(q, k) {
    this.query = Math.min(Math.max(q, 0), this.queries.length - 1);
    this.key = Math.min(Math.max(k, 0), this.keys.length - 1);
    this.draw();
  }

  listen() {
    const point = (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.choose(Math.floor((event.clientY - box.top) / this.cell), Math.floor((event.clientX - box.left) / this.cell));
    };
    this.canvas.addEventListener("pointermove", point);
    this.canvas.addEventListener("pointerdown", point);
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    this.canvas.addEventListener("keydown", (event) => {
      if (!(event.key in moves)) return;
      event.preventDefault();
      this.choose(this.query + moves[event.key][0], this.key + moves[event.key][1]);
    });
  }
}
