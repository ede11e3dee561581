"""A comparison as a section of a page: the stamp, the aligned strip, the fall from a to b, grids, largest changes.

Reads frames only. Position 0, whose norms stand apart, sets no colour and counts in no mean, as in the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mechview.reporting.comparing import ComparisonView
from mechview.reporting.drawings import Drawing
from mechview.reporting.numerals import written
from mechview.reporting.svg import STEPS, heatmap
from mechview.reporting.svg_bars import Bar, fall, intervals

MOST = 14
MAPS = {"pattern": "Pattern apart, over its size", "message": "Message apart, over its size"}
MARK_WORDS = {"=": "same", "~": "another token", "+": "inserted", "-": "deleted"}


@dataclass(frozen=True)
class Step:
    """One aligned pair: tokens and positions of both sides, how they came together, and how far writes differ."""

    a: str
    b: str
    pos_a: int | None
    pos_b: int | None
    mark: str
    size: float | int
    shade: str

    @property
    def told(self) -> str:
        """The pair in words."""
        far = "" if self.pos_a is None or self.pos_b is None else f", writes apart by {written(self.size)}"
        return f"{MARK_WORDS[self.mark]}{far}"


@dataclass(frozen=True)
class Section:
    """What a template needs of one comparison."""

    title: str
    stamp: str
    lead: str
    notes: tuple[str, ...]
    steps: tuple[Step, ...]
    drawings: tuple[Drawing, ...]
    rows: tuple[dict[str, str], ...]
    method: str


def comparison_section(view: ComparisonView) -> Section:
    """All that is shown of a comparison."""
    prompts = view.kind == "prompts"
    drawings = [*_falls(view), *_grids(view), *_changes(view)]
    return Section(
        title="Prompt against prompt" if prompts else f"{view.sides[0]} against {view.sides[1]}",
        stamp="identical: every difference is exactly 0" if view.identical else "",
        lead=_lead(view),
        notes=view.notes,
        steps=_steps(view) if view.tokens is not None and prompts else (),
        drawings=tuple(drawings),
        rows=tuple(largest_rows(view)),
        method=view.method,
    )


def _lead(view: ComparisonView) -> str:
    ends = "" if view.totals is None else (
        f" The model's own value goes from {written(view.totals[0])} to {written(view.totals[1])}, read at positions "
        f"{view.asked[0]} and {view.asked[1]}." if view.asked else ""
    )  # fmt: skip
    of = f" Shares are of the logit of {view.target}." if view.target else ""
    return f"Always b less a, or the norm of it.{of}{ends} Rows add up within {written(view.error)}."


def _steps(view: ComparisonView) -> tuple[Step, ...]:
    from mechview.figures.comparison import aligned_steps

    found = aligned_steps(
        view.frame, "difference" if (view.frame["quantity"] == "difference").any() else view.leading[0]
    )
    inner = [s for s, a, b in zip(found["size"], found["a"], found["b"], strict=True) if 0 not in (a, b)]
    top = max((s for s in inner if math.isfinite(s)), default=0.0) or 1.0
    tokens = view.tokens or ((), ())

    def text(side: int, pos: int | None) -> str:
        return "" if pos is None else tokens[side][pos]

    return tuple(
        Step(text(0, a), text(1, b), a, b, mark, size, _shade(size / top, a is None or b is None))
        for a, b, mark, size in zip(found["a"], found["b"], found["mark"], found["size"], strict=True)
    )


def _shade(share: float | int, alone: bool) -> str:
    if alone:
        return "alone"
    return "nan" if math.isnan(share) else f"ramp{round(min(share, 1.0) * (STEPS - 1))}"


def _falls(view: ComparisonView) -> list[Drawing]:
    """From a's value to b's, share by share, where a logit was asked for."""
    if view.totals is None or view.asked is None:
        return []
    rows = view.frame[view.frame["quantity"] == "share"]
    rows = rows[(rows["position_a"] == view.asked[0]) & (rows["position_b"] == view.asked[1])]
    deltas = [Bar(str(name), float(delta)) for name, delta in zip(rows["component"], rows["delta"], strict=True)]
    bars = _with_rest(
        sorted(_moved(deltas), key=lambda bar: -abs(bar.value) if math.isfinite(bar.value) else -math.inf)
    )
    gap = sum(bar.value for bar in bars) - (view.totals[1] - view.totals[0])
    about = f"What each component's share of the logit of {view.target} changes by"
    chart = fall(Bar("a", view.totals[0]), bars, Bar("b", view.totals[1]), "logits", about)
    words = f"{about}, the largest first; the steps miss b by {written(abs(gap))}."
    return [Drawing("From a to b", words, chart)]


def _moved(bars: list[Bar]) -> list[Bar]:
    """Those that change at all; all of them where none does."""
    return [bar for bar in bars if bar.value != 0.0] or bars


def _with_rest(bars: list[Bar]) -> list[Bar]:
    kept, rest = bars[:MOST], bars[MOST:]
    return [*kept, Bar(f"{len(rest)} others", sum(bar.value for bar in rest))] if rest else kept


def _grids(view: ComparisonView) -> list[Drawing]:
    from mechview.figures.comparison import head_sizes

    heads = view.frame[view.frame["head"].notna()]
    found = []
    wanted = [("difference", "delta", "Writes of heads apart")] if view.kind == "prompts" else [
        (name, "rel", words) for name, words in MAPS.items()
    ]  # fmt: skip
    for quantity, column, title in wanted:
        if (heads["quantity"] == quantity).any():
            found.append(_grid(head_sizes(heads, quantity, column), title, quantity))
    return found


def _grid(wide: pd.DataFrame, title: str, quantity: str) -> Drawing:
    z = wide.to_numpy(dtype=float)
    finite = z[np.isfinite(z)]
    top = float(finite.max()) if len(finite) and finite.max() > 0 else 1.0
    names = [f"{place}L{layer}" for place, layer in wide.index]
    cells = [[float(value) for value in row] for row in z]
    about = f"{title}: layers down, heads across, from 0 to {written(top)}"
    most = np.unravel_index(int(np.nanargmax(np.where(np.isfinite(z), z, -1.0))), z.shape)
    said = f"{about}; largest at {names[most[0]]}H{wide.columns[most[1]]}. The ground's colour is none."
    chart = heatmap(
        cells, names, said, scale=(0.0, top / 2, top), columns=[f"H{head}" for head in wide.columns], kind="ramp",
        told="{row}{column}: {value}",
    )  # fmt: skip
    how = "root mean square over positions after the first" if quantity == "difference" else "‖A − B‖ / ‖A‖"
    none = len(finite) and finite.max() == 0
    return Drawing(title, f"{how}; {'every one is 0' if none else f'the strongest is {written(top)}'}.", chart)


def _changes(view: ComparisonView) -> list[Drawing]:
    rows = view.changes
    if rows.empty:
        return []
    rows = rows.reindex(rows["delta"].abs().sort_values(ascending=False).index)[:MOST]
    bars = [Bar(str(row.component), float(row.delta), float(row.lo), float(row.hi)) for row in rows.itertuples()]
    bars, quantity = _moved(bars), str(rows["quantity"].iloc[0])
    unit = "logits" if quantity == "share" else "stream units"
    about = f"Largest changes of the {quantity} of what components write, with 95 % intervals"
    return [Drawing("Largest changes", f"{view.method}.", intervals(bars, unit, about))]


def largest_rows(view: ComparisonView, most: int = 12) -> list[dict[str, str]]:
    """The largest changes as a table; intervals stay empty where one prompt on each side gives none."""
    rows = view.changes if len(view.changes) else _leading(view)
    rows = rows[np.isfinite(rows["delta"].to_numpy(dtype=float))]
    order = "rel" if view.kind.startswith("models") and view.changes.empty else "delta"
    rows = rows.reindex(rows[order].abs().sort_values(ascending=False).index)[:most]
    columns = ("side_a", "side_b", "delta", "rel", "lo", "hi", "p_adjusted")
    return [
        {name: "–" if np.isnan(row[name]) else written(row[name]) for name in columns}
        | {"component": str(row["component"]), "quantity": str(row["quantity"]).replace("_", " ")}
        for row in rows.to_dict("records")
    ]


def _leading(view: ComparisonView) -> pd.DataFrame:
    rows = view.frame[view.frame["quantity"].isin(view.leading)]
    if view.asked is None or view.leading != ("share",):
        return rows
    return rows[(rows["position_a"] == view.asked[0]) & (rows["position_b"] == view.asked[1])]
