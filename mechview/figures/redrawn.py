"""The traces of mechview's figures drawn by matplotlib: heat maps, bars, lines and points, waterfalls.

Reads the plotly figure, so both pictures hold the same numbers. Category axes keep the order of the
traces; a reversed axis is reversed; NaN cells are marked as in the interactive figure, masked ones empty.
"""

from __future__ import annotations

import html
import re
from typing import Any

import numpy as np

from mechview.errors import OutputError
from mechview.figures.style import INK, NAN, PATTERN, QUIET

TAGS = re.compile(r"<br\s*/?>")
MARKUP = re.compile(r"</?(?:b|i|sub|sup|span|em)\b[^>]*>")
PLATE = {"boxstyle": "round,pad=0.15", "facecolor": "#ffffff", "edgecolor": "none"}
DASHES = {"dash": "--", "dot": ":", "dashdot": "-."}


def redraw(figure: Any, canvas: Any) -> None:
    """Draw a plotly figure on an empty matplotlib figure.

    Raises:
        OutputError: a trace of a kind that mechview's figures do not use.
    """
    shown = [trace for trace in figure.data if trace.visible in (None, True)]
    for trace in shown:
        if trace.type not in DRAWERS:
            raise OutputError(f"a {trace.type} trace cannot be drawn without a browser; install kaleido and a Chrome")
    panels = _panels(figure, shown, canvas)
    for trace in shown:
        axes = panels[(trace.xaxis or "x", trace.yaxis or "y")]
        DRAWERS[trace.type](axes, trace, figure)
    for (x, y), axes in panels.items():
        _finish(axes, figure.layout[_layout_name(x, "xaxis")], figure.layout[_layout_name(y, "yaxis")])
        axes.set_facecolor(figure.layout.plot_bgcolor or "#ffffff")
        for shape in figure.layout.shapes:
            if (shape.xref or "x").split()[0] in (x, "paper") and (shape.yref or "y").split()[0] in (y, "paper"):
                _shape(axes, shape)
    if figure.layout.showlegend is not False:
        _legends(list(panels.values()))
    for note in figure.layout.annotations:
        _annotation(panels, note)
    if figure.layout.title.text:
        canvas.suptitle(words(figure.layout.title.text), fontsize=12, x=0.01, ha="left", parse_math=False, wrap=True)


def colour_of(text: str) -> Any:
    """A colour as matplotlib takes it: plotly also writes `rgb(1, 2, 3)` and `rgba(1, 2, 3, 0.5)`."""
    parts = re.fullmatch(r"rgba?\(([^)]*)\)", text.strip())
    if parts is None:
        return text
    red, green, blue, *alpha = (float(part) for part in parts[1].split(","))
    return (red / 255, green / 255, blue / 255, alpha[0] if alpha else 1.0)


def words(text: Any) -> str:
    """Plotly's pseudo-HTML as plain text."""
    return html.unescape(MARKUP.sub("", TAGS.sub("\n", str(text))))


def _layout_name(reference: str, kind: str) -> str:
    return kind + reference[1:]


def _panels(figure: Any, shown: list[Any], canvas: Any) -> dict[tuple[str, str], Any]:
    """One axes a pair of plotly axes; an axis that overlays another shares its place."""
    found: dict[tuple[str, str], Any] = {}
    pairs = list(dict.fromkeys((trace.xaxis or "x", trace.yaxis or "y") for trace in shown)) or [("x", "y")]
    own = [pair for pair in pairs if not figure.layout[_layout_name(pair[1], "yaxis")].overlaying]
    places = {pair: _start(figure, pair) for pair in own}
    rows = sorted({place[1] for place in places.values()}, reverse=True)
    columns = sorted({place[0] for place in places.values()})
    grid = canvas.subplots(len(rows), len(columns), squeeze=False)
    for pair, (left, bottom) in places.items():
        found[pair] = grid[rows.index(bottom)][columns.index(left)]
    for axes in grid.flat:
        axes.set_visible(any(axes is used for used in found.values()))
    for pair in pairs:
        if pair not in found:
            base = figure.layout[_layout_name(pair[1], "yaxis")].overlaying
            found[pair] = found[(pair[0], base)].twinx()
    return found


def _start(figure: Any, pair: tuple[str, str]) -> tuple[float, float]:
    x, y = figure.layout[_layout_name(pair[0], "xaxis")], figure.layout[_layout_name(pair[1], "yaxis")]
    return (x.domain or (0.0, 1.0))[0], (y.domain or (0.0, 1.0))[0]


def _legends(panels: list[Any]) -> None:
    """One legend a place, for all axes that share it, where there is more than one thing to tell apart."""
    for place in {axes.get_subplotspec() for axes in panels}:
        there = [axes for axes in panels if axes.get_subplotspec() == place]
        found = [axes.get_legend_handles_labels() for axes in there]
        handles, labels = ([one for pair in found for one in pair[n]] for n in (0, 1))
        if len(labels) > 1:
            there[-1].legend(handles, labels, fontsize=8, frameon=False)


