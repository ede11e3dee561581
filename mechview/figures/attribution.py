"""Figures of attribution: components by position for one prompt, and means over prompts with their spread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import DIVERGING, PATTERN, TEMPLATE, counted, scale
from mechview.results import figure_of

MOST = 24


@figure_of("Attribution")
def _attribution(found: Any) -> go.Figure:
    return shares_by_position(found.frame())


@figure_of("MeanAttribution")
def _mean(found: Any) -> go.Figure:
    return mean_shares(found.frame())


def shares_by_position(contrib: pd.DataFrame) -> go.Figure:
    """Values of a `contrib` frame along one direction, components down and positions across."""
    names = list(dict.fromkeys(contrib["component"]))
    wide = contrib.pivot(index="component", columns="pos", values="value").reindex(index=names)
    z = wide.to_numpy(dtype=float)
    inner = z[:, 1:] if z.shape[1] > 1 else z
    top = float(np.nanmax(np.abs(inner))) if np.isfinite(inner).any() else 1.0
    heat = go.Heatmap(
        z=z, x=list(wide.columns), y=names, colorscale=scale(DIVERGING), zmin=-top, zmax=top, zmid=0,
        colorbar={"title": {"text": "share"}}, hovertemplate="%{y} at position %{x}: %{z:.4g}<extra></extra>",
    )  # fmt: skip
    error = float(contrib["completeness_error"].iloc[0])
    title = f"{contrib['target'].iloc[0]} by position (rows off by {error:.1e}; colours scaled without position 0)"
    figure = go.Figure(heat)
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, z)}, height=140 + 16 * len(names))
    figure.update_xaxes(title_text="position", dtick=max(1, z.shape[1] // 16))
    figure.update_yaxes(title_text="component", autorange="reversed", type="category")
    return figure


def mean_shares(means: pd.DataFrame, most: int = MOST) -> go.Figure:
    """The components with the largest mean share, with one standard deviation over prompts."""
    kept = means.loc[means["mean"].abs().nlargest(most).index]
    spread = {"type": "data", "array": kept["sd"].fillna(0.0)}
    figure = go.Figure(go.Bar(x=kept["component"], y=kept["mean"], error_y=spread, marker={"color": PATTERN}))
    first = means.iloc[0]
    title = f"{first['target']}: mean over {first['n']} prompts, bars of one sd"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, means["mean"])})
    figure.update_xaxes(title_text="component", type="category")
    figure.update_yaxes(title_text="share (logit units for a token)")
    return figure
