"""Figures of composition and similarity: every pair as a map, and the pairs beyond the null as a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import DIVERGING, MESSAGE, PATTERN, QUIET, TEMPLATE, counted, scale
from mechview.results import figure_of

EDGES = 40


@figure_of("Composition")
def _composition(found: Any) -> go.Figure:
    return composition_map(found.frame())


@figure_of("ComponentComposition")
def _components(found: Any) -> go.Figure:
    return component_map(found.frame())


@figure_of("Similarity")
def _similarity(found: Any) -> go.Figure:
    return similarity_map(found.frame())


def composition_map(pairs: pd.DataFrame, column: str = "excess") -> go.Figure:
    """Senders down, receivers across; a pair without a cell cannot compose."""
    title = f"{pairs['kind'].iloc[0]}-composition of {pairs['model'].iloc[0]}: {column.replace('_', ' ')} over the null"
    figure = _map(pairs, "src_label", "dst_label", column, "%{y} → %{x}: %{z:.4g}", title)
    figure.update_xaxes(title_text="receiver")
    figure.update_yaxes(title_text="sender", autorange="reversed")
    return figure


def component_map(parts: pd.DataFrame) -> go.Figure:
    """Components of every sender's message down to one receiver: distance from the null."""
    title = f"{parts['kind'].iloc[0]}-composition with {parts['dst_label'].iloc[0]}, one component at a time (z)"
    figure = _map(parts, "src_label", "index", "z", "%{y}, component %{x}: z = %{z:.3g}", title)
    figure.update_xaxes(title_text="component of the sender's message")
    figure.update_yaxes(title_text="sender", autorange="reversed")
    return figure


def similarity_map(pairs: pd.DataFrame) -> go.Figure:
    """Cosine of every pair of heads."""
    title = f"{pairs['side'].iloc[0]}: cosine of heads (unrelated: 0 ± {pairs['null_sd'].iloc[0]:.2g})"
    figure = _map(pairs, "label_a", "label_b", "cosine", "%{y}, %{x}: %{z:.4g}", title)
    figure.update_xaxes(title_text=f"head of {pairs['model_b'].iloc[0]}")
    figure.update_yaxes(title_text=f"head of {pairs['model'].iloc[0]}", autorange="reversed")
    return figure


def _map(rows: pd.DataFrame, down: str, across: str, column: str, hover: str, title: str) -> go.Figure:
    names, others = (
        list(dict.fromkeys(rows[down])),
        sorted(rows[across].unique(), key=list(dict.fromkeys(rows[across])).index),
    )
    wide = rows.pivot(index=down, columns=across, values=column).reindex(index=names, columns=others)
    z = wide.to_numpy(dtype=float)
    top = float(np.nanmax(np.abs(z))) if np.isfinite(z).any() else 1.0
    figure = go.Figure(
        go.Heatmap(
            z=z, x=others, y=names, colorscale=scale(DIVERGING), zmid=0.0, zmin=-top, zmax=top, hoverongaps=False,
            hovertemplate=hover + "<extra></extra>", colorbar={"title": {"text": column.replace("_", " ")}},
        )
    )  # fmt: skip
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows[column])})
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="category")
    return figure


def composition_graph(pairs: pd.DataFrame, most: int = EDGES) -> go.Figure:
    """Heads by layer, and the pairs above the null's 95 % band, the strongest `most` of them."""
    edges = pairs[pairs["value"] > pairs["high"]].nlargest(most, "z")
    figure = go.Figure()
    top = float(edges["z"].max()) if len(edges) else 1.0
    for edge in edges.itertuples():
        figure.add_scatter(
            x=[edge.src_head, edge.dst_head], y=[edge.src_layer, edge.dst_layer], mode="lines", hoverinfo="skip",
            line={"color": PATTERN, "width": 0.5 + 4 * edge.z / top}, opacity=0.6, showlegend=False,
        )  # fmt: skip
    ends = pd.concat([_nodes(pairs, "src"), _nodes(pairs, "dst")]).drop_duplicates("label")
    joined = ends["label"].isin({*edges["src_label"], *edges["dst_label"]})
    figure.add_scatter(
        x=ends["head"], y=ends["layer"], mode="markers", text=ends["label"], hovertemplate="%{text}<extra></extra>",
        marker={"size": 12, "color": np.where(joined, MESSAGE, QUIET)}, showlegend=False,
    )  # fmt: skip
    beyond = int((pairs["value"] > pairs["high"]).sum())
    title = f"{pairs['kind'].iloc[0]}-composition of {pairs['model'].iloc[0]}: {len(edges)} of {beyond} pairs above the null"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, pairs["value"])})
    figure.update_xaxes(title_text="head", dtick=1)
    figure.update_yaxes(title_text="layer", dtick=1)
    return figure


def _nodes(pairs: pd.DataFrame, side: str) -> pd.DataFrame:
    names = ("layer", "head", "label")
    return pairs[[f"{side}_{name}" for name in names]].set_axis(list(names), axis=1)
