"""Figures of change: which components differ between two sides, and what ablating or patching them does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import (
    AGAINST,
    DIVERGING,
    EMPTY,
    FOR,
    INK,
    MESSAGE,
    PATTERN,
    QUIET,
    TEMPLATE,
    counted,
    scale,
)  # fmt: skip
from mechview.results import figure_of

MOST = 24


@figure_of("Effects")
def _effects(effects: Any) -> go.Figure:
    return direct_and_total(effects.frame())


@figure_of("Patching")
def _patching(patching: Any) -> go.Figure:
    return patched(patching.frame())


def largest_changes(
    compare: pd.DataFrame,
    quantities: tuple[str, ...],
    identical: bool = False,
    most: int = MOST,
    about: str | None = None,
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
    title = (about or f"{first['model_a']} against {first['model_b']}") + (": identical" if identical else "")
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
    """How much of the clean metric each patched pass restores, or carries along a path.

    Of several positions a map of components by positions; of identical prompts the changes themselves, which are 0.
    """
    if patching["patched_position"].nunique() > 1:
        return patched_map(patching)
    rows = patching.reindex(patching["change"].abs().sort_values(ascending=False).index).head(most)
    at = ["" if pd.isna(p) else f" at {p}" for p in rows["patched_position"]]
    shown, said = _shown(patching)
    figure = go.Figure(
        go.Bar(
            x=[f"{name}{place}" for name, place in zip(rows["component"], at, strict=True)], y=rows[shown],
            marker={"color": [FOR if value > 0 else AGAINST for value in rows[shown]]},
        )
    )  # fmt: skip
    path = str(patching["receiver"].iloc[0])
    figure.update_layout(template=TEMPLATE, title={"text": counted(_runs(patching), rows[shown])})
    where = f"sender of a path to {path}" if path else "patched component"
    figure.update_xaxes(title_text=f"{where}, largest change first", type="category")
    figure.update_yaxes(title_text=said, zeroline=True, zerolinecolor=QUIET)
    return figure


def patched_map(patching: pd.DataFrame) -> go.Figure:
    """Components down, patched positions across: where the clean values make the difference (causal tracing)."""
    shown, said = _shown(patching)
    names = list(dict.fromkeys(patching["component"]))
    wide = patching.pivot(index="component", columns="patched_position", values=shown).reindex(index=names)
    z = wide.to_numpy(dtype=float)
    top = float(np.nanmax(np.abs(z))) if np.isfinite(z).any() else 0.0
    figure = go.Figure(
        go.Heatmap(
            z=z, x=list(wide.columns), y=names, colorscale=scale(DIVERGING), zmid=0, zmin=-(top or 1.0), zmax=top or 1.0,
            colorbar={"title": {"text": said.split(" (")[0]}}, hovertemplate="%{y} at %{x}: %{z:.4g}<extra></extra>",
        )
    )  # fmt: skip
    title = counted(_runs(patching), z)
    height = 160 + max(18, min(40, 400 // len(names))) * len(names)
    figure.update_layout(template=TEMPLATE, title={"text": title}, height=height, plot_bgcolor=EMPTY)
    figure.update_xaxes(title_text="patched position", dtick=max(1, z.shape[1] // 16))
    figure.update_yaxes(title_text="patched component", autorange="reversed", type="category")
    return figure


def _shown(patching: pd.DataFrame) -> tuple[str, str]:
    """The column that is drawn, and its axis: shares, or plain changes where there is no gap to be a share of."""
    if patching["normalised"].isna().all():
        return "change", "change of the metric (identical prompts)"
    path = bool(patching["receiver"].iloc[0])
    return "normalised", "share of the gap (-1 all of it)" if path else "restored share (0 none, 1 clean)"


def _runs(patching: pd.DataFrame) -> str:
    first = patching.iloc[0]
    return f"{first['metric']}: {first['corrupted']:.3g} corrupted, {first['clean']:.3g} clean"
