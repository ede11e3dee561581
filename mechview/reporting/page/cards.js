// Cards of heads: thumbnails as they come into view, everything else when a card is opened.

const FILLED = new Map();

function fill(tile) {
  FILLED.set(tile.dataset.label, fillCard(tile));
}

async function drawThumb(tile) {
  const label = tile.dataset.label;
  const [queries, keys] = tokensOf(DATA.heads[INDEX.get(label)].stack);
  const { weight } = await matrices(label);
  const canvas = tile.querySelector(".thumb");
  canvas.width = keys.length;
  canvas.height = queries.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(keys.length, queries.length);
  const wrong = channels(cssColour("--nan"));
  weight.forEach((value, n) => {
    if (value === -Infinity) return;
    image.data.set([...(Number.isNaN(value) ? wrong : shade("ramp", value)), 255], n * 4);
  });
  context.putImageData(image, 0, 0);
}

function hint(label) {
  const head = DATA.heads[INDEX.get(label)];
  const words = [`kv ${head.kv}`];
  if (DATA.prompts.length) words.push(`share ${aligned(currentPrompt().views[label].share, 1)}`);
  return words.join(" · ");
}

function metricOf(name, label, group) {
  const found = DATA.metrics.find((metric) => metric.name === name && (!group || metric.group === group));
  const n = INDEX.get(label);
  return found && { ...found, value: found.values[n], null_: found.null?.[n] ?? null, sd: found.sd?.[n] ?? null };
}

// Three decimals, or a power of ten for what they would hide.
function numberText(metric) {
  return Math.abs(Number(metric.value)) < 5e-4 ? written(metric.value) : aligned(metric.value, 1);
}

function valueCell(metric) {
  const cell = make("td", {}, metric ? numberText(metric) : "–");
  if (metric && metric.value !== null && !Number.isFinite(Number(metric.value))) cell.className = "nan-text";
  return cell;
}

function weightNumbers(label) {
  const body = make("tbody");
  for (const [name, words] of [["norm", "norm"], ["top_singular_value", "largest singular value"], ["stable_rank", "stable rank"], ["effective_rank", "effective rank"], ["parity_error", "parity error"]]) {
    const [pattern, message] = ["pattern", "message"].map((side) => metricOf(`${side}_${name}`, label));
    const null_ = pattern && pattern.null_ !== null ? `${aligned(pattern.null_, 1)} ± ${aligned(pattern.sd, 1)}` : "";
    body.append(make("tr", {}, make("th", { scope: "row" }, words), valueCell(pattern), valueCell(message), make("td", {}, make("small", {}, null_))));
  }
  return numberTable(["", "pattern", "message", "null"], body);
}

function promptNumbers(label) {
  const body = make("tbody");
  const group = `on prompt ${promptNumber}`;
  for (const name of ["first_key_mass", "previous_token_mass", "same_token_mass", "induction_mass", "entropy"]) {
    const metric = metricOf(name, label, group);
    if (!metric || metric.value === null) continue;
    const unit = metric.unit === "nat" ? " (nat)" : "";
    body.append(make("tr", {}, make("th", { scope: "row" }, metric.title + unit), valueCell(metric),
      make("td", {}, make("small", {}, aligned(metric.null_, 1)))));
  }
  return numberTable(["", "mean", "if even"], body);
}

function numberTable(headings, body) {
  const head = make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, make("small", {}, text))));
  return make("table", { class: "numbers" }, make("thead", {}, head), body);
}

function pairList(label, words, pairs) {
  const [queries, keys] = tokensOf(DATA.heads[INDEX.get(label)].stack);
  const items = pairs.map(([q, k, weight, score]) =>
    make("li", {}, tokenElement(queries[q], q), " → ", tokenElement(keys[k], k), ` ${written(weight)}, score ${written(score)}`));
  return make("div", {}, make("p", { class: "quiet" }, words), make("ol", { class: "pairs" }, ...items));
}

function pairLists(label) {
  const { top, rest } = currentPrompt().views[label];
  return make("div", { class: "two" }, pairList(label, "anywhere", top), pairList(label, "first key aside", rest));
}

function panel(name, title, note, ...content) {
  return make("div", { class: "panel", "data-panel": name }, make("h4", {}, title, make("span", { class: "quiet" }, note)), ...content);
}

function spectrumPanel(label, side) {
  return panel(side, "Spectrum", "grey: Gaussian null ± 2 sd", spectrumChart(label, side));
}

function group(title, ...panels) {
  return make("section", { class: "card-group" }, make("h3", {}, title), make("div", { class: "panels" }, ...panels));
}

