"""Attention of heads on a prompt: queries down, keys across, one head at a time from a menu.

Positions are the coordinates and tokens only their labels, so that repeated tokens stay apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import NAN, QUIET, SEQUENTIAL, TEMPLATE, counted, only, plain_text, scale
from mechview.results import figure_of


@figure_of("Attention")
def _attention(attention: Any) -> go.Figure:
    from mechview.tables import tokens_frame

    return attention_map(attention.frame(), tokens_frame(attention.trace))


def attention_map(attention: pd.DataFrame, tokens: pd.DataFrame, label: str | None = None) -> go.Figure:
    """Attention weights of one head, or of every head of the frame behind a menu.

    Args:
        attention: frame of the `attention` schema, of one prompt. Cells without a row stay empty.
        tokens: frame of the `tokens` schema, of the same prompt.
        label: the head to show; all unless given.
    """
    labels = list(attention["label"].unique()) if label is None else [label]
    maps = [_head_map(only(attention, "label", name), tokens) for name in labels]
    figure = go.Figure([trace for head in maps for trace in head["traces"]])
    for n, trace in enumerate(figure.data):
        trace.visible = n < 2
    figure.update_layout(maps[0]["layout"] if maps else {}, template=TEMPLATE, showlegend=False)
    if len(maps) > 1:
        figure.update_layout(updatemenus=[{"buttons": _buttons(labels, maps), "x": 1.0, "xanchor": "right", "y": 1.16}])
    return figure


def _buttons(labels: list[str], maps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"label": name, "method": "update", "args": [{"visible": [k // 2 == n for k in range(2 * len(maps))]}, head["layout"]]}
        for n, (name, head) in enumerate(zip(labels, maps, strict=True))
    ]  # fmt: skip


def _head_map(rows: pd.DataFrame, tokens: pd.DataFrame) -> dict[str, Any]:
    queries, keys = _tokens_of(tokens, str(rows["stack"].iloc[0]))
    weight, score = (_grid(rows, name, len(queries), len(keys)) for name in ("weight", "score"))
    heat = go.Heatmap(
        z=weight,
        zmin=0.0,
        zmax=1.0,
        customdata=np.dstack([score, _pairs(queries, keys)]).astype(object),
        colorscale=scale(SEQUENTIAL),
        hoverongaps=False,
        hovertemplate="%{customdata[1]}<br>weight %{z:.4f}<br>score %{customdata[0]:.3f}<extra></extra>",
        colorbar={"title": {"text": "weight"}, "outlinewidth": 0},
    )
    title = counted(f"attention of {rows['label'].iloc[0]} on prompt {rows['prompt_id'].iloc[0]}", rows["weight"])
    axes = {"xaxis": _axis(keys, "key (token looked at)", -60), "yaxis": _axis(queries, "query (token that looks)")}
    axes["yaxis"] |= {"autorange": "reversed"}
    return {"traces": [heat, _nan_cells(rows)], "layout": {"title": {"text": title}, **axes}}


def _tokens_of(tokens: pd.DataFrame, stack: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    own = tokens[tokens["stack"] == ("decoder" if stack == "cross" else stack)]
    return own, tokens[tokens["stack"] == "encoder"] if stack == "cross" else own


def _grid(rows: pd.DataFrame, column: str, n_queries: int, n_keys: int) -> np.ndarray:
    grid = np.full((n_queries, n_keys), np.nan)
    grid[rows["q_pos"], rows["k_pos"]] = rows[column]
    return grid


def _pairs(queries: pd.DataFrame, keys: pd.DataFrame) -> np.ndarray:
    q, k = _ticks(queries), _ticks(keys)
    return np.array([[f"{a} → {b}" for b in k] for a in q], dtype=object)


def _ticks(tokens: pd.DataFrame) -> list[str]:
    return [f"{plain_text(shown)}  {pos}" for shown, pos in zip(tokens["shown"], tokens["pos"], strict=True)]


def _axis(tokens: pd.DataFrame, title: str, angle: int = 0) -> dict[str, Any]:
    ticks = {"tickmode": "array", "tickvals": list(tokens["pos"]), "ticktext": _ticks(tokens)}
    return {"title": {"text": title}, "type": "linear", "tickfont": {"size": 10}, "tickangle": angle, **ticks}


def _nan_cells(rows: pd.DataFrame) -> go.Scatter:
    wrong = rows[~np.isfinite(rows["weight"])]
    return go.Scatter(
        x=wrong["k_pos"],
        y=wrong["q_pos"],
        mode="markers+text",
        text=["NaN"] * len(wrong),
        textfont={"size": 8, "color": "#ffffff"},
        marker={"symbol": "square", "size": 16, "color": NAN, "line": {"color": QUIET, "width": 1}},
        hovertemplate="weight NaN<extra></extra>",
        name="NaN",
    )
