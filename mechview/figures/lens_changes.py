"""Why the lens moves: bars of what was written between two points, over the line of its reading."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import AGAINST, FOR, INK, QUIET, TEMPLATE, counted
from mechview.results import figure_of

RESCALING = "rescaling"


@figure_of("LensChanges")
def _changes(found: Any) -> go.Figure:
    return lens_steps(found.frame())


def lens_steps(changes: pd.DataFrame) -> go.Figure:
    """Each step's gains, losses and rescaling as bars, its largest writer named, and the reading as a line."""
    points = list(dict.fromkeys(changes["point"]))
    written = changes[changes["component"] != RESCALING]
    figure = go.Figure()
    for name, colour, rows in (
        ("written for it", FOR, written[written["value"] > 0]),
        ("written against it", AGAINST, written[written["value"] < 0]),
        (RESCALING, QUIET, changes[changes["component"] == RESCALING]),
    ):
        sums = rows.groupby("point", sort=False)["value"].sum().reindex(points).fillna(0.0)
        said = [_largest(rows[rows["point"] == point]) for point in points]
        figure.add_trace(
            go.Bar(x=points, y=sums, name=name, marker={"color": colour}, text=said, textposition="none",
                   hovertemplate="%{x}: %{y:.4g} (most by %{text})<extra></extra>")
        )  # fmt: skip
    readings = changes.groupby("point", sort=False)["logit"].first().reindex(points)
    figure.add_trace(go.Scatter(x=points, y=readings, name="reading", mode="lines+markers", line={"color": INK}))
    first = changes.iloc[0]
    title = f"{first['target']} read by the lens at position {first['pos']} (steps off by {first['completeness_error']:.1e})"
    figure.update_layout(
        template=TEMPLATE, barmode="relative", title={"text": counted(title, changes["value"])},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"}, margin={"t": 96},
    )  # fmt: skip
    figure.update_xaxes(title_text="point of the stream", type="category")
    figure.update_yaxes(title_text="logit, and its changes")
    return figure


def _largest(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "nothing"
    best = rows.loc[rows["value"].abs().idxmax()]
    return f"{best['component']} {best['value']:.3g}"
