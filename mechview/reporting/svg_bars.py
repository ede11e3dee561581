"""Charts of single numbers as inline SVG: falls from one total to another, bars with intervals, values over nulls.

As in `svg`: shapes and text as values, colours as classes of the style sheet, NaN in letters of its own colour.
Every chart says its numbers in `about`, for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mechview.reporting.numerals import written
from mechview.reporting.svg import Chart, Shape, shape

WIDTH, ROW, LEFT = 460, 22, 104
Place = Callable[[float | int], float | int]
At = Callable[[float | int, float | int], tuple[float | int, float | int]]


@dataclass(frozen=True)
class Bar:
    """A named number; `lo` and `hi` bound it, NaN where there is no interval."""

    name: str
    value: float
    lo: float | int = math.nan
    hi: float | int = math.nan


@dataclass(frozen=True)
class Point:
    """A number at a place on the x axis, with its interval, its null's band, and whether the null explains it."""

    x: int
    value: float
    lo: float
    hi: float
    null: float
    null_lo: float
    null_hi: float
    informative: bool
    told: str


def fall(first: Bar, bars: Sequence[Bar], last: Bar, unit: str, about: str) -> Chart:
    """Steps from one total to another, each starting where the one before ended.

    The axis covers the way from one to the other, not zero, since totals are often far from it and close together.
    """
    ends = [first.value]
    for bar in bars:
        ends.append(ends[-1] + (bar.value if math.isfinite(bar.value) else 0.0))
    height = ROW * (len(bars) + 2)
    x, shapes = _places([*ends, last.value], height, unit, zero=False)
    shapes += _total(0, first, x)
    for n, bar in enumerate(bars):
        kind = "falling" if bar.value < 0 else "rising"
        at = x(ends[n])
        shapes.append(shape("line", x1=at, x2=at, y1=n * ROW + 12, y2=(n + 1) * ROW + 4, class_="link"))
        shapes += _row((n + 1) * ROW, bar, x, ends[n], ends[n + 1], kind)
    shapes += _total(height - ROW, last, x)
    return Chart(WIDTH, height + 24, tuple(shapes), f"{about}: {_numbers([first, *bars, last])}.")


def _total(top: float | int, bar: Bar, x: Place) -> list[Shape]:
    name = shape("text", bar.name, x=LEFT, y=top + 15, text_anchor="end")
    if not math.isfinite(bar.value):
        return [name, shape("text", written(bar.value), x=LEFT + 14, y=top + 15, class_="nan-word start")]
    at = x(bar.value)
    mark = shape(
        "line", title=f"{bar.name}: {written(bar.value)}", x1=at, x2=at, y1=top + 2, y2=top + ROW - 2, class_="total"
    )
    return [name, mark, shape("text", written(bar.value), x=at + 7, y=top + 15)]


def intervals(bars: Sequence[Bar], unit: str, about: str) -> Chart:
    """Bars from zero with their intervals as whiskers."""
    height = ROW * len(bars)
    x, shapes = _places([end for bar in bars for end in (bar.value, bar.lo, bar.hi)], height, unit, zero=True)
    for n, bar in enumerate(bars):
        shapes += _row(n * ROW, bar, x, 0.0, bar.value, "falling" if bar.value < 0 else "rising")
    return Chart(WIDTH, height + 24, tuple(shapes), f"{about}: {_numbers(bars)}.")


def _places(ends: Sequence[float | int], height: int, unit: str, *, zero: bool) -> tuple[Place, list[Shape]]:
    """Where values stand, and the axis below: zero, or the ends of what is shown."""
    finite = [end for end in ends if math.isfinite(end)] or [0.0]
    low, high = min(finite), max(finite)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    reach = (WIDTH - LEFT - 82) / (high - low or 1.0)

    def x(value: float | int) -> float | int:
        return LEFT + 14 + (value - low) * reach

    if zero:
        axis = [shape("line", x1=x(0), x2=x(0), y1=0, y2=height, class_="axis")]
        return x, [
            *axis,
            shape("text", f"0 ({unit})", x=x(0), y=height + 16, text_anchor="start" if x(0) < 150 else "middle"),
        ]
    shapes = []
    for value, words in ((low, written(low)), (high, f"{written(high)} ({unit})")):
        shapes.append(shape("line", x1=x(value), x2=x(value), y1=0, y2=height, class_="grid"))
        shapes.append(shape("text", words, x=x(value), y=height + 16, text_anchor="middle"))
    return x, shapes if high > low else shapes[2:]


def _numbers(bars: Sequence[Bar]) -> str:
    return ", ".join(f"{bar.name} {written(bar.value)}" for bar in bars)