async function weightGroups(label) {
  const found = await detailsOf(label);
  const message = [spectrumPanel(label, "message"), await eigenPanel(label, found), tokensPanel(found), componentsPanel(found, "message")];
  const pattern = [spectrumPanel(label, "pattern"), pairsPanel(found), componentsPanel(found, "pattern")];
  if (found.offsets) pattern.splice(1, 0, offsetsPanel(label, found));
  const around = [neighboursPanel(label, found), ...(DATA.prompts.length ? [effectPanel(label)] : []), weightTable(label)];
  return [group("Pattern: where it looks", ...pattern), group("Message: what it sends", ...message), group("In the model", ...around)];
}

function weightTable(label) {
  return panel("weights", "From weights", "null: Gaussian factors, mean ± sd", weightNumbers(label));
}

function writePanel(label) {
  const head = DATA.heads[INDEX.get(label)];
  const prompt = currentPrompt();
  const bias = prompt.bias[`${head.stack} ${head.layer}`];
  const words = `This head makes ${written(prompt.views[label].share, 3)} of what its layer's attention writes (output bias ${written(bias, 3)}; all shares add up to 1).`;
  return panel("write", "Write", "norm by position", writeChart(label, tokensOf(head.stack)[0]), make("p", { class: "quiet" }, words));
}

function profilePanels(label, weight) {
  const [queries, keys] = tokensOf(DATA.heads[INDEX.get(label)].stack);
  const entropy = panel("entropy", "Entropy by position", "nats", entropyChart(label, weight, queries, keys));
  if (queries !== keys) return [entropy];
  return [panel("distance", "Attention by distance", "mean weight at q − k", distanceChart(label, weight, queries, keys)), entropy];
}

// A card may be filled again while it is still being filled: only the last turn puts its groups in.
async function fillCard(tile) {
  const label = tile.dataset.label;
  const body = tile.querySelector(".card-body");
  const turn = make("div", { class: "turn" });
  body.replaceChildren(turn);
  if (DATA.prompts.length) await fillPrompt(label, turn);
  turn.append(...await weightGroups(label).catch((error) => [make("p", { class: "notices" }, `The details cannot be unpacked by this browser (${error.message}).`), weightTable(label)]));
}

async function fillPrompt(label, body) {
  const [main, side] = [make("div", { class: "main" }), make("div", { class: "side" })];
  body.append(make("section", { class: "card-group with-prompt" }, make("h3", {}, "On this prompt: what it did"), make("div", { class: "sides" }, main, side)));
  side.append(panel("prompt", "Summary", "beside even attention", promptNumbers(label)), writePanel(label));
  const scores = currentPrompt().scores_from;
  try {
    const found = await matrices(label);
    const attention = new AttentionPanel(label, found, currentPrompt().views[label]);
    attention.build(main);
    side.append(...profilePanels(label, found.weight));
  } catch (error) {
    main.append(make("p", { class: "notices" }, `The attention map cannot be unpacked by this browser (${error.message}); its largest weights stand below.`));
  }
  main.append(panel("largest", "Largest weights", `scores: ${scores}`, pairLists(label)));
}

async function openCard(label, panelName = null) {
  const tile = document.getElementById(label);
  tile.open = true;
  if (!tile.querySelector(".panel")) fill(tile);
  history.replaceState(null, "", addressOf(label, panelName));
  tile.scrollIntoView({ block: "start" });
  tile.querySelector("summary").focus({ preventScroll: true });
  if (!panelName) return;
  await FILLED.get(label);
  const wanted = tile.querySelector(`[data-panel="${panelName}"]`);
  if (wanted) wanted.scrollIntoView({ block: "start" });
}

function startCards() {
  const tiles = [...document.querySelectorAll(".tile")];
  for (const tile of tiles) {
    tile.querySelector(".hint").textContent = hint(tile.dataset.label);
    tile.querySelector("summary").append(pinMark(tile.dataset.label));
    tile.addEventListener("toggle", () => { if (tile.open && !tile.querySelector(".panel")) fill(tile); });
  }
  if (!DATA.prompts.length) return;
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((e) => e.isIntersecting)) {
      watcher.unobserve(entry.target);
      drawThumb(entry.target).catch(() => entry.target.querySelector(".thumb").remove());
    }
  }, { rootMargin: "300px" });
  tiles.forEach((tile) => watcher.observe(tile));
}

function redrawCards() {
  for (const tile of document.querySelectorAll(".tile")) {
    tile.querySelector(".hint").textContent = hint(tile.dataset.label);
    tile.querySelector(".card-body").replaceChildren();
    if (tile.open) fill(tile);
    if (DATA.prompts.length && tile.querySelector(".thumb").width > 1) drawThumb(tile);
  }
}
