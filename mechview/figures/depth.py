"""Growth and turning of the stream over depth: means over positions after the first, the first as its own line."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mechview.figures.style import MESSAGE, PATTERN, QUIET, TEMPLATE, counted
from mechview.results import figure_of

LINES = (
    (1, "norm", "norm of the stream", PATTERN),
    (1, "added", "norm of what was added", MESSAGE),
    (2, "cos_before", "cosine to the point before", PATTERN),
    (2, "cos_final", "cosine to the end", MESSAGE),
)


@figure_of("Depth")
def _depth(found: Any) -> go.Figure:
    return growth_curves(found.frame())


def growth_curves(depth: pd.DataFrame) -> go.Figure:
    """Norms above (logarithmic), cosines below; position 0 dashed, because its norms stand apart."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    names = list(dict.fromkeys(depth["point"].astype(str)))
    for first, style in ((False, "solid"), (True, "dash")):
        rows = depth[depth["first"] == first]
        if rows.empty:
            continue
        means = rows.groupby(rows["point"].astype(str), sort=False)[[line[1] for line in LINES]].mean().reindex(names)
        for panel, column, name, colour in LINES:
            line = {"color": colour, "dash": style}
            said = f"{name}, position 0" if first else name
            figure.add_trace(
                go.Scatter(x=names, y=means[column], name=said, mode="lines+markers", line=line), row=panel, col=1
            )
    later = depth[~depth["first"]]
    size = later["norm"] if len(later) else depth["norm"]
    figure.update_layout(
        template=TEMPLATE, title={"text": counted("the stream over depth (position 0 apart)", size)}, height=620
    )
    figure.update_yaxes(title_text="norm", type="log", dtick="D2", row=1, col=1)
    figure.update_yaxes(title_text="cosine", range=[-1.05, 1.05], row=2, col=1)
    figure.update_xaxes(title_text="point of the stream", type="category", row=2, col=1)
    figure.add_hline(y=0, line_color=QUIET, line_width=1, row=2, col=1)
    return figure