def _row(top: float | int, bar: Bar, x: Place, start: float | int, end: float | int, kind: str) -> list[Shape]:
    name = shape("text", bar.name, x=LEFT, y=top + 15, text_anchor="end")
    if not (math.isfinite(start) and math.isfinite(end)):
        return [name, shape("text", written(bar.value), x=LEFT + 14, y=top + 15, class_="nan-word start")]
    left, right = sorted((x(start), x(end)))
    told = f"{bar.name}: {written(bar.value)}"
    found = [name]
    if math.isfinite(bar.lo) and math.isfinite(bar.hi):
        told += f", 95 % {written(bar.lo)} to {written(bar.hi)}"
        right = max(right, x(bar.hi))
    found.append(
        shape(
            "rect",
            title=told,
            x=min(x(start), x(end)),
            y=top + 4,
            width=max(abs(x(end) - x(start)), 0.8),
            height=ROW - 8,
            class_=kind,
        )
    )
    if math.isfinite(bar.lo) and math.isfinite(bar.hi):
        found.append(shape("line", x1=x(bar.lo), x2=x(bar.hi), y1=top + ROW / 2, y2=top + ROW / 2, class_="whisker"))
    return [*found, shape("text", written(bar.value), x=max(left, right) + 6, y=top + 15)]


PANEL_WIDTH, PANEL_HEIGHT, EDGE, BASE = 340, 190, 62, 156


def panel(points: Sequence[Point], about: str, x_name: str) -> Chart:
    """Values over whole numbers, filled where they say something, over the band of their null."""
    ends = [v for p in points for v in (p.value, p.lo, p.hi, p.null_lo, p.null_hi) if math.isfinite(v)] or [0.0]
    low, high = min(0.0, *ends), max(0.0, *ends)
    high = high if high > low else low + 1.0
    first, last = points[0].x, max(points[-1].x, points[0].x + 1)

    def at(x: float | int, y: float | int) -> tuple[float | int, float | int]:
        return EDGE + 10 + (PANEL_WIDTH - EDGE - 26) * (x - first) / (last - first), 10 + (BASE - 10) * (high - y) / (
            high - low
        )

    shapes = [*_scale(low, high, at), *_band(points, at), *_marks(points, at)]
    for x in sorted({points[0].x, points[-1].x}):
        shapes.append(shape("text", str(x), x=at(x, low)[0], y=BASE + 16, text_anchor="middle"))
    shapes.append(shape("text", x_name, x=PANEL_WIDTH - 8, y=BASE + 30, text_anchor="end"))
    said = ", ".join(f"{p.x} {written(p.value)} (null {written(p.null)})" for p in points)
    return Chart(PANEL_WIDTH, PANEL_HEIGHT, tuple(shapes), f"{about} by {x_name}: {said}.")


def _scale(low: float | int, high: float | int, at: At) -> list[Shape]:
    found = []
    for n in range(4):
        value = low + (high - low) * n / 3
        y = at(0, value)[1]
        found.append(shape("line", x1=EDGE, x2=PANEL_WIDTH - 8, y1=y, y2=y, class_="grid"))
        found.append(shape("text", written(float(f"{value:.3g}")), x=EDGE - 6, y=y + 4, text_anchor="end"))
    return found


def _band(points: Sequence[Point], at: At) -> list[Shape]:
    kept = [p for p in points if math.isfinite(p.null_lo) and math.isfinite(p.null_hi)]
    if not kept:
        return []
    if len(kept) == 1:
        (x, top), (_, bottom) = at(kept[0].x, kept[0].null_hi), at(kept[0].x, kept[0].null_lo)
        return [shape("rect", x=x - 8, y=top, width=16, height=max(bottom - top, 1), class_="band")]
    corners = [at(p.x, p.null_hi) for p in kept] + [at(p.x, p.null_lo) for p in reversed(kept)]
    middle = [at(p.x, p.null) for p in kept if math.isfinite(p.null)]
    return [
        shape("polygon", points=_joined(corners), class_="band"),
        shape("polyline", points=_joined(middle), class_="null"),
    ]


def _marks(points: Sequence[Point], at: At) -> list[Shape]:
    finite = [p for p in points if math.isfinite(p.value)]
    found = [shape("polyline", points=_joined([at(p.x, p.value) for p in finite]), class_="line pattern")]
    for p in points:
        x, y = at(p.x, p.value if math.isfinite(p.value) else 0.0)
        if not math.isfinite(p.value):
            found.append(shape("text", written(p.value), x=x, y=y, class_="nan-word"))
            continue
        if math.isfinite(p.lo) and math.isfinite(p.hi):
            found.append(shape("line", x1=x, x2=x, y1=at(p.x, p.lo)[1], y2=at(p.x, p.hi)[1], class_="whisker"))
        found.append(shape("circle", title=p.told, cx=x, cy=y, r=4, class_="full" if p.informative else "hollow"))
    return found


def _joined(points: Sequence[tuple[float | int, float | int]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
