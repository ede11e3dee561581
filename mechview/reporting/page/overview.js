// The grid of all heads, layers down and heads across, coloured by a metric from a menu.

const METRIC_MENU = document.getElementById("metric");
const GRID = document.getElementById("grid");
const READOUT = document.getElementById("grid-readout");

function fillMetricMenu() {
  const groups = new Map();
  DATA.metrics.forEach((metric, n) => {
    if (!groups.has(metric.group)) {
      groups.set(metric.group, make("optgroup", { label: metric.group }));
      METRIC_MENU.append(groups.get(metric.group));
    }
    groups.get(metric.group).append(make("option", { value: n }, metric.title));
  });
  const first = ["induction", "induction_mass"].map((name) => DATA.metrics.findIndex((metric) => metric.name === name && metric.values.some((value) => value !== null)));
  METRIC_MENU.value = String(first.find((n) => n >= 0) ?? 0);
}

// How a metric becomes a share of the scale.
function scaleOf(metric) {
  const values = metric.values.map(toNumber).map((v) => (metric.kind === "log" ? Math.log10(Math.max(v, 1e-12)) : v));
  const finite = values.filter(Number.isFinite);
  let low = finite.length ? Math.min(...finite) : 0;
  let high = finite.length ? Math.max(...finite) : 1;
  if (metric.kind === "plain") low = Math.min(low, 0);
  const signed = metric.kind === "signed" || low < 0 && metric.kind !== "log";
  if (signed) { high = Math.max(Math.abs(low), Math.abs(high)); low = -high; }
  const back = (v) => (metric.kind === "log" ? 10 ** v : v);
  const span = high > low ? high - low : 1;
  return { kind: signed ? "div" : "ramp", share: (n) => (values[n] - low) / span, low: back(low), high: back(high) };
}

function describe(metric, n) {
  const [null_, sd] = [metric.null?.[n] ?? null, metric.sd?.[n] ?? null];
  const beside = null_ === null ? "" : `, null ${written(null_)}${sd === null ? "" : ` ± ${written(sd, 2)}`}`;
  return `${DATA.heads[n].label}: ${metric.title} ${written(metric.values[n])} ${metric.unit}${beside}${insideNull(metric, n) ? ", inside its null band" : ""}`;
}

// Whether a head is no further from its null than two of its standard deviations.
function insideNull(metric, n) {
  const [value, null_, sd] = [metric.values[n], metric.null?.[n] ?? null, metric.sd?.[n] ?? null];
  return value !== null && null_ !== null && sd !== null && Math.abs(Number(value) - Number(null_)) <= 2 * Number(sd);
}

function cellText(metric, scale, n) {
  const value = metric.values[n];
  if (metric.kind === "log") return Number(value) > 0 ? written(value, 2) : written(value);
  return aligned(value, Math.max(Math.abs(scale.low), Math.abs(scale.high)));
}

function paintCell(cell, metric, scale, n, wide) {
  const value = metric.values[n];
  const number = toNumber(value);
  cell.className = "cell" + (cell.dataset.group ? " group" : "");
  const colour = Number.isFinite(number) ? shade(scale.kind, scale.share(n)) : channels(cssColour("--nan"));
  if (value === null) cell.classList.add("unmeasured");
  else if (!Number.isFinite(number)) cell.classList.add("nan");
  if (insideNull(metric, n)) cell.classList.add("in-null");
  cell.style.background = value === null ? "" : rgb(colour);
  cell.style.color = value === null || !Number.isFinite(number) ? "" : inkOn(colour);
  cell.textContent = wide || !Number.isFinite(number) ? cellText(metric, scale, n) : "";
  cell.setAttribute("aria-label", describe(metric, n));
}

function paintGrid() {
  const metric = DATA.metrics[Number(METRIC_MENU.value)];
  const scale = scaleOf(metric);
  document.getElementById("metric-about").textContent = metric.about;
  for (const cell of GRID.querySelectorAll(".cell")) {
    paintCell(cell, metric, scale, Number(cell.dataset.n), GRID.dataset.wide === "yes");
  }
  const wrong = metric.values.filter((v) => v !== null && !Number.isFinite(Number(v))).length;
  const ramp = make("canvas");
  drawRamp(ramp, scale.kind);
  const legend = document.getElementById("legend");
  legend.replaceChildren(written(scale.low, 3), ramp, `${written(scale.high, 3)} ${metric.unit}`);
  if (metric.sd !== null) legend.append(...nullLegend(metric));
  if (wrong) legend.append(make("span", { class: "nan-count" }, `${wrong} of ${metric.values.length} NaN or infinite`));
}

