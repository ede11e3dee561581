"""Figures of memory: retention of every write, half-lives, mass against lag, and gates over the text.

The LSTM's channels and the transformer's writes are drawn with the same axes where they measure the same;
censored half-lives (more than half left at the end) are counted in the title, not drawn as numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.errors import CheckError
from mechview.figures.style import DIVERGING, MESSAGE, PATTERN, QUIET, TEMPLATE, counted, plain_text, scale
from mechview.results import figure_of

COLOURS = {"lstm": MESSAGE, "transformer": PATTERN}


@figure_of("Memory")
def _memory(found: Any) -> go.Figure:
    """Retention over depth where there is a transformer, else the spectrum of half-lives."""
    frame = found.frame()
    return retention_map(frame) if (frame["side"] == "transformer").any() else half_life_spectrum(frame)


@figure_of("LstmTrace")
def _lstm_trace(trace: Any) -> go.Figure:
    return gates_over_text(trace.frame())


@figure_of("Recall")
def _recall(found: Any) -> go.Figure:
    return by_lag(
        found.frame(), "loss_at_distance", "loss in the second copy by distance to the first", "nats per token"
    )


def retention_map(memory: pd.DataFrame) -> go.Figure:
    """What is left of each write (down) after each later one (across)."""
    rows = memory[(memory["quantity"] == "retention") & (memory["over"] == "depth")]
    if rows.empty:
        raise CheckError("this table has no retention over depth")
    names = list(dict.fromkeys(rows["place"]))
    wide = rows.pivot(index="place", columns="later", values="value").reindex(index=names, columns=names)
    figure = go.Figure(
        go.Heatmap(
            z=wide.to_numpy(dtype=float), x=names, y=names, zmin=-1.0, zmax=3.0, zmid=1.0, colorscale=scale(DIVERGING),
            colorbar={"title": {"text": "left"}}, hoverongaps=False,
            hovertemplate="of %{y} after %{x}: %{z:.3f}<extra></extra>",
        )
    )  # fmt: skip
    title = counted("retention of each write after each later one (1: untouched)", rows["value"])
    figure.update_layout(template=TEMPLATE, title={"text": title})
    figure.update_xaxes(title_text="after this write", type="category")
    figure.update_yaxes(title_text="of this write", type="category", autorange="reversed")
    return figure


def half_life_spectrum(memory: pd.DataFrame) -> go.Figure:
    """Half-lives in order of length: an LSTM's channels in steps, a transformer's writes in writes."""
    rows, figure, censored = memory[memory["quantity"] == "half_life"], go.Figure(), 0
    rows = rows[rows["place"] != "all"]
    for (side, place), part in rows.groupby(["side", "over"], observed=True):
        for label, own in part.groupby("place", sort=False) if side == "lstm" else [(place, part)]:
            values = np.sort(own["value"].to_numpy(dtype=float))
            finite = values[np.isfinite(values)]
            censored += len(values) - len(finite)
            share = (np.arange(len(finite)) + 1) / len(values)
            name = f"{side} {label}"
            figure.add_trace(go.Scatter(x=finite, y=share, name=name, mode="lines+markers", marker={"size": 4}))
    title = f"half-lives: share that is shorter ({censored} censored, more than half left at the end)"
    figure.update_layout(template=TEMPLATE, title={"text": plain_text(title)})
    figure.update_xaxes(title_text="half-life (LSTM: steps; transformer: writes)", type="log")
    figure.update_yaxes(title_text="share of channels or writes", range=[0, 1])
    return figure


def lag_profiles(memory: pd.DataFrame) -> go.Figure:
    """Mass against lag: the LSTM's `R o i`, the transformer's attention, and even attention."""
    return by_lag(memory, "lag_mass", "mass against lag, made to sum to 1", "share of the mass")


def by_lag(memory: pd.DataFrame, quantity: str, title: str, unit: str) -> go.Figure:
    """A quantity against its lag, a line for each place and side."""
    rows, figure = memory[(memory["quantity"] == quantity) & memory["lag"].notna()], go.Figure()
    if rows.empty:
        raise CheckError(f"this table has no {quantity} by lag")
    for (side, place), part in rows.groupby(["side", "place"], observed=True, sort=False):
        colour = QUIET if place == "even attention" else COLOURS[str(side)]
        part = part.sort_values("lag")
        figure.add_trace(
            go.Scatter(
                x=list(part["lag"]), y=part["value"], name=f"{side} {place}", mode="lines+markers",
                line={"color": colour}, marker={"size": 5},
            )
        )  # fmt: skip
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows["value"])})
    figure.update_xaxes(title_text="lag (tokens)")
    figure.update_yaxes(title_text=unit)
    return figure


def gates_over_text(gates: pd.DataFrame, prompt_id: int = 0) -> go.Figure:
    """Gates at each token of a prompt, one line for each layer and gate; effective forget gates stay apart."""
    rows = gates[(gates["prompt_id"] == prompt_id) & ~gates["gate"].isin(["candidate", "cell"])]
    if rows.empty:
        raise CheckError(f"this table has no gates of prompt {prompt_id}")
    tokens = rows.drop_duplicates("pos").sort_values("pos")
    figure = go.Figure()
    for (side, place, gate), part in rows.groupby(["side", "place", "gate"], observed=True, sort=False):
        part = part.sort_values("pos")
        figure.add_trace(
            go.Scatter(
                x=list(part["pos"]), y=part["value"], name=f"{side} {place} {gate}", mode="lines",
                visible=True if gate in ("forget", "pattern") else "legendonly",
            )
        )  # fmt: skip
    ticks = {"tickvals": list(tokens["pos"]), "ticktext": [plain_text(t) for t in tokens["token"]], "tickangle": -60}
    figure.update_layout(template=TEMPLATE, title={"text": counted("gates over the text", rows["value"])})
    figure.update_xaxes(title_text="token", **ticks)
    figure.update_yaxes(title_text="gate")
    return figure
