// Printing: pinned cards are opened for the paper, with their pictures laid out anew, and closed again afterwards.

const OPENED = new Set();

function layoutPictures() {
  for (const panel of OPEN_PANELS) {
    if (!panel.element.isConnected) OPEN_PANELS.delete(panel);
    else { panel.layout(); panel.draw(); }
  }
}

function openForPaper() {
  for (const tile of document.querySelectorAll(".tile.pinned:not([open])")) { tile.open = true; OPENED.add(tile); }
  layoutPictures();
}

function closeAfterPaper() {
  for (const tile of OPENED) tile.open = false;
  OPENED.clear();
}

function startPrinting() {
  window.addEventListener("beforeprint", openForPaper);
  window.addEventListener("afterprint", closeAfterPaper);
}