function nullLegend(metric) {
  const inside = metric.values.filter((_, n) => insideNull(metric, n)).length;
  const nulls = metric.null.filter((value) => value !== null).map(Number);
  const spreads = metric.sd.filter((value) => value !== null).map(Number);
  const span = (values) => [...new Set([Math.min(...values), Math.max(...values)].map((value) => written(value, 3)))].join(" to ");
  return [make("span", {}, `null ${span(nulls)} ± ${span(spreads)}`),
    make("span", { class: "key" }, make("span", { class: "swatch in-null" }), `smaller: inside the null ± 2 sd, ${inside} of ${metric.values.length}`)];
}

function buildGrid() {
  const across = Math.max(...DATA.heads.map((head) => head.head)) + 1;
  GRID.dataset.wide = across <= 16 ? "yes" : "no";
  for (const stack of new Set(DATA.heads.map((head) => head.stack))) {
    const members = DATA.heads.map((head, n) => [head, n]).filter(([head]) => head.stack === stack);
    GRID.append(stackGrid(stack, members, across));
  }
  GRID.addEventListener("keydown", moveInGrid);
  const first = GRID.querySelector(".cell");
  if (first) first.tabIndex = 0;
}

function stackGrid(stack, members, across) {
  const grid = make("div", { class: "grid-stack", role: "group", "aria-label": `${stack} heads` });
  const narrow = window.innerWidth < 640;
  const rows = [...new Set(members.map(([head]) => head.layer))].sort((a, b) => a - b);
  const several = DATA.heads.some((head) => head.stack !== stack);
  const [least, height] = across > 16 ? [14, 18] : narrow ? [30, 30] : [46, rows.length > 12 ? 28 : 38];
  grid.style.gridTemplateColumns = `max-content repeat(${across}, minmax(${least}px, 1fr))`;
  const heads = across > 16 ? 4 : 1;
  const groups = sharedGroups(members);
  const first = (several ? 3 : 2) + (groups.length ? 1 : 0);
  if (several) grid.append(make("span", { class: "stack-name" }, stack === "cross" ? "cross-attention" : stack));
  grid.append(make("span", { class: "axis down" }, ""));
  for (let h = 0; h < across; h++) grid.append(make("span", { class: "axis across" }, h % heads ? "" : `H${h}`));
  for (const [kv, from, to] of groups) {
    const bracket = make("span", { class: "bracket", title: `heads ${from} to ${to} share key/value head ${kv}` }, `kv ${kv}`);
    bracket.style.gridRow = String(first - 1);
    bracket.style.gridColumn = `${from + 2} / ${to + 3}`;
    grid.append(bracket);
  }
  rows.forEach((layer, row) => {
    const axis = make("span", { class: "axis down" }, `L${layer}`);
    axis.style.gridRow = String(row + first);
    axis.style.gridColumn = "1";
    grid.append(axis);
  });
  for (const [head, n] of members) grid.append(gridCell(head, n, rows.indexOf(head.layer) + first, height));
  return grid;
}

// Key/value heads that several heads share, each with its first and last head; none where every head has its own.
function sharedGroups(members) {
  const found = new Map();
  for (const [head] of members) {
    const [, from, to] = found.get(head.kv) ?? [head.kv, head.head, head.head];
    found.set(head.kv, [head.kv, Math.min(from, head.head), Math.max(to, head.head)]);
  }
  const groups = [...found.values()];
  return groups.some(([, from, to]) => to > from) ? groups : [];
}

function gridCell(head, n, row, height) {
  const cell = make("button", { type: "button", class: "cell", "data-n": n, tabindex: -1 });
  const before = DATA.heads[n - 1];
  const shared = DATA.heads.some((other, m) => m !== n && other.layer === head.layer && other.stack === head.stack && other.kv === head.kv);
  if (shared && before && before.layer === head.layer && before.stack === head.stack && before.kv !== head.kv) cell.dataset.group = "yes";
  cell.style.gridRow = String(row);
  cell.style.gridColumn = String(head.head + 2);
  cell.style.height = `${height}px`;
  const tell = () => { READOUT.textContent = describe(DATA.metrics[Number(METRIC_MENU.value)], n); };
  cell.addEventListener("pointerenter", tell);
  cell.addEventListener("focus", tell);
  cell.addEventListener("click", () => openCard(head.label));
  return cell;
}

function moveInGrid(event) {
  if (!(event.key in MOVES) || !event.target.dataset.n) return;
  event.preventDefault();
  const next = neighbour(DATA.heads[Number(event.target.dataset.n)].label, MOVES[event.key]);
  if (!next) return;
  event.target.tabIndex = -1;
  const cell = GRID.querySelector(`.cell[data-n="${INDEX.get(next.label)}"]`);
  cell.tabIndex = 0;
  cell.focus();
}
