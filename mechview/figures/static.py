"""Figures as files: PNG, SVG and PDF, by kaleido where it finds a Chrome, else drawn by matplotlib.

Both are the `static` extra. kaleido prints what a browser would show; the other way redraws the traces
that mechview's figures are made of (heat maps, bars, lines, waterfalls), so that a machine without any
browser still gets pictures. Which way was taken is part of the answer. JSON is plotly's own and needs neither.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
from dataclasses import dataclass
from typing import Any

from mechview.errors import OutputError

PICTURES = ("png", "svg", "pdf", "json")
WIDTH, HEIGHT, DPI = 900, 560, 150
CHROMES = ("chromium", "google-chrome", "chrome", "chromium-browser", "google-chrome-stable")
WAYS = {
    "kaleido": "drawn by plotly in a browser (kaleido)",
    "matplotlib": "drawn by matplotlib, because kaleido or a Chrome for it is missing",
    "plotly": "plotly's own JSON",
}


@dataclass(frozen=True)
class Picture:
    """A file's bytes, and the way they were made: a key of `WAYS`."""

    data: bytes
    way: str


def picture(figure: Any, kind: str, *, way: str | None = None) -> Picture:
    """A plotly figure as a file.

    Args:
        kind: `png`, `svg`, `pdf` or `json`.
        way: `kaleido` or `matplotlib`; what is there, unless given.

    Raises:
        OutputError: another kind, or neither library is installed.
    """
    if kind not in PICTURES:
        raise OutputError(f"{kind} is not a kind of picture; choose one of {', '.join(PICTURES)}")
    if kind == "json":
        return Picture(figure.to_json().encode(), "plotly")
    chosen = way or available()
    if chosen == "kaleido":
        width, height = size(figure)
        return Picture(figure.to_image(format=kind, width=width, height=height, scale=2), chosen)
    if chosen != "matplotlib":
        raise OutputError(f"there is no way {chosen} to draw a picture; use kaleido or matplotlib")
    return Picture(_drawn(figure, kind), chosen)


def available() -> str:
    """How pictures are made here.

    Raises:
        OutputError: neither library is installed.
    """
    if importlib.util.find_spec("kaleido") and any(shutil.which(name) for name in CHROMES):
        return "kaleido"
    if importlib.util.find_spec("matplotlib"):
        return "matplotlib"
    raise OutputError("pictures need the static extra: pip install 'mechview[static]'")


def size(figure: Any) -> tuple[int, int]:
    """Width and height in CSS pixels: the figure's own, where it has any."""
    return int(figure.layout.width or WIDTH), int(figure.layout.height or HEIGHT)


def _drawn(figure: Any, kind: str) -> bytes:
    import warnings

    from matplotlib.figure import Figure

    from mechview.figures.redrawn import redraw

    width, height = size(figure)
    canvas = Figure(figsize=(width / 100, height / 100), layout="constrained")
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # shown as boxes; the tables hold the text
        redraw(figure, canvas)
        canvas.savefig(buffer, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
