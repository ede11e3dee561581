"""Parity by layer: every comparison of the factors with the model, beside the tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import NAN, QUANTITIES, QUIET, TEMPLATE, counted
from mechview.results import figure_of

SMALLEST = 1e-17  # where an exact zero stands on a logarithmic axis


@figure_of("Parity")
def _parity(parity: Any) -> go.Figure:
    return parity_by_layer(parity.frame())


@figure_of("Diagnosis")
def _diagnosis(found: Any) -> go.Figure:
    return parity_by_layer(found.frame())


def parity_by_layer(parity: pd.DataFrame) -> go.Figure:
    """Relative errors of a `parity` frame on a logarithmic axis; exact zeros and NaN have lines of their own."""
    stacks = parity["stack"].astype(object).fillna("")
    several = stacks[stacks != ""].nunique() > 1
    where = [_where(stack, layer, several) for stack, layer in zip(stacks, parity["layer"], strict=True)]
    rows = parity.assign(where=where)
    figure = go.Figure()
    for quantity, colour in QUANTITIES.items():
        chosen = rows[rows["quantity"] == quantity]
        if len(chosen):
            figure.add_trace(_points(chosen, quantity, colour))
    tolerance = float(parity["tolerance"].iloc[0])
    figure.add_hline(y=tolerance, line={"color": QUIET, "dash": "dash"}, annotation_text=f"tolerance {tolerance:g}")
    title = counted(f"parity on {parity['n_tokens'].iloc[0]} tokens, {parity['backend'].iloc[0]}", parity["error"])
    figure.update_layout(template=TEMPLATE, title={"text": title})
    figure.update_xaxes(
        title_text="layer", type="category", categoryorder="array", categoryarray=list(dict.fromkeys(where))
    )
    figure.update_yaxes(title_text="relative error (max|difference| / max|model's|)", type="log", exponentformat="e")
    return figure


def _where(stack: str, layer: Any, several: bool) -> str:
    if pd.isna(layer):
        return "logits"
    return f"{stack} {layer}" if several else str(layer)


def _points(rows: pd.DataFrame, quantity: str, colour: str) -> go.Scatter:
    errors = rows["error"].to_numpy(dtype=float)
    wrong = ~np.isfinite(errors)
    top = max(float(rows["tolerance"].iloc[0]), *errors[~wrong], 1e-12)
    return go.Scatter(
        x=rows["where"],
        y=np.where(wrong, top * 10, np.maximum(errors, SMALLEST)),
        mode="markers+text",
        name=quantity,
        text=np.where(wrong, "NaN", np.where(errors == 0, "0", "")),
        textposition="top center",
        textfont={"color": np.where(wrong, NAN, QUIET)},
        marker={
            "color": np.where(wrong, NAN, colour),
            "symbol": np.where(wrong, "x", "circle"),
            "size": 8,
            "opacity": 0.8,
        },
        customdata=np.stack([rows["label"].fillna("logits").to_numpy(dtype=object), errors.astype(object)], axis=1),
        hovertemplate=f"{quantity} %{{customdata[0]}}<br>error %{{customdata[1]:.3g}}<extra></extra>",
    )
