"""Figures of head tables: one measurement of every head as a grid, and the spectra of one head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import DIVERGING, NAN, QUIET, SEQUENTIAL, SIDES, TEMPLATE, counted, only, plain_text, scale
from mechview.results import figure_of

DEFAULT_METRIC = "message_effective_rank"
STACKS = ("encoder", "decoder", "cross")


@figure_of("HeadTable")
def _head_table(table: Any) -> go.Figure:
    return head_grid(table.frame())


def head_grid(heads: pd.DataFrame, metric: str = DEFAULT_METRIC, column: str = "value") -> go.Figure:
    """One metric of a `heads` frame, layers down and heads across.

    Args:
        column: `value`, or `z` for the distance from the null in its standard deviations.
    """
    rows = only(heads, "metric", metric)
    stacks = [stack for stack in STACKS if (rows["stack"] == stack).any()]
    cells = [_place(rows[rows["stack"] == stack], stack, column, len(stacks) > 1) for stack in stacks]
    grid = pd.concat(cells)
    unit = "z" if column == "z" else str(rows["unit"].iloc[0])
    figure = go.Figure(_heatmap(grid, column, unit, heads, metric))
    figure.add_trace(_nan_marks(grid[~np.isfinite(grid["shown"])]))
    title = counted(f"{metric.replace('_', ' ')} of {heads['model'].iloc[0]}", grid["shown"])
    figure.update_layout(template=TEMPLATE, title={"text": title}, showlegend=False)
    figure.update_xaxes(title_text="head", dtick=1, constrain="domain")
    figure.update_yaxes(title_text="layer", autorange="reversed", type="category")
    return figure


def _place(rows: pd.DataFrame, stack: str, column: str, several: bool) -> pd.DataFrame:
    prefix = f"{stack} " if several else ""
    return rows.assign(row=[f"{prefix}{layer}" for layer in rows["layer"]], shown=rows[column].astype(float))


def _heatmap(grid: pd.DataFrame, column: str, unit: str, heads: pd.DataFrame, metric: str) -> go.Heatmap:
    names, across = list(dict.fromkeys(grid["row"])), sorted(grid["head"].unique())
    wide = grid.pivot(index="row", columns="head", values="shown").reindex(index=names, columns=across)
    labels = grid.pivot(index="row", columns="head", values="label").reindex(index=names, columns=across)
    mean = grid["null_mean"].iloc[0]
    null = "" if np.isnan(mean) else f"<br>null {mean:.4g} ± {grid['null_sd'].iloc[0]:.2g}"
    signed = column == "z" or bool((wide.to_numpy(dtype=float) < 0).any())
    return go.Heatmap(
        z=wide.to_numpy(dtype=float),
        x=across,
        y=names,
        text=labels.fillna("").to_numpy(),
        colorscale=scale(DIVERGING if signed else SEQUENTIAL),
        zmid=0.0 if signed else None,
        xgap=2,
        ygap=2,
        hoverongaps=False,
        hovertemplate=f"%{{text}}<br>%{{z:.4g}} {unit}{null}<extra></extra>",
        colorbar={"title": {"text": plain_text(unit)}, "outlinewidth": 0},
    )


def _nan_marks(rows: pd.DataFrame) -> go.Scatter:
    words = ["NaN" if np.isnan(value) else f"{value:+}" for value in rows["shown"]]
    return go.Scatter(
        x=rows["head"],
        y=rows["row"],
        mode="markers+text",
        text=words,
        textfont={"color": "#ffffff", "size": 10},
        marker={"symbol": "square", "size": 26, "color": NAN},
        customdata=rows["label"],
        hovertemplate="%{customdata}<br>%{text}<extra></extra>",
        name="NaN",
    )


@figure_of("HeadFactors")
def _factors(factors: Any) -> go.Figure:
    return spectrum(factors.frame(), factors.label)


def spectrum(svd: pd.DataFrame, label: str, null: pd.DataFrame | None = None) -> go.Figure:
    """Singular values of one head's pattern and message.

    Args:
        svd: frame of the `svd` schema.
        null: columns `index`, `mean`, `sd` of singular value / Frobenius norm for Gaussian factors;
            drawn at each side's own norm, so that only the shape is compared.
    """
    rows = only(svd, "label", label)
    figure = go.Figure()
    for side, colour in SIDES.items():
        values = rows[rows["side"] == side].sort_values("index")
        if null is not None:
            _add_null(figure, null, float(np.sqrt((values["sigma"] ** 2).sum())), side, colour)
        figure.add_scatter(
            x=values["index"] + 1,
            y=values["sigma"],
            mode="lines+markers",
            name=side,
            line={"color": colour, "width": 2},
            marker={"size": 6, "symbol": np.where(values["degenerate"], "circle-open", "circle")},
            hovertemplate=f"{side} σ%{{x}} = %{{y:.4g}}<extra></extra>",
        )
    title = counted(f"spectra of {label}, {rows['model'].iloc[0]}", rows["sigma"])
    figure.update_layout(template=TEMPLATE, title={"text": title}, hovermode="x unified")
    figure.update_xaxes(title_text="index of the singular value")
    figure.update_yaxes(title_text="singular value (weight units)", rangemode="tozero")
    return figure


def _add_null(figure: go.Figure, null: pd.DataFrame, norm: float, side: str, colour: str) -> None:
    x, mean, spread = null["index"] + 1, null["mean"] * norm, 2 * null["sd"] * norm
    band = {"mode": "lines", "hoverinfo": "skip", "showlegend": False, "line": {"width": 0}}
    figure.add_scatter(x=x, y=mean + spread, name=f"{side} null, upper", **band)
    figure.add_scatter(
        x=x, y=mean - spread, name=f"{side} null, lower", fill="tonexty", fillcolor=_faint(colour), **band
    )
    figure.add_scatter(
        x=x, y=mean, mode="lines", name=f"{side} null (Gaussian, same norm, ± 2 sd)",
        line={"color": QUIET, "width": 1, "dash": "dot"}, hoverinfo="skip",
    )  # fmt: skip


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"
