// Start: build every section, then follow the menus, the keys, the address and the colour scheme.

function showPrompt() {
  const host = document.getElementById("prompt-text");
  if (!host) return;
  const tokens = currentPrompt().tokens;
  const inputs = Object.keys(tokens).sort().reverse();
  host.replaceChildren(...inputs.flatMap((stack) => tokens[stack].map((token, n) => tokenElement(token, n))));
}

function choosePrompt(number) {
  promptNumber = number;
  for (const menu of document.querySelectorAll(".prompt-menu")) menu.value = String(number);
  showPrompt();
  showStream();
  redrawCards();
  findHeads();
}

function followScheme() {
  PALETTES.clear();
  paintGrid();
  if (DATA.prompts.length) showStream();
  redrawCards();
}

function start() {
  fillMetricMenu();
  buildGrid();
  paintGrid();
  startTable();
  startCards();
  startKeys();
  startPrinting();
  if (DATA.prompts.length) { showPrompt(); showStream(); }
  METRIC_MENU.addEventListener("change", paintGrid);
  for (const menu of document.querySelectorAll(".prompt-menu")) menu.addEventListener("change", () => choosePrompt(Number(menu.value)));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followScheme);
  let timer = 0;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (window.innerWidth !== width) { width = window.innerWidth; redrawCards(); if (DATA.prompts.length) showStream(); } }, 200);
  });
  followAddress();
}

start();
