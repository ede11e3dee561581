const form = document.querySelector("form");
const state = document.getElementById("state");
const frame = document.querySelector("iframe");
form.addEventListener("submit", () => { state.textContent = "Running…"; });
frame.addEventListener("load", () => { if (state.textContent) state.textContent = "Shown below."; });
document.getElementById("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
