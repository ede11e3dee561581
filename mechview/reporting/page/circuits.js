// What a head's pattern and message do to the vocabulary: pairs of tokens, components, eigenvalues, offsets.

const CARDS = new Map();

// The details of one head, inflated once; `from` and `to` are its partners.
function detailsOf(label) {
  if (!CARDS.has(label)) CARDS.set(label, unpackJson(DATA.details.cards[label]));
  return CARDS.get(label);
}

async function unpackJson(text) {
  return text === undefined ? {} : JSON.parse(new TextDecoder().decode(await inflate(text)));
}

function absentNote(part) {
  const words = DATA.details.absent[part] ?? DATA.details.absent.all;
  return words ? make("p", { class: "quiet" }, words) : null;
}

// Why a head has no token lists: not asked for, or not defined for this model.
function missingNote(found) {
  const words = found.listed ? found.missing.join(" ") : DATA.details.absent.cards ?? DATA.details.absent.all;
  return make("p", { class: "quiet" }, words || "Not defined for this model.");
}

function circuitList(heading, pairs, arrow) {
  const items = pairs.map(([from, to, value, z]) => make("li", {}, vocabularyToken(from), ` ${arrow} `, vocabularyToken(to),
    make("span", { class: "amount", title: `${written(z, 3)} standard deviations from the mean of all pairs` }, written(value, 3))));
  return make("div", {}, make("p", { class: "quiet" }, heading), make("ol", { class: "pairs" }, ...items));
}

function pairsPanel(found) {
  if (!found.pairs) return panel("pairs", "Query token → key token", "", missingNote(found));
  const { high, error } = found.pairs;
  return panel("pairs", "Query token → key token", "from weights, at most one a query token",
    circuitList(`highest scores of the whole vocabulary (sum checked to ${written(error, 2)})`, high, "→"));
}

function tokensPanel(found) {
  if (!found.tokens) return panel("tokens", "What it does to the next token", "", missingNote(found));
  const { high, low } = found.tokens;
  return panel("tokens", "What it does to the next token", "logits before the final norm's scale",
    make("div", { class: "two" }, circuitList("reading → promotes", high, "→"), circuitList("reading → suppresses", low, "→")),
    accuracyTable(found.accuracy));
}

function accuracyTable(rows) {
  const body = make("tbody");
  const tokens = rows[0][5];
  for (const [among, top, value, mean, sd] of rows) {
    const words = `own token among the ${top === 1 ? "" : `${top} `}${among === "highest" ? "most promoted" : "most suppressed"}`;
    body.append(make("tr", {}, make("th", { scope: "row" }, words), make("td", {}, percent(value)),
      make("td", {}, make("small", {}, `${percent(mean)} ± ${percent(sd)}`))));
  }
  const table = numberTable([`diagonal of ${tokens} tokens`, "share", "sides turned at random"], body);
  table.classList.add("spaced");
  return table;
}

function percent(value) {
  return Number.isFinite(Number(value)) ? `${(100 * value).toFixed(1)} %` : written(value);
}

const END_WORDS = { query: "query", key: "key", read: "reads", written: "writes" };

function componentList(end, sign, { tokens, coherence }) {
  const [own, mean, sd] = coherence.map(toNumber);
  const beside = own > mean + 2 * sd ? "more alike than" : "no more alike than";
  const title = `mean cosine of the listed tokens ${written(own, 2)}; lists of random directions ${written(mean, 2)} ± ${written(sd, 2)}`;
  const row = make("p", { class: own > mean + 2 * sd ? "ends" : "ends faint", title },
    make("span", { class: "end" }, `${sign === "+" ? "+" : "−"} ${END_WORDS[end]}`));
  for (const token of tokens) row.append(vocabularyToken(token), " ");
  row.append(make("span", { class: "sr" }, `, ${beside} lists of random directions`));
  return row;
}

function componentsPanel(found, side) {
  const title = "Components";
  const name = `${side}-components`;
  if (!found.readings?.[side]) return panel(name, title, "", missingNote(found));
  const blocks = found.readings[side].map(({ index, sigma, share, degenerate, ends }) => make("div", { class: "component" },
    make("p", {}, `σ${index + 1} = ${written(sigma)}`, make("span", { class: "quiet" }, ` ${percent(share)} of σ²${degenerate ? " · nearly equal to a neighbour: only their span is determined" : ""}`)),
    ...["+", "-"].flatMap((sign) => Object.keys(END_WORDS).filter((end) => ends[end]).map((end) => componentList(end, sign, ends[end][sign])))));
  return panel(name, title, "largest singular directions; faint: no more alike than random lists", ...blocks);
}

