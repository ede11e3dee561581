"""Figures of what heads do by their weights: pairs of tokens, complex spectra, curves by offset, readings.

Nulls are drawn with the numbers: random spectra behind a head's own, the cosine of random factors beside a head's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.figures.heads import head_grid
from mechview.figures.style import INK, MESSAGE, PATTERN, QUIET, TEMPLATE, counted, only, plain_text
from mechview.results import figure_of

MOST = 30


@figure_of("TokenCircuit")
def _circuit(circuit: Any) -> go.Figure:
    return token_pairs(circuit.frame())


@figure_of("Copying")
def _copying(copying: Any) -> go.Figure:
    return complex_spectrum(copying.frame())


@figure_of("OffsetCurves")
def _offsets(curves: Any) -> go.Figure:
    return by_offset(curves.frame())


@figure_of("Readings")
def _readings(readings: Any) -> go.Figure:
    return reading_table(readings.frame())


@figure_of("WeightScores")
def _scores(scores: Any) -> go.Figure:
    frame = scores.frame()
    return head_grid(frame, str(frame["metric"].iloc[0]))


@figure_of("Geometry")
def _geometry(found: Any) -> go.Figure:
    return head_grid(found.frame(), "pattern_symmetry")


def token_pairs(pairs: pd.DataFrame, most: int = MOST) -> go.Figure:
    """Bars of a `qk_pairs` or `ov_tokens` frame: the highest pairs, then the lowest."""
    looks = "q_token" in pairs.columns
    first, second, value = ("q_token", "k_token", "score") if looks else ("src_token", "dst_token", "logit")
    rows = pd.concat([pairs[pairs["sign"] == sign].head(most // 2) for sign in (1, -1)])
    names = [plain_text(f"{a} → {b}") for a, b in zip(rows[first], rows[second], strict=True)]
    figure = go.Figure(
        go.Bar(
            x=rows[value],
            y=list(range(len(rows))),
            orientation="h",
            marker={"color": [PATTERN if v >= 0 else MESSAGE for v in rows[value]]},
            customdata=np.c_[names, rows["z"]],
            hovertemplate="%{customdata[0]}: %{x:.4g} (z %{customdata[1]:.3g})<extra></extra>",
        )
    )
    what = "query → key" if looks else "source → promoted or suppressed"
    title = f"{what}, {pairs['label'].iloc[0]} of {pairs['model'].iloc[0]} ({pairs['space'].iloc[0]})"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows[value])}, height=140 + 20 * len(rows))
    figure.update_xaxes(title_text="attention score" if looks else "logit, before the final norm's scale")
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=names, autorange="reversed")
    return figure


def complex_spectrum(eig: pd.DataFrame, label: str | None = None) -> go.Figure:
    """Eigenvalues of one head's full message in the complex plane, over those of random heads."""
    label = str(eig["label"].iloc[0]) if label is None else label
    rows = only(eig, "label", label)
    own, random = rows[rows["draw"].isna()], rows[rows["draw"].notna()]
    figure = go.Figure()
    for part, name, colour, size in ((random, "random heads", QUIET, 4), (own, label, MESSAGE, 8)):
        figure.add_scatter(
            x=part["re"], y=part["im"], mode="markers", name=name, marker={"color": colour, "size": size},
            opacity=0.35 if part is random else 1.0, hovertemplate="%{x:.3g} + %{y:.3g}i<extra></extra>",
        )  # fmt: skip
    draws = random.groupby("draw")["score"].first()
    title = f"{label}: copying {own['score'].iloc[0]:.3f}, random {draws.mean():.3f} ± {draws.std():.2g}"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, own["re"])})
    figure.update_xaxes(title_text="real part", zeroline=True, zerolinecolor=QUIET)
    figure.update_yaxes(title_text="imaginary part", zeroline=True, zerolinecolor=QUIET, scaleanchor="x")
    return figure


def by_offset(offsets: pd.DataFrame) -> go.Figure:
    """Cosine to offset 0, symmetry and the positional kernel over the offset."""
    figure = go.Figure()
    curves = (("cosine", PATTERN, None), ("cosine_null", QUIET, "dot"), ("symmetry", INK, None))
    for name, colour, dash in curves:
        if offsets[name].notna().any():
            words = {"cosine_null": "cosine, random factors"}.get(name, name)
            figure.add_scatter(x=offsets["offset"], y=offsets[name], name=words, line={"color": colour, "dash": dash})
    for name, words in (("kernel", "positional kernel"), ("same", "same token")):
        if offsets[name].notna().any():
            dash = None if name == "kernel" else "dash"
            figure.add_scatter(
                x=offsets["offset"], y=offsets[name], name=words, yaxis="y2", line={"color": MESSAGE, "dash": dash}
            )
    title = f"{offsets['label'].iloc[0]} of {offsets['model'].iloc[0]} by offset ({offsets['position'].iloc[0]})"
    figure.update_layout(
        template=TEMPLATE,
        title={"text": counted(title, offsets["kernel"])},
        yaxis2={"title": {"text": "score"}, "overlaying": "y", "side": "right"},
        legend={"orientation": "h", "y": 1.08},
    )
    figure.update_xaxes(title_text="offset q_pos - k_pos")
    figure.update_yaxes(title_text="cosine, symmetry", range=[-1, 1], selector={"side": None})
    return figure


def reading_table(readings: pd.DataFrame) -> go.Figure:
    """A table of an `svd_tokens` frame: one list a row, its coherence beside that of random directions."""
    keys = ["index", "sign", "end"]
    groups = [group for _, group in readings.groupby(keys, sort=False, observed=True)]
    first = [group.iloc[0] for group in groups]
    head = f"{readings['label'].iloc[0]} {readings['side'].iloc[0]} of {readings['model'].iloc[0]}"
    columns = {
        "component": [f"{one['index']}{' (subspace)' if one['degenerate'] else ''}" for one in first],
        "σ": [f"{one['sigma']:.3g}" for one in first],
        "end": [f"{one['end']} {'+' if one['sign'] > 0 else '−'}" for one in first],
        "tokens": [plain_text("  ".join(group["token"])) for group in groups],
        "coherence": [f"{one['coherence']:.2f}" for one in first],
        "random": [f"{one['random_mean']:.2f} ± {one['random_sd']:.2f}" for one in first],
    }
    figure = go.Figure(
        go.Table(
            header={"values": list(columns), "align": "left"},
            cells={"values": list(columns.values()), "align": "left"},
            columnwidth=[1, 0.7, 1, 6, 1, 1.3],
        )
    )
    figure.update_layout(template=TEMPLATE, title={"text": counted(head, readings["value"])})
    return figure
