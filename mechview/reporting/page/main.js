// Start: build every section, then follow the menus, the address and the colour scheme.

function showPrompt() {
  const host = document.getElementById("prompt-text");
  if (!host) return;
  const tokens = currentPrompt().tokens;
  const inputs = Object.keys(tokens).sort().reverse();
  host.replaceChildren(...inputs.flatMap((stack) => tokens[stack].map((token, n) => tokenElement(token, n))));
}

function followAddress() {
  const label = decodeURIComponent(location.hash.slice(1));
  if (INDEX.has(label)) openCard(label);
}

function followScheme() {
  PALETTES.clear();
  paintGrid();
  redrawCards();
}

function start() {
  fillMetricMenu();
  buildGrid();
  paintGrid();
  startTable();
  startCards();
  showPrompt();
  METRIC_MENU.addEventListener("change", paintGrid);
  const prompts = document.getElementById("prompt");
  if (prompts) prompts.addEventListener("change", () => { promptNumber = Number(prompts.value); showPrompt(); redrawCards(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followScheme);
  window.addEventListener("hashchange", followAddress);
  let timer = 0;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (window.innerWidth !== width) { width = window.innerWidth; redrawCards(); } }, 200);
  });
  followAddress();
}

start();
