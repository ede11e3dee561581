// The head table: sorting by click, finding by name, saving as CSV.

const TABLE = document.getElementById("head-table");

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

function findHeads(text) {
  const wanted = text.trim().toLowerCase();
  const fits = (label) => label.toLowerCase().includes(wanted);
  for (const row of TABLE.tBodies[0].rows) row.hidden = !fits(row.cells[0].textContent.trim());
}

function csvText() {
  const names = ["head", "kv_head", "offset"];
  const headings = [...TABLE.tHead.rows[1].cells].map((cell) => cell.querySelector("button").textContent);
  headings.forEach((name, n) => names.push(`${n < 5 ? "pattern" : n < 10 ? "message" : "test prompts"} ${name}`));
  const lines = [...TABLE.tBodies[0].rows].map((row) =>
    [...row.cells].map((cell, n) => (n === 0 ? cell.textContent.trim() : cell.dataset.key)).join(","));
  return [names.join(","), ...lines].join("\n") + "\n";
}

function saveCsv() {
  const link = make("a", { href: URL.createObjectURL(new Blob([csvText()], { type: "text/csv" })), download: "heads.csv" });
  link.click();
  URL.revokeObjectURL(link.href);
}

function startTable() {
  for (const button of TABLE.querySelectorAll("thead button")) {
    button.addEventListener("click", () => sortTable(Number(button.dataset.column), button.closest("th")));
  }
  document.getElementById("find").addEventListener("input", (event) => findHeads(event.target.value));
  document.getElementById("csv").addEventListener("click", saveCsv);
}