def _annotation(panels: dict[tuple[str, str], Any], note: Any) -> None:
    """A word at a place of an axis and a height of the paper, as the strip of tokens has them; others are left out."""
    axes = next((axes for (x, _), axes in panels.items() if x == (note.xref or "x")), None)
    if axes is not None and note.yref == "paper" and isinstance(note.x, int | float):
        at = axes.get_xaxis_transform()
        axes.text(
            note.x, note.y, words(note.text), transform=at, ha="center", va="center", bbox=PLATE, parse_math=False
        )


def _finish(axes: Any, x: Any, y: Any) -> None:
    for axis, found, limits in ((x, axes.xaxis, axes.set_xlim), (y, axes.yaxis, axes.set_ylim)):
        if axis.title.text:
            found.set_label_text(words(axis.title.text), parse_math=False)
        if axis.ticktext is not None:
            _ticks(found, [words(text) for text in axis.ticktext], at=list(axis.tickvals))
        if axis.type == "log":
            (axes.set_xscale if found is axes.xaxis else axes.set_yscale)("log")
        if axis.range is not None and axis.type not in ("log", "category"):
            limits(*axis.range)
        if axis.autorange == "reversed" and not found.get_inverted():
            found.set_inverted(True)
        if axis.showticklabels is False:
            found.set_ticks([])
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)


def _shape(axes: Any, shape: Any) -> None:
    style = {"color": shape.line.color or QUIET, "linestyle": DASHES.get(shape.line.dash, "-"), "linewidth": 1}
    if shape.type == "line" and shape.y0 == shape.y1:
        axes.axhline(shape.y0, **style)
    elif shape.type == "line" and shape.x0 == shape.x1:
        axes.axvline(shape.x0, **style)
    elif shape.type == "rect" and shape.y0 is not None:
        axes.axhspan(shape.y0, shape.y1, color=shape.fillcolor or QUIET, alpha=shape.opacity or 0.2, linewidth=0)


def _labels(values: Any, count: int) -> list[str]:
    return [words(value) for value in values] if values is not None else [str(n) for n in range(count)]


