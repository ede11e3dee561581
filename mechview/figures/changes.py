"""Figures of change: which components differ between two sides, and what ablating or patching them does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import INK, MESSAGE, PATTERN, QUIET, TEMPLATE, counted
from mechview.results import figure_of

MOST = 24


@figure_of("Effects")
def _effects(effects: Any) -> go.Figure:
    return direct_and_total(effects.frame())


@figure_of("Patching")
def _patching(patching: Any) -> go.Figure:
    return patched(patching.frame())


def largest_changes(
    compare: pd.DataFrame, quantities: tuple[str, ...], identical: bool = False, most: int = MOST
) -> go.Figure:
    """The components that differ most in the given quantities, with intervals where there are some."""
    rows = compare[compare["quantity"].isin(quantities)]
    rows = rows.reindex(rows["delta"].abs().sort_values(ascending=False).index).drop_duplicates(
        ["component", "quantity"]
    )
    names = list(dict.fromkeys(rows["component"]))[:most]
    figure = go.Figure()
    for quantity, colour in zip(quantities, (PATTERN, MESSAGE, QUIET, INK), strict=False):
        one = rows[(rows["quantity"] == quantity) & rows["component"].isin(names)]
        spread = None if one["lo"].isna().all() else _interval(one)
        figure.add_trace(go.Bar(x=one["component"], y=one["delta"], name=quantity, marker_color=colour, error_y=spread))
    first = compare.iloc[0]
    title = f"{first['model_a']} against {first['model_b']}" + (": identical" if identical else "")
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows["delta"])}, barmode="group")
    figure.update_xaxes(title_text="component, largest difference first", type="category", categoryarray=names)
    figure.update_yaxes(title_text="difference b - a, or norm of it", zeroline=True, zerolinecolor=QUIET)
    return figure


def _interval(rows: pd.DataFrame) -> dict[str, Any]:
    up, down = rows["hi"] - rows["delta"], rows["delta"] - rows["lo"]
    return {"type": "data", "symmetric": False, "array": np.maximum(up, 0), "arrayminus": np.maximum(down, 0)}


def direct_and_total(effects: pd.DataFrame, most: int = MOST) -> go.Figure:
    """Direct beside total effect of the components that matter most."""
    rows = effects.reindex(effects["total"].abs().sort_values(ascending=False).index).head(most)
    figure = go.Figure()
    for column, colour in (("direct", QUIET), ("total", PATTERN)):
        figure.add_trace(go.Bar(x=rows["component"], y=rows[column], name=f"{column} effect", marker_color=colour))
    first = effects.iloc[0]
    title = f"{first['metric']} at position {first['position']}, components replaced by {first['method']}"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows["total"])}, barmode="group")
    figure.update_xaxes(title_text="component, largest total effect first", type="category")
    figure.update_yaxes(title_text="effect (logit units)", zeroline=True, zerolinecolor=QUIET)
    return figure


def patched(patching: pd.DataFrame, most: int = MOST) -> go.Figure:
    """How much of the clean metric each patched pass restores."""
    rows = patching.reindex(patching["change"].abs().sort_values(ascending=False).index).head(most)
    at = ["" if pd.isna(p) else f" at {p}" for p in rows["patched_position"]]
    figure = go.Figure(
        go.Bar(x=[f"{name}{place}" for name, place in zip(rows["component"], at, strict=True)], y=rows["normalised"])
    )
    first = patching.iloc[0]
    title = f"{first['metric']}: {first['corrupted']:.3g} corrupted, {first['clean']:.3g} clean"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows["normalised"])})
    figure.update_xaxes(title_text="patched component, largest change first", type="category")
    figure.update_yaxes(title_text="restored share (0 none, 1 clean)", zeroline=True, zerolinecolor=QUIET)
    return figure
