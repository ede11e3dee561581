"""Figures of the residual stream: waterfall of a logit, rows by position, lens, and a score's writers.

Position 0 often has norms hundreds of times the others': colours are scaled to the other positions, and
the title says so. The waterfall ends at the model's own value, not at the sum of the bars.
"""

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
    SEQUENTIAL,
    TEMPLATE,
    counted,
    plain_text,
    scale,
)
from mechview.results import figure_of

MOST = 24
COLUMNS = {
    "cos_stream": "cosine to the stream before",
    "cos_direction": "cosine to the direction",
    "cos_total": "cosine to the whole stream",
}


@figure_of("Shares")
def _shares(shares: Any) -> go.Figure:
    return waterfall(shares.frame())


@figure_of("Ledger")
def _ledger(ledger: Any) -> go.Figure:
    return rows_by_position(ledger.frame())


@figure_of("Lens")
def _lens(lens: Any) -> go.Figure:
    return lens_trajectory(lens.frame())


@figure_of("ScoreLedger")
def _score(found: Any) -> go.Figure:
    return score_map(found.frame())


def waterfall(contrib: pd.DataFrame, most: int = MOST) -> go.Figure:
    """Shares of a `contrib` frame, the largest in the order they are written, the others as one bar.

    Rows of exactly 0 have no bar.
    """
    there = contrib[contrib["value"] != 0]
    kept = there.loc[there.index.isin(there["value"].abs().nlargest(most).index)]
    rest, others = float(there["value"].sum() - kept["value"].sum()), len(there) - len(kept)
    names, values = [*kept["component"]], [*kept["value"]]
    if others:
        names, values = [*names, f"{others} others"], [*values, rest]
    figure = go.Figure(
        go.Waterfall(
            x=[*names, "total"],
            y=[*values, float(contrib["total"].iloc[0])],
            measure=["relative"] * len(names) + ["total"],
            increasing={"marker": {"color": FOR}},
            decreasing={"marker": {"color": AGAINST}},
            totals={"marker": {"color": INK}},
            connector={"line": {"color": QUIET, "width": 1}},
            hovertemplate="%{x}: %{delta:.4g}<extra></extra>",
        )
    )
    first = contrib.iloc[0]
    title = f"{first['target']} at position {first['pos']} (rows off by {first['completeness_error']:.1e})"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, contrib["value"])})
    figure.update_xaxes(title_text="component", type="category")
    figure.update_yaxes(title_text="share (logit units for a token)")
    return figure


def rows_by_position(contrib: pd.DataFrame, column: str = "norm") -> go.Figure:
    """A column of a ledger's `contrib` frame, components down and positions across."""
    names = list(dict.fromkeys(contrib["component"]))
    wide = contrib.pivot(index="component", columns="pos", values=column).reindex(index=names)
    z = wide.to_numpy(dtype=float)
    inner = z[:, 1:] if z.shape[1] > 1 else z
    top = float(np.nanmax(np.abs(inner))) if np.isfinite(inner).any() else 1.0
    signed = column.startswith("cos")
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=list(wide.columns),
            y=names,
            colorscale=scale(DIVERGING if signed else SEQUENTIAL),
            zmin=-1.0 if signed else 0.0,
            zmax=1.0 if signed else top,
            colorbar={"title": {"text": column.replace("_", " ")}},
            hovertemplate="%{y} at position %{x}: %{z:.4g}<extra></extra>",
        )
    )
    scaled = "" if signed else " (colours scaled without position 0)"
    title = f"{COLUMNS.get(column, column.replace('_', ' '))} of each row by position{scaled}"
    empty = (
        signed & (contrib.pivot(index="component", columns="pos", values="norm").reindex(index=names) == 0).to_numpy()
    )
    said = counted(title, np.where(empty, 0.0, z)) + ("; rows of zeros are grey" if empty.any() else "")
    figure.update_layout(template=TEMPLATE, title={"text": said}, height=140 + 16 * len(names), plot_bgcolor=EMPTY)
    figure.update_xaxes(title_text="position", dtick=max(1, z.shape[1] // 16))
    figure.update_yaxes(title_text="component", autorange="reversed", type="category")
    return figure


def lens_trajectory(lens: pd.DataFrame, position: int | None = None) -> go.Figure:
    """Probability of the target (or of each point's likeliest token) and KL to the end, point by point."""
    position = int(lens["pos"].max()) if position is None else position
    rows = lens[lens["pos"] == position]
    asked = bool(rows["target_id"].notna().any())
    column = "prob" if asked else "top_prob"
    figure = go.Figure()
    figure.add_trace(
        _line(rows, column, "probability of the target" if asked else "probability of the likeliest", PATTERN)
    )
    figure.add_trace(_line(rows, "kl_final", "KL to the model's output, nats", MESSAGE, axis="y2"))
    most = float(np.nanmax(rows["kl_final"].to_numpy(dtype=float), initial=0.0)) or 1.0
    figure.update_layout(
        template=TEMPLATE,
        title={"text": counted(f"logit lens at position {position}", rows[column])},
        yaxis2={
            "title": {"text": "KL to the end (nats)"},
            "overlaying": "y",
            "side": "right",
            "tickmode": "auto",
            "range": [-0.02 * most, 1.03 * most],
        },
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        margin={"t": 96},
    )
    figure.update_xaxes(title_text="point of the stream", type="category")
    figure.update_yaxes(title_text="probability", range=[-0.02, 1.03], selector={"side": None})
    return figure


def _line(rows: pd.DataFrame, column: str, name: str, colour: str, axis: str = "y") -> go.Scatter:
    return go.Scatter(
        x=list(rows["point"]),
        y=rows[column],
        name=name,
        yaxis=axis,
        mode="lines+markers",
        line={"color": colour},
        text=[plain_text(token) for token in rows["top_token"]],
        hovertemplate="%{x}: %{y:.3g} (likeliest: %{text})<extra></extra>",
    )


def score_map(pairs: pd.DataFrame, most: int = MOST) -> go.Figure:
    """Who wrote the query side against who wrote the key side; the writers that matter most on each."""
    inner = pairs[pairs["query_component"] != "position_bias"]
    wide = inner.pivot(index="query_component", columns="key_component", values="value")
    rows = wide.abs().sum(axis=1).nlargest(most).index
    columns = wide.abs().sum(axis=0).nlargest(most).index
    asks, asked = (list(dict.fromkeys(inner[side])) for side in ("query_component", "key_component"))
    shown = wide.reindex(index=[n for n in asks if n in rows], columns=[n for n in asked if n in columns])
    z = shown.to_numpy(dtype=float)
    top = float(np.nanmax(np.abs(z))) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=z, x=list(shown.columns), y=list(shown.index), colorscale=scale(DIVERGING), zmid=0, zmin=-top, zmax=top,
            colorbar={"title": {"text": "score"}}, hovertemplate="query by %{y}, key by %{x}: %{z:.4g}<extra></extra>",
        )
    )  # fmt: skip
    first = pairs.iloc[0]
    title = f"{first['label']}: score of position {first['q_pos']} on {first['k_pos']} = {first['total']:.3f}"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, z)})
    figure.update_xaxes(title_text="key side written by", type="category")
    figure.update_yaxes(title_text="query side written by", autorange="reversed", type="category")
    return figure
