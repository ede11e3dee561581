"""Figures of a comparison: two prompts token by token, and the difference of every head by layer.

Colours are scaled without position 0, whose norms stand apart. A token that one side lacks leaves its cell
empty and is marked: + inserted in b, - deleted from a, ~ another token, = the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechview.errors import CheckError
from mechview.figures.changes import largest_changes
from mechview.figures.style import DIVERGING, SEQUENTIAL, TEMPLATE, counted, only, plain_text, scale
from mechview.results import figure_of

SIGNED = ("share", "norm")
MARKS = {"same": "=", "same end": "=", "substituted": "~", "inserted": "+", "deleted": "-"}


@figure_of("Comparison")
def _comparison(comparison: Any) -> go.Figure:
    """Two prompts as a strip, two models as a grid of heads, everything else by its largest differences."""
    frame = comparison.frame()
    if comparison.aligned is not None and comparison.tokens is not None:
        return aligned_strip(frame, comparison.tokens, comparison.leading[0], comparison.identical)
    if comparison.kind == "models" and frame["head"].notna().any():
        return delta_grid(frame, comparison.leading[0], identical=comparison.identical)
    names = {"sets": "two sets of prompts", "positions": "two positions of one prompt"}
    about = f"{comparison.model_a}, {names[comparison.kind]}" if comparison.kind in names else None
    return largest_changes(frame, comparison.leading, comparison.identical, about=about)


def aligned_strip(
    compare: pd.DataFrame, tokens: tuple[Any, Any], quantity: str = "difference", identical: bool = False
) -> go.Figure:
    """Two prompts under each other, aligned; the colour is how much the components differ there.

    Args:
        tokens: the tokens of both sides as they are shown.
        quantity: whose `delta` is summed over components (root of the sum of squares).
    """
    steps = aligned_steps(compare, quantity)
    cells = [[_token(side, pos) for pos in steps[name]] for side, name in zip(tokens, ("a", "b"), strict=True)]
    z = np.array([steps["size"], steps["size"]], dtype=float)
    for row, name in enumerate(("a", "b")):
        z[row, [pos is None for pos in steps[name]]] = np.nan
    inner = [s for s, a, b in zip(steps["size"], steps["a"], steps["b"], strict=True) if 0 not in (a, b)]
    top = max((s for s in inner if np.isfinite(s)), default=0.0) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=z, text=cells, texttemplate="%{text}", textfont={"size": 12}, x=list(range(len(steps["a"]))), y=["a", "b"],
            colorscale=scale(SEQUENTIAL), zmin=0, zmax=top, xgap=2, ygap=10, hoverongaps=False,
            colorbar={"title": {"text": quantity}}, hovertemplate="%{y}: %{text}, apart by %{z:.4g}<extra></extra>",
        )
    )  # fmt: skip
    for n, mark in enumerate(steps["mark"]):
        figure.add_annotation(x=n, y=0.5, yref="paper", text=mark, showarrow=False, font={"size": 16})
    first = compare.iloc[0]
    changed = sum(mark != "=" for mark in steps["mark"])
    said = "identical" if identical else f"{changed} edits (colours scaled without position 0)"
    title = f"{first['model_a']}, two prompts: {said}"
    width = 190 + sum(max(34, 9 * max(len(a), len(b)) + 10) for a, b in zip(*cells, strict=True))
    figure.update_layout(template=TEMPLATE, title={"text": plain_text(title)}, height=260, width=max(900, width))
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(
        title_text="aligned tokens: = the same, ~ replaced, + inserted, - deleted", showticklabels=False, ticks=""
    )
    return figure


def aligned_steps(compare: pd.DataFrame, quantity: str) -> dict[str, list[Any]]:
    """One entry an aligned pair: positions, the mark, and the size of all differences there."""
    rows = only(compare, "quantity", "norm")
    sizes = only(compare, "quantity", quantity).groupby(["position_a", "position_b"])["delta"]
    size = {at: float(np.sqrt((deltas**2).sum())) for at, deltas in sizes}
    pairs = rows[["position_a", "position_b", "aligned"]].drop_duplicates(["position_a", "position_b"])
    found: dict[str, list[Any]] = {"a": [], "b": [], "mark": [], "size": []}
    for a, b, how in pairs.itertuples(index=False):
        if how not in MARKS:
            continue
        found["a"].append(None if pd.isna(a) else int(a))
        found["b"].append(None if pd.isna(b) else int(b))
        found["mark"].append(MARKS[how])
        found["size"].append(size.get((a, b), 0.0) if not (pd.isna(a) or pd.isna(b)) else 0.0)
    if not found["a"]:
        raise CheckError("this comparison has no aligned tokens to show")
    return found


def _token(tokens: Any, pos: int | None) -> str:
    return "" if pos is None else plain_text(str(tokens[pos]))


def delta_grid(
    compare: pd.DataFrame, quantity: str = "difference", column: str = "delta", identical: bool = False
) -> go.Figure:
    """Heads across, layers down: root mean square over positions after the first, with sign where one number is left."""
    wide = head_sizes(compare, quantity, column)
    z, signed = wide.to_numpy(dtype=float), quantity in SIGNED
    top = float(np.nanmax(np.abs(z))) if np.isfinite(z).any() else 0.0
    figure = go.Figure(
        go.Heatmap(
            z=z, x=[f"H{head}" for head in wide.columns], y=[f"{place}L{layer}" for place, layer in wide.index],
            colorscale=scale(DIVERGING if signed else SEQUENTIAL), zmin=-(top or 1.0) if signed else 0, zmax=top or 1.0, xgap=2, ygap=2,
            colorbar={"title": {"text": f"{column} of {quantity}"}}, hovertemplate="%{y}%{x}: %{z:.4g}<extra></extra>",
        )
    )  # fmt: skip
    first = compare.iloc[0]
    said = "identical" if identical else f"{column} of {quantity}"
    title = f"{first['model_a']} against {first['model_b']}: {said}"
    figure.update_layout(template=TEMPLATE, title={"text": counted(title, z)}, height=180 + 24 * len(wide))
    figure.update_yaxes(title_text="layer", autorange="reversed", type="category")
    figure.update_xaxes(title_text="head", type="category")
    return figure


def head_sizes(compare: pd.DataFrame, quantity: str, column: str = "delta") -> pd.DataFrame:
    """Heads across, layers (behind the prefix of their stack) down: the size of `column` after position 0."""
    rows = only(compare, "quantity", quantity)
    rows = rows[rows["head"].notna()]
    if rows.empty:
        raise CheckError(f"this comparison has no {quantity} of heads")
    later = rows[(rows["position_a"] != 0).fillna(True) & (rows["position_b"] != 0).fillna(True)]
    rows = later if len(later) else rows
    cells = rows.assign(place=rows["component"].str.extract(r"^([EX]\.)?")[0].fillna(""))
    return cells.groupby(["place", "layer", "head"])[column].agg(_size).unstack("head")


def _size(values: pd.Series) -> float:
    """The one value with its sign, or the root mean square of several."""
    numbers = values.dropna().to_numpy(dtype=float)
    if len(numbers) == 1:
        return float(numbers[0])
    return float(np.sqrt((numbers**2).mean())) if len(numbers) else float("nan")
