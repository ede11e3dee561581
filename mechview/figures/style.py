"""The look shared by all figures: template `mechview`, colours that colour-blind readers can tell apart.

One-sided quantities use one hue from light to dark. Signed ones use blue to orange with zero pinned in
the middle. NaN has a colour of its own that neither scale contains, and the letters NaN on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio

from mechview.errors import CheckError

TEMPLATE = "mechview"
SEQUENTIAL = ["#f4f7fa", "#cfdeea", "#9fc0d8", "#6699bf", "#37719f", "#1b4b76", "#0b2847"]
DIVERGING = ["#1b4b76", "#5f93bd", "#bcd3e4", "#f7f7f5", "#f0cfae", "#d98f4e", "#94500f"]
NAN = "#c2187a"
PATTERN, MESSAGE, INK, QUIET = "#37719f", "#c06a1f", "#23282e", "#8a939c"
FOR, AGAINST = "#c06a1f", "#37719f"  # signs of bars, as the two ends of DIVERGING
EMPTY = "#cccccc"  # behind cells that hold no number
SIDES = {"pattern": PATTERN, "message": MESSAGE}
QUANTITIES = {
    "pattern": PATTERN, "message": MESSAGE, "attention": "#3f8f6b", "stream": "#7a5ba6", "logits": INK,
}  # fmt: skip
PSEUDO_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"})


def plain_text(text: str) -> str:
    """Text that plotly shows as typed: its tags, links, entities and formulas lose their meaning."""
    return text.translate(PSEUDO_HTML)


def scale(colours: list[str]) -> list[list[Any]]:
    """Colours at equal steps, as plotly wants them."""
    return [[n / (len(colours) - 1), colour] for n, colour in enumerate(colours)]


def counted(title: str, values: Any) -> str:
    """The title, with how many of the values are NaN or infinite."""
    wrong = int((~np.isfinite(np.asarray(values, dtype=float))).sum())
    return plain_text(title) + (f" ({wrong} NaN or infinite)" if wrong else "")


def only(frame: pd.DataFrame, column: str, value: Any) -> pd.DataFrame:
    """The rows with this value.

    Raises:
        CheckError: there are none.
    """
    rows = frame[frame[column] == value]
    if rows.empty:
        known = ", ".join(map(str, frame[column].dropna().unique()[:12]))
        raise CheckError(f"this table has no {column} {value}; it has {known or 'no rows'}")
    return rows


def _axis() -> dict[str, Any]:
    return {
        "showgrid": False, "zeroline": False, "showline": True, "linecolor": QUIET, "ticks": "outside",
        "tickcolor": QUIET, "ticklen": 4, "automargin": True, "title": {"standoff": 10},
    }  # fmt: skip


def _template() -> go.layout.Template:
    return go.layout.Template(
        layout={
            "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 13, "color": INK},
            "title": {"x": 0.0, "xref": "paper", "font": {"size": 16}},
            "paper_bgcolor": "#ffffff",
            "plot_bgcolor": "#ffffff",
            "colorway": [PATTERN, MESSAGE, "#3f8f6b", "#7a5ba6", "#b0486a", INK],
            "colorscale": {"sequential": scale(SEQUENTIAL), "diverging": scale(DIVERGING)},
            "xaxis": _axis(),
            "yaxis": _axis(),
            "hoverlabel": {"align": "left"},
            "margin": {"l": 70, "r": 30, "t": 60, "b": 60},
        }
    )


pio.templates[TEMPLATE] = _template()
