// Keys and addresses: arrows between open heads, `/` to the filter, `?` for help, and `#L5H1/pattern?p=2`.

const HELP = document.getElementById("help");
const PANELS = [
  "attention", "largest", "prompt", "write", "distance", "entropy", "pattern", "offsets", "pairs", "pattern-components",
  "message", "eigenvalues", "tokens", "message-components", "neighbours", "effect", "weights",
];

// The parts of an address: head, panel and prompt, each missing where it is not named.
function readAddress(hash) {
  const [, label, panel, prompt] = decodeURIComponent(hash.slice(1)).match(/^([^/?]*)(?:\/([^?]*))?(?:\?p=(\d+))?$/) || [];
  return { label, panel: PANELS.includes(panel) ? panel : null, prompt: prompt === undefined ? null : Number(prompt) };
}

function addressOf(label, panel) {
  const prompt = DATA.prompts.length > 1 ? `?p=${promptNumber}` : "";
  return `#${label}${panel ? `/${panel}` : ""}${prompt}`;
}

function followAddress() {
  const { label, panel, prompt } = readAddress(location.hash);
  if (prompt !== null && prompt < DATA.prompts.length && prompt !== promptNumber) choosePrompt(prompt);
  if (INDEX.has(label)) openCard(label, panel);
}

// The head beside this one: across within a layer, down to the same head of the next layer.
function neighbour(label, [down, right]) {
  const here = DATA.heads[INDEX.get(label)];
  return DATA.heads.find((head) => head.stack === here.stack && head.layer === here.layer + down && head.head === here.head + right);
}

function stepCard(event) {
  const tile = event.target.closest(".tile[open]");
  if (!tile || !(event.key in MOVES)) return;
  const next = neighbour(tile.dataset.label, MOVES[event.key]);
  if (!next) return;
  event.preventDefault();
  tile.open = false;
  openCard(next.label);
}

function typing(target) {
  return target.closest("input, select, textarea, [contenteditable]") !== null;
}

function startKeys() {
  document.getElementById("help-open").addEventListener("click", () => HELP.showModal());
  document.getElementById("help-close").addEventListener("click", () => HELP.close());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) {
      if (event.key === "Escape" && event.target === FIND) FIND.blur();
      return;
    }
    if (event.key === "/") { event.preventDefault(); FIND.focus(); FIND.scrollIntoView({ block: "center" }); }
    else if (event.key === "?") { event.preventDefault(); HELP.open ? HELP.close() : HELP.showModal(); }
    else if (event.key === "p") { const tile = event.target.closest(".tile"); if (tile) pin(tile.dataset.label); }
    else if (event.key === "Escape") { const tile = event.target.closest(".tile[open]"); if (tile) { tile.open = false; tile.querySelector("summary").focus(); } }
    else stepCard(event);
  });
  window.addEventListener("hashchange", followAddress);
}
