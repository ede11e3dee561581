// The page's data, and the attention matrices that are inflated when a head is first looked at.

const DATA = JSON.parse(document.getElementById("data").textContent);
const STEPS = 65000;
const INDEX = new Map(DATA.heads.map((head, n) => [head.label, n]));
const MATRICES = new Map();
let promptNumber = 0;

function currentPrompt() {
  return DATA.prompts[promptNumber];
}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Values of a packed matrix, of one or two bytes each: masked cells are -Infinity, NaN is NaN.
async function unpack(text, low, high, steps = STEPS) {
  const planes = await inflate(text);
  const [half, masked] = steps < 254 ? [0, 255] : [planes.length / 2, 65535];
  const span = high > low ? high - low : 1;
  const values = new Float32Array(half || planes.length);
  for (let n = 0; n < values.length; n++) {
    const code = half ? planes[n] * 256 + planes[half + n] : planes[n];
    values[n] = code === masked ? -Infinity : code === masked - 1 ? NaN : low + (span * code) / steps;
  }
  return values;
}

// Weights and scores of one head on the current prompt, row by row; scores are null when left out.
function matrices(label) {
  const key = `${promptNumber} ${label}`;
  if (!MATRICES.has(key)) {
    const view = currentPrompt().views[label];
    const [low, high] = view.range.map(Number);
    const parts = [unpack(view.w, 0, 1, currentPrompt().steps), view.s === null ? null : unpack(view.s, low, high)];
    MATRICES.set(key, Promise.all(parts).then(([weight, score]) => ({ weight, score })));
  }
  return MATRICES.get(key);
}

// Query tokens and key tokens of a stack.
function tokensOf(stack) {
  const tokens = currentPrompt().tokens;
  const own = tokens[stack === "cross" ? "decoder" : stack];
  return [own, stack === "cross" ? tokens.encoder : own];
}

const LONGEST_TOKEN = 40;

// The one way a token is shown: as text, isolated, cut when very long, with the whole on hover.
function tokenBox(name, shown, title, special = false) {
  const characters = [...shown];
  const cut = characters.length > LONGEST_TOKEN ? `${characters.slice(0, LONGEST_TOKEN - 1).join("")}…` : shown;
  return make(name, { class: special ? "token special" : "token", title }, make("bdi", {}, cut));
}

function tokenElement(token, position, name = "span") {
  const element = tokenBox(name, token[0], `${JSON.stringify(token[1])}, position ${position}`, token[2]);
  element.append(make("sup", {}, String(position)));
  if (name === "button") element.type = "button";
  return element;
}

// A token of the vocabulary, which stands nowhere.
function vocabularyToken([shown, id]) {
  return tokenBox("span", shown, `${JSON.stringify(shown)}, token ${id}`);
}
