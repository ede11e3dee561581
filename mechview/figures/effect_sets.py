"""Effects over a set of prompts: the components that matter most, each with its interval."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from mechview.figures.style import PATTERN, QUIET, TEMPLATE, counted
from mechview.results import figure_of

MOST = 24


@figure_of("EffectSet")
def _effect_set(found: Any) -> go.Figure:
    return effect_intervals(found.frame())


def effect_intervals(effects: pd.DataFrame, most: int = MOST) -> go.Figure:
    """Means with 95 % intervals, the largest first; direct effects beside total ones of an ablation."""
    leading = "total" if (effects["quantity"] == "total").any() else str(effects["quantity"].iloc[0])
    rows = effects[effects["quantity"] == leading]
    names = list(rows.reindex(rows["mean"].abs().sort_values(ascending=False).index)["component"])[:most]
    figure = go.Figure()
    for quantity, colour in ((leading, PATTERN), ("direct", QUIET)):
        one = effects[(effects["quantity"] == quantity) & effects["component"].isin(names)].set_index("component")
        if one.empty:
            continue
        one = one.reindex(names)
        spread = {
            "type": "data", "symmetric": False, "array": (one["hi"] - one["mean"]).clip(lower=0),
            "arrayminus": (one["mean"] - one["lo"]).clip(lower=0),
        }  # fmt: skip
        figure.add_trace(go.Bar(x=names, y=one["mean"], name=quantity, marker_color=colour, error_y=spread))
    first = effects.iloc[0]
    title = f"{first['kind']}: means over {first['n']} prompts, 95 % intervals"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, rows["mean"])}, barmode="group")
    figure.update_xaxes(title_text="component, largest mean first", type="category")
    figure.update_yaxes(title_text="effect (logit units)", zeroline=True, zerolinecolor=QUIET)
    return figure
