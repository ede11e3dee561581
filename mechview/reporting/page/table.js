// The head table: sorting by click, filtering by expression, pinning, and copies as CSV and Markdown.

const TABLE = document.getElementById("head-table");
const FIND = document.getElementById("find");
const FIND_ERROR = document.getElementById("find-error");

function labelOf(row) {
  return row.cells[0].querySelector("a").textContent;
}

function sortTable(column, heading) {
  const body = TABLE.tBodies[0];
  const upwards = heading.getAttribute("aria-sort") === "descending";
  const key = (row) => Number(row.cells[column].dataset.key);
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y));
    return upwards ? x - y : y - x;
  });
  for (const other of TABLE.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", upwards ? "ascending" : "descending");
  body.append(...rows);
}

function findHeads() {
  try {
    const fits = filterHeads(FIND.value);
    for (const row of TABLE.tBodies[0].rows) row.hidden = !fits[INDEX.get(labelOf(row))];
    const count = fits.filter(Boolean).length;
    FIND_ERROR.textContent = FIND.value.trim() ? `${count} of ${fits.length} heads` : "";
    FIND.removeAttribute("aria-invalid");
  } catch (error) {
    FIND_ERROR.textContent = `Not a filter: ${error.message}.`;
    FIND.setAttribute("aria-invalid", "true");
  }
}

function pin(label, wanted = !PINNED.has(label)) {
  if (wanted) PINNED.add(label);
  else PINNED.delete(label);
  for (const button of document.querySelectorAll(`[data-pin="${CSS.escape(label)}"]`)) button.setAttribute("aria-pressed", String(wanted));
  const tile = document.getElementById(label);
  tile.classList.toggle("pinned", wanted);
  if (wanted && !tile.querySelector(".panel")) fill(tile); // so that it can be printed without being opened first
  document.body.classList.toggle("has-pins", PINNED.size > 0);
  findHeads();
}

// Rows shown, headings first, with the values that the table is sorted by.
function tableLines() {
  const names = ["head", "kv_head", "offset"];
  const headings = [...TABLE.tHead.rows[1].cells].map((cell) => cell.querySelector("button").textContent);
  headings.forEach((name, n) => names.push(`${n < 5 ? "pattern" : n < 10 ? "message" : "test prompts"} ${name}`));
  const rows = [...TABLE.tBodies[0].rows].filter((row) => !row.hidden);
  return [names, ...rows.map((row) => [...row.cells].map((cell, n) => (n === 0 ? labelOf(row) : cell.dataset.key)))];
}

function csvText() {
  return tableLines().map((line) => line.join(",")).join("\n") + "\n";
}

function markdownText() {
  const [names, ...rows] = tableLines().map((line) => `| ${line.join(" | ")} |`);
  const rule = `| ${tableLines()[0].map((_, n) => (n ? "---:" : "---")).join(" | ")} |`;
  return [names, rule, ...rows].join("\n") + "\n";
}

function saveCsv() {
  const link = make("a", { href: URL.createObjectURL(new Blob([csvText()], { type: "text/csv" })), download: "heads.csv" });
  link.click();
  URL.revokeObjectURL(link.href);
}

// A page opened from a file may not be allowed to use the clipboard; the text is then selected for copying by hand.
async function copyText(text, button) {
  const told = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    const area = document.getElementById("copy-area");
    button.parentElement.after(area);
    area.hidden = false;
    area.value = text;
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Select and copy below";
    if (button.textContent === "Copied") area.hidden = true;
  }
  setTimeout(() => { button.textContent = told; }, 1600);
}

function pinButton(label) {
  const button = make("button", { type: "button", class: "pin", "data-pin": label, "aria-pressed": "false", "aria-label": `pin ${label}`, title: `pin ${label}` });
  button.addEventListener("click", (event) => { event.preventDefault(); event.stopPropagation(); pin(label); });
  return button;
}

// On a card, for the pointer: nothing that takes the focus may stand in a summary; keys use p, or the button of the table.
function pinMark(label) {
  const mark = make("span", { class: "pin", "data-pin": label, "aria-hidden": "true", title: `pin ${label}` });
  mark.addEventListener("click", (event) => { event.preventDefault(); pin(label); });
  return mark;
}

function startTable() {
  for (const button of TABLE.querySelectorAll("thead button")) {
    button.addEventListener("click", () => sortTable(Number(button.dataset.column), button.closest("th")));
  }
  for (const row of TABLE.tBodies[0].rows) row.cells[0].prepend(pinButton(labelOf(row)));
  FIND.addEventListener("input", findHeads);
  document.getElementById("csv").addEventListener("click", saveCsv);
  for (const [id, text] of [["copy-csv", csvText], ["copy-markdown", markdownText]]) {
    const button = document.getElementById(id);
    button.addEventListener("click", () => copyText(text(), button));
  }
  for (const name of ["citation", "bibtex"]) {
    const button = document.getElementById(`copy-${name}`);
    button.addEventListener("click", () => copyText(document.getElementById(name).textContent, button));
  }
}