def _ticks(axis: Any, labels: list[str], most: int = 30, at: list[Any] | None = None) -> None:
    step = max(1, -(-len(labels) // most))
    axis.set_ticks((at or range(len(labels)))[::step], labels=labels[::step], parse_math=False)
    if axis.axis_name == "x" and max(map(len, labels), default=0) > 3:
        axis.set_tick_params(rotation=60)


def _heatmap(axes: Any, trace: Any, figure: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    z = np.array([[np.nan if cell is None else float(cell) for cell in row] for row in trace.z])
    stops = [(float(at), colour) for at, colour in trace.colorscale]
    finite = z[np.isfinite(z)]
    low = trace.zmin if trace.zmin is not None else float(finite.min()) if len(finite) else 0.0
    high = trace.zmax if trace.zmax is not None else float(finite.max()) if len(finite) else 1.0
    colours = LinearSegmentedColormap.from_list("mechview", stops)
    image = axes.imshow(z, cmap=colours, vmin=low, vmax=high if high > low else low + 1, aspect="auto", origin="lower")
    _ticks(axes.xaxis, _labels(trace.x, z.shape[1]))
    _ticks(axes.yaxis, _labels(trace.y, z.shape[0]))
    if trace.xgap or trace.ygap:
        _gaps(axes, z.shape)
    if trace.texttemplate:
        _cell_words(axes, trace, image)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.7)
    bar.ax.tick_params(labelsize=8)
    if trace.colorbar.title.text:
        bar.set_label(words(trace.colorbar.title.text), parse_math=False)


def _gaps(axes: Any, shape: tuple[int, int]) -> None:
    """White lines between cells."""
    axes.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#ffffff", linewidth=2)
    axes.tick_params(which="minor", length=0)


def _cell_words(axes: Any, trace: Any, image: Any) -> None:
    """The word of each cell, light on dark and dark on light."""
    for row, line in enumerate(trace.text):
        for column, word in enumerate(line):
            if not word:
                continue
            red, green, blue, _ = image.cmap(image.norm(image.get_array()[row][column]))
            light = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            colour = "#ffffff" if light else INK
            axes.text(column, row, words(word), fontsize=8, ha="center", va="center", color=colour, parse_math=False)


def _places(axes: Any, values: Any, axis: Any) -> np.ndarray:
    """Numbers as they are; anything else by its place in the order of first appearance."""
    items = list(values)
    if all(isinstance(item, (int, float, np.number)) for item in items):
        return np.asarray(items, dtype=float)
    known: list[str] = getattr(axes, "mechview_order", {}).get(axis.axis_name, [])
    known = list(dict.fromkeys([*known, *map(words, items)]))
    axes.mechview_order = getattr(axes, "mechview_order", {}) | {axis.axis_name: known}
    _ticks(axis, known)
    return np.asarray([known.index(words(item)) for item in items], dtype=float)


def _bar(axes: Any, trace: Any, figure: Any) -> None:
    flat = trace.orientation == "h"
    where, size = (trace.y, trace.x) if flat else (trace.x, trace.y)
    axis = axes.yaxis if flat else axes.xaxis
    at = _places(axes, where, axis)
    lengths = np.asarray([np.nan if value is None else value for value in size], dtype=float)
    stacked = figure.layout.barmode in ("relative", "stack")
    alone = stacked or figure.layout.barmode == "overlay"
    groups = [trace] if alone else [other for other in figure.data if other.type == "bar"]
    width = 0.8 / len(groups)
    at = at + (next(n for n, other in enumerate(groups) if other is trace) - (len(groups) - 1) / 2) * width
    colour = trace.marker.color if trace.marker.color is not None else PATTERN
    colours = list(colour) if not isinstance(colour, str) else colour
    start = _stacked(axes, at, lengths) if stacked else np.zeros_like(lengths)
    more = {"left" if flat else "bottom": start}
    (axes.barh if flat else axes.bar)(at, lengths, width, color=colours, label=_named(trace), **more)


def _stacked(axes: Any, at: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Where each bar begins: above those that rise, below those that fall."""
    ends: dict[tuple[float, bool], float] = getattr(axes, "mechview_ends", {})
    places = [(float(place), bool(length < 0)) for place, length in zip(at, lengths, strict=True)]
    start = np.array([ends.get(place, 0.0) for place in places])
    grown = {place: begin + length for place, begin, length in zip(places, start, np.nan_to_num(lengths), strict=True)}
    axes.mechview_ends = ends | grown
    return start


def _named(trace: Any) -> str | None:
    return words(trace.name) if trace.name and trace.showlegend is not False else None


def _scatter(axes: Any, trace: Any, figure: Any) -> None:
    if trace.x is None or not len(trace.x):
        return
    x, y = _places(axes, trace.x, axes.xaxis), _places(axes, trace.y, axes.yaxis)
    mode = trace.mode or "lines"
    own = _colour_in_turn(trace, figure)
    points = trace.marker.color if trace.marker.color is not None else trace.line.color or own
    colour = colour_of(trace.line.color or (points if isinstance(points, str) else own))
    if trace.fill in ("tonexty", "toself"):
        axes.fill(x, y, color=colour_of(trace.fillcolor or QUIET), alpha=None if trace.fillcolor else 0.2, linewidth=0)
    if "lines" in mode:
        style = DASHES.get(trace.line.dash, "-")
        axes.plot(x, y, color=colour, linestyle=style, linewidth=trace.line.width or 1.5, label=_named(trace))
    if "markers" in mode:
        dots = colour_of(points) if isinstance(points, str) else [colour_of(str(point)) for point in points]
        axes.scatter(x, y, s=16, color=dots, label=None if "lines" in mode else _named(trace), zorder=3)
    if "text" in mode:
        for at, height, text in zip(x, y, _texts(trace), strict=True):
            axes.text(at, height, words(text), fontsize=8, ha="center", va="bottom", color=NAN, parse_math=False)


def _colour_in_turn(trace: Any, figure: Any) -> str:
    """What plotly gives a trace without a colour of its own."""
    way = figure.layout.colorway or figure.layout.template.layout.colorway or [INK]
    return str(way[next(n for n, other in enumerate(figure.data) if other is trace) % len(way)])


def _texts(trace: Any) -> list[Any]:
    return [trace.text] * len(trace.x) if isinstance(trace.text, str) else list(trace.text)


def _waterfall(axes: Any, trace: Any, figure: Any) -> None:
    at = _places(axes, trace.x, axes.xaxis)
    values = np.asarray(trace.y, dtype=float)
    total = np.array([measure == "total" for measure in trace.measure])
    ends = np.cumsum(np.where(total | ~np.isfinite(values), 0.0, values))
    start = np.where(total, 0.0, ends - np.where(np.isfinite(values), values, 0.0))
    rising, falling = trace.increasing.marker.color or PATTERN, trace.decreasing.marker.color or NAN
    colours = [INK if t else rising if value >= 0 else falling for t, value in zip(total, values, strict=True)]
    axes.bar(at, np.where(np.isfinite(values), values, 0.0), 0.7, bottom=start, color=colours)
    axes.axhline(0.0, color=QUIET, linewidth=0.8)


DRAWERS = {"heatmap": _heatmap, "bar": _bar, "scatter": _scatter, "waterfall": _waterfall}
