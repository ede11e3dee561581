"""What a run would hold in memory, part by part, beside the peak they make together."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import INK, PATTERN, TEMPLATE, plain_text
from mechview.results import figure_of

PARTS = {
    "weight_bytes": "weights", "trace_bytes": "traces", "transient_bytes": "a pass, for a moment",
    "answer_bytes": "the answer", "peak_bytes": "peak",
}  # fmt: skip


@figure_of("Cost")
def _cost(found: Any) -> go.Figure:
    return cost_bars(found.frame())


def cost_bars(cost: pd.DataFrame) -> go.Figure:
    """Megabytes of each part of a `cost` frame's first row; a moment and the answer are not held together."""
    row = cost.iloc[0]
    sizes = [row[name] / 1e6 for name in PARTS]
    colours = [INK if name == "peak_bytes" else PATTERN for name in PARTS]
    figure = go.Figure(
        go.Bar(
            y=list(PARTS.values()), x=sizes, orientation="h", marker={"color": colours},
            text=[f"{size:.3g}" for size in sizes], textposition="auto", hovertemplate="%{y}: %{x:.4g} MB<extra></extra>",
        )
    )  # fmt: skip
    title = f"{row['verb']} on {row['model']}: {row['passes']} passes, {row['tokens']} tokens, {row['flops']:.2g} operations"
    figure.update_layout(template=TEMPLATE, title={"text": plain_text(title)}, height=320, showlegend=False)
    figure.update_xaxes(title_text="megabytes, estimated before the run", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    return figure
