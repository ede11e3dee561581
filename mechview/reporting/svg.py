"""Charts as inline SVG: shapes and text as values, which a template writes out with everything escaped.

No script and no library is needed to see them. A number that is NaN is left out of a line and drawn in the
colour of NaN in a map; a cell that does not exist (None) stays empty. Colours are classes of the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STEPS = 9  # classes of a colour scale
TOP = 24  # room above the axes for the name of what is drawn


@dataclass(frozen=True)
class Shape:
    """One SVG element: its name, attributes, text and what is shown on hovering."""

    kind: str
    attributes: dict[str, str]
    text: str = ""
    title: str = ""


@dataclass(frozen=True)
class Chart:
    """A drawing of a size in its own units; `about` is read to those who do not see it."""

    width: int
    height: int
    shapes: tuple[Shape, ...]
    about: str


@dataclass(frozen=True)
class Line:
    """Points of one line; `kind` is a class of the style sheet."""

    name: str
    x: Sequence[float | int]
    y: Sequence[float | int]
    kind: str


def shape(kind: str, text: str = "", title: str = "", **attributes: float | int | str) -> Shape:
    named = {key.rstrip("_").replace("_", "-"): _number(value) for key, value in attributes.items()}
    return Shape(kind, named, text, title)


def _number(value: float | int | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def heatmap(
    values: Sequence[Sequence[float | int | None]],
    names: Sequence[str],
    about: str,
    *,
    scale: tuple[float | int, float | int, float | int],
    columns: Sequence[str] | None = None,
    kind: str = "div",
    told: str = "of {row} after {column}: {value}",
) -> Chart:
    """A map with the names of its rows on the left; its columns are the same things unless they are named.

    Args:
        scale: values of the scale's first, middle and last colour; `kind` is `div` or `ramp`.
        told: what a cell says of its row, column and value.
    """
    across = names if columns is None else columns
    left = 12 + min(18, max((len(name) for name in names), default=1)) * 7
    cell = max(7, min(34 if columns else 26, 620 // max(len(across), 1), 620 // max(len(names), 1)))
    shapes, every = [], max(1, math.ceil(12 / cell))
    for r, row in enumerate(values):
        if r % every == 0:
            shapes.append(shape("text", names[r], x=left - 6, y=r * cell + cell / 2 + 4, text_anchor="end"))
        for c, value in enumerate(row):
            if value is not None:
                mark = "nan" if math.isnan(value) else f"{kind}{_step(value, *scale)}"
                words = told.format(row=names[r], column=across[c], value=f"{value:.3g}")
                place = {"x": left + c * cell, "y": r * cell, "width": cell - 0.6, "height": cell - 0.6}
                shapes.append(
                    Shape("rect", {name: _number(at) for name, at in place.items()} | {"class": mark}, title=words)
                )
                if mark == "nan" and cell >= 20:
                    shapes.append(
                        shape("text", "NaN", x=left + (c + 0.5) * cell, y=(r + 0.5) * cell + 4, class_="nan-word")
                    )
    below = len(names) * cell + 10
    for c in range(0, len(across), every):
        x = left + c * cell + cell / 2
        shapes.append(
            shape("text", across[c], x=x, y=below, text_anchor="end", transform=f"rotate(-60 {x:.1f} {below})")
        )
    return Chart(
        left + len(across) * cell + 8, below + 12 + min(56, 6 * max(map(len, across), default=1)), tuple(shapes), about
    )


def _step(value: float | int, low: float | int, middle: float | int, high: float | int) -> int:
    """Class of a colour scale whose middle stands for `middle`."""
    half = STEPS // 2
    reach = high - middle if value > middle else middle - low
    share = (value - middle) / reach if reach else 0.0
    return half + round(max(-1.0, min(1.0, share)) * half)


def lines(
    found: Sequence[Line], about: str, x_name: str, y_name: str, *, log_x: bool = False, top: float | int | None = None,
    ticks: Sequence[tuple[float | int, str]] = (),
) -> Chart:  # fmt: skip
    """Lines on common axes from zero (or the smallest value, if below) up to the largest."""
    width, height, left, bottom = 640, 290 + (40 if ticks else 0), 56, 46 + (40 if ticks else 0)
    points = [
        (x, y) for line in found for x, y in zip(line.x, line.y, strict=True) if math.isfinite(x) and math.isfinite(y)
    ]
    if not points:
        return Chart(width, 40, (shape("text", "nothing to draw", x=10, y=24),), about)
    place = [math.log10(x) if log_x else x for x, _ in points]
    x0, x1 = min(place), max(place) if max(place) > min(place) else min(place) + 1
    y0 = min(0.0, *(y for _, y in points))
    y1 = max(top or -math.inf, *(y for _, y in points))
    y1 = y1 if y1 > y0 else y0 + 1

    def at(x: float | int, y: float | int) -> tuple[float | int, float | int]:
        right = (math.log10(x) if log_x else x) - x0
        return left + (width - left - 12) * right / (x1 - x0), TOP + (height - bottom - TOP) * (y1 - y) / (y1 - y0)

    shapes = _axes(left, width, height - bottom, y0, y1, x_name, y_name, height)
    shapes += _ticks(
        ticks
        or [
            (10**x if log_x else x, f"{10**x if log_x else x:.3g}")
            for x in (_decades(x0, x1) if log_x else _even(x0, x1))
        ],
        at,
        y0,
        bool(ticks),
    )
    for line in found:
        kept = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
        drawn = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(x, y) for x, y in kept))
        shapes.append(shape("polyline", title=line.name, points=drawn, class_=f"line {line.kind}"))
        if len(kept) == 1:  # a line of one point has no length
            x, y = at(*kept[0])
            shapes.append(shape("circle", title=line.name, cx=x, cy=y, r=4, class_=f"line {line.kind} only"))
    return Chart(width, height, tuple(shapes), about)


def _decades(low: float | int, high: float | int) -> list[float | int]:
    """Whole powers of ten between two exponents, or even steps where there are fewer than two."""
    whole = list(range(math.ceil(low), math.floor(high) + 1))
    return list(whole) if len(whole) > 1 else _even(low, high)


def _even(low: float | int, high: float | int, count: int = 5) -> list[float | int]:
    return [low + (high - low) * n / (count - 1) for n in range(count)]


def _axes(
    left: float | int,
    width: float | int,
    base: float | int,
    y0: float | int,
    y1: float | int,
    x_name: str,
    y_name: str,
    height: float | int,
) -> list[Shape]:
    found = [shape("line", x1=left, x2=width - 12, y1=base, y2=base, class_="axis")]
    for value in _even(y0, y1, 4):
        y = TOP + (base - TOP) * (y1 - value) / (y1 - y0)
        found.append(shape("line", x1=left, x2=width - 12, y1=y, y2=y, class_="grid"))
        found.append(shape("text", f"{value:.3g}", x=left - 6, y=y + 4, text_anchor="end"))
    found.append(shape("text", x_name, x=width - 12, y=height - 4, text_anchor="end"))
    return [*found, shape("text", y_name, x=left, y=12)]


def _ticks(
    ticks: Sequence[tuple[float | int, str]],
    at: Callable[[float | int, float | int], tuple[float | int, float | int]],
    y0: float | int,
    turned: bool,
) -> list[Shape]:
    found = []
    for value, name in ticks:
        x, y = at(value, y0)
        turn = (
            {"transform": f"rotate(-50 {x:.1f} {y + 12:.1f})", "text_anchor": "end"}
            if turned
            else {"text_anchor": "middle"}
        )
        found.append(shape("text", name, x=x, y=y + (12 if turned else 16), **turn))
    return found
