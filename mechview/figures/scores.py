"""Figures of what heads do: a metric over all heads with what lies outside its null marked, profiles, roles.

A mark on a cell means that the value lies outside the 95 % band of its layer's null; a cell without one may
be large and still be what permuted weights give. The band is computed by the numbers' own function.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.heads import head_grid
from mechview.figures.style import INK, PATTERN, QUIET, TEMPLATE, counted, only, plain_text
from mechview.heads.bands import null_band
from mechview.results import figure_of

COLOURS = ["#37719f", "#c06a1f", "#3f8f6b", "#7a5ba6", "#b0486a", "#8c8c2e", "#4aa3a3", "#a0522d", "#5b6770"]
SILENT = {"mixed": "#c9ced3", "unknown": "#eef0f2"}


@figure_of("HeadScores")
def _scores(scores: Any) -> go.Figure:
    return score_grid(scores.frame(), scores.metrics[0])


@figure_of("CausalCheck")
def _causal(check: Any) -> go.Figure:
    frame = check.frame()
    return score_grid(frame, str(frame["metric"].iloc[0]))


@figure_of("Roles")
def _roles(roles: Any) -> go.Figure:
    return role_map(roles.frame())


@figure_of("DistanceProfile")
def _profile(profile: Any) -> go.Figure:
    frame = profile.frame()
    return distance_lines(frame, str(frame["label"].iloc[0]))


def score_grid(heads: pd.DataFrame, metric: str) -> go.Figure:
    """One metric of a `heads` frame, layers down and heads across; a ring marks heads outside their null band."""
    rows = only(heads, "metric", metric)
    figure = head_grid(heads, metric)
    several = rows["stack"].nunique() > 1
    far = rows[outside(rows)]
    places = [
        f"{stack} {layer}" if several else str(layer) for stack, layer in zip(far["stack"], far["layer"], strict=True)
    ]
    figure.add_trace(
        go.Scatter(
            x=far["head"], y=places, mode="markers", name="outside the null", text=far["label"], customdata=far["z"],
            marker={"symbol": "circle-open", "size": 12, "color": INK, "line": {"width": 2}},
            hovertemplate="%{text}: z = %{customdata:.3g}, outside the 95 % band of its layer's null<extra></extra>",
        )
    )  # fmt: skip
    return figure


def outside(rows: pd.DataFrame) -> np.ndarray:
    """Rows of a `heads` frame whose value lies outside the 95 % band of its null."""
    bands = [null_band(*null) for null in zip(rows["null_mean"], rows["null_sd"], rows["n"], strict=True)]
    low, high = (np.array([band[n] for band in bands], dtype=float) for n in (0, 1))
    value = rows["value"].to_numpy(dtype=float)
    return (value < low) | (value > high)


def distance_lines(distances: pd.DataFrame, label: str) -> go.Figure:
    """Mean attention of one head by distance, over the band of permuted weights."""
    rows = only(distances, "label", label).sort_values("distance")
    bands = [null_band(*null) for null in zip(rows["null_mean"], rows["null_sd"], rows["n"], strict=True)]
    figure = go.Figure()
    edge: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=rows["distance"], y=[high for _, high in bands], **edge)
    figure.add_scatter(
        x=rows["distance"],
        y=[max(low, 0.0) for low, _ in bands],
        fill="tonexty",
        fillcolor="rgba(138,147,156,0.25)",
        **edge,
    )
    figure.add_scatter(
        x=rows["distance"], y=rows["null_mean"], mode="lines", name="permuted weights (band: 95 %)",
        line={"color": QUIET, "dash": "dot", "width": 1},
    )  # fmt: skip
    figure.add_scatter(
        x=rows["distance"], y=rows["value"], mode="lines+markers", name=label, line={"color": PATTERN, "width": 2},
        marker={"size": 5}, hovertemplate="distance %{x}: %{y:.4g}<extra></extra>",
    )  # fmt: skip
    title = counted(f"attention of {label} by distance, {rows['model'].iloc[0]}", rows["value"])
    figure.update_layout(template=TEMPLATE, title={"text": title})
    figure.update_xaxes(title_text="distance q − k (tokens)")
    figure.update_yaxes(title_text="mean weight", rangemode="tozero")
    return figure


def role_map(roles: pd.DataFrame) -> go.Figure:
    """Every head in the colour of its first role; the hover says all of them."""
    heads = roles.drop_duplicates("label")
    several = heads["stack"].nunique() > 1
    first = heads["roles"].str.split("+").str[0]
    order = [name for name in [*roles["role"].cat.categories, *SILENT] if (first == name).any()]
    colours = {name: SILENT.get(name) or COLOURS[n % len(COLOURS)] for n, name in enumerate(order)}
    figure = go.Figure()
    for name in order:
        here = heads[first == name]
        rows = [f"{s} {n}" if several else str(n) for s, n in zip(here["stack"], here["layer"], strict=True)]
        figure.add_scatter(
            x=here["head"], y=rows, mode="markers", name=name.replace("_", " "), text=here["label"],
            marker={"symbol": "square", "size": 18, "color": colours[name], "line": {"color": QUIET, "width": 1}},
            customdata=[plain_text(text.replace("+", ", ").replace("_", " ")) for text in here["roles"]],
            hovertemplate="%{text}: %{customdata}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        template=TEMPLATE, title={"text": plain_text(f"roles of the heads of {heads['model'].iloc[0]}")}
    )
    figure.update_xaxes(title_text="head", dtick=1)
    layers = list(
        dict.fromkeys(f"{s} {n}" if several else str(n) for s, n in zip(heads["stack"], heads["layer"], strict=True))
    )
    figure.update_yaxes(title_text="layer", type="category", categoryorder="array", categoryarray=layers[::-1])
    return figure
