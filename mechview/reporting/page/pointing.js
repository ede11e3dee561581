// Pointing at cells: hovering reads, a click holds the place, a second click lets go; arrow keys move one cell.

function lockable(canvas, point) {
  let held = false;
  canvas.addEventListener("pointermove", (event) => { if (!held) point(event); });
  canvas.addEventListener("click", (event) => {
    held = !held;
    canvas.classList.toggle("held", held);
    point(event);
  });
}

const MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

function arrowKeys(element, move) {
  element.addEventListener("keydown", (event) => {
    if (!(event.key in MOVES)) return;
    event.preventDefault();
    event.stopPropagation();
    move(...MOVES[event.key]);
  });
}