// Eigenvalues in the complex plane over those of random heads, both scaled to norm 1.
async function eigenPanel(label, found) {
  const note = "of the full message, over random heads";
  if (!found.eig) return panel("eigenvalues", "Eigenvalues", "", absentNote("eig") ?? missingNote(found));
  const random = await unpackJson(DATA.details.random[found.eig.layer]);
  const [mean, sd, draws] = random.score;
  const inside = Math.abs(found.eig.score - mean) <= 2 * sd;
  const words = `Copying score ${written(found.eig.score, 3)}; ${draws} random heads ${written(mean, 3)} ± ${written(sd, 2)}${inside ? ", so it lies inside their band" : ""}.`;
  return panel("eigenvalues", "Eigenvalues", note, eigenChart(label, found.eig, random, words), make("p", { class: "quiet" }, words));
}

function eigenChart(label, own, random, words) {
  const size = 260;
  const reach = largest([...own.re, ...own.im, ...random.re, ...random.im].map((value) => Math.abs(toNumber(value)))) * 1.08;
  const at = (value) => size / 2 + (toNumber(value) / reach) * (size / 2 - 8);
  const chart = svg("svg", { class: "chart plane", viewBox: `0 0 ${size} ${size}`, role: "img" });
  const wrong = own.re.filter((value) => !Number.isFinite(toNumber(value))).length;
  chart.append(svg("title", {}, `Eigenvalues of the full message of ${label} in the complex plane. ${words} Largest ${written(own.re[0], 3)} + ${written(own.im[0], 3)} i; ${wrong} NaN.`));
  chart.append(svg("line", { class: "axis-line", x1: 4, x2: size - 4, y1: size / 2, y2: size / 2 }), svg("line", { class: "axis-line", x1: size / 2, x2: size / 2, y1: 4, y2: size - 4 }));
  random.re.forEach((re, n) => chart.append(svg("circle", { class: "nulldot", cx: at(re).toFixed(1), cy: at(-random.im[n]).toFixed(1), r: 1.8 })));
  own.re.forEach((re, n) => {
    if (!Number.isFinite(toNumber(re))) return;
    const dot = svg("circle", { class: "dot message ringed", cx: at(re).toFixed(1), cy: at(-own.im[n]).toFixed(1), r: 3.4 });
    dot.append(svg("title", {}, `${written(re, 3)} ${own.im[n] < 0 ? "−" : "+"} ${written(Math.abs(own.im[n]), 3)} i`));
    chart.append(dot);
  });
  chart.append(svg("text", { x: size - 4, y: size / 2 - 6, "text-anchor": "end" }, "copies, Re +"), svg("text", { x: 4, y: size / 2 - 6 }, "− reverses"));
  chart.append(svg("text", { x: size / 2 + 6, y: 14 }, "Im"));
  if (wrong) chart.append(svg("text", { class: "nan-text", x: 4, y: 14 }, `${wrong} NaN`));
  return chart;
}

// A rotary pattern by offset: cosine to offset 0 beside that of random factors, and norm.
function offsetsPanel(label, found) {
  const { offset, norm, cosine, cosine_null: random } = found.offsets;
  const last = offset.length - 1;
  const cosines = `Cosine of the pattern of ${label} to its pattern at offset 0, by offset: ${written(cosine[1], 3)} at ${offset[1]}, ${written(cosine[last], 3)} at ${offset[last]}; random factors ${written(random[last], 3)}.`;
  const norms = `Norm of the pattern of ${label} by offset: ${written(norm[0])} at ${offset[0]}, ${written(norm[last])} at ${offset[last]}.`;
  return panel("offsets", "By offset", "q_pos − k_pos",
    make("p", { class: "quiet" }, "cosine to offset 0; dashed: random factors"), offsetChart(cosines, offset, cosine, random),
    make("p", { class: "quiet" }, "norm"), offsetChart(norms, offset, norm));
}

function offsetChart(title, offsets, values, random = null) {
  const all = [...values, ...(random ?? [])].map(toNumber).filter(Number.isFinite);
  const { chart, area, y } = frame(120, largest(all) * 1.04, title, Math.min(0, ...all));
  const most = Math.log2(1 + offsets[offsets.length - 1]);
  const x = (offset) => area.left + 8 + ((area.right - area.left - 16) * Math.log2(1 + offset)) / (most || 1);
  const points = (series) => series.map((value, n) => [x(offsets[n]), y(toNumber(value))]).filter(([, height]) => Number.isFinite(height));
  if (random) chart.append(svg("path", { class: "nullline", d: path(points(random)) }));
  chart.append(svg("path", { class: "line pattern", d: path(points(values)) }));
  values.forEach((value, n) => {
    if (!Number.isFinite(toNumber(value))) return;
    const dot = svg("circle", { class: "dot pattern", cx: x(offsets[n]).toFixed(1), cy: y(value).toFixed(1), r: 2.6 });
    dot.append(svg("title", {}, `offset ${offsets[n]}: ${written(value)}`));
    chart.append(dot);
  });
  for (const [n, offset] of offsets.entries()) if (Number.isInteger(Math.log2(offset)) && n) chart.append(svg("text", { x: x(offset), y: 115, "text-anchor": "middle" }, String(offset)));
  chart.append(svg("text", { x: x(0), y: 115, "text-anchor": "middle" }, "0"));
  return chart;
}
