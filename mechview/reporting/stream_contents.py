"""What the page draws of a prompt's residual stream, as JSON values: packed grids, bars, lens readings."""

from __future__ import annotations

from typing import Any

import numpy as np

from mechview.reporting.packing import coded, number, numbers
from mechview.reporting.streams import LensView, StreamView, Waterfall


def stream_data(view: StreamView) -> dict[str, Any]:
    """Grids are `[component or point, pos]`; what the model does not have is null, with a sentence in `missing`."""
    return {
        "components": list(view.components),
        "error": number(view.error),
        "norm": _grid(view.norm),
        "cosine": _grid(view.cosine, -1.0, 1.0),
        "shares": None if view.shares is None else _grid(view.shares),
        "points": list(view.points),
        "growth": [{"name": name, "first": first, "rest": rest} for name, first, rest in _growth(view)],
        "fall": None if view.waterfall is None else _fall(view.waterfall),
        "lens": None if view.lens is None else _lens(view.lens),
        "missing": list(view.missing),
    }


def _grid(values: np.ndarray, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """A packed grid and its range, which is the values' own unless it is given."""
    finite = values[np.isfinite(values)]
    low = (float(finite.min()) if len(finite) else 0.0) if low is None else low
    high = (float(finite.max()) if len(finite) else 1.0) if high is None else high
    return {
        "codes": coded(values, np.ones(values.shape, dtype=bool), low, high),
        "range": [number(low, 9), number(high, 9)],
    }


def _growth(view: StreamView) -> list[tuple[str, list[Any], list[Any]]]:
    """Per curve its values at position 0 and the mean over the others; a one-token prompt has no others."""
    curves = (("norm", view.stream_norm), ("cosine", view.stream_cosine))
    return [(name, numbers(grid[:, 0]), numbers(_mean(grid[:, 1:]))) for name, grid in curves]


def _mean(grid: np.ndarray) -> np.ndarray:
    return grid.mean(axis=1) if grid.shape[1] else np.full(len(grid), np.nan)


def _fall(fall: Waterfall) -> dict[str, Any]:
    return {
        "target": fall.target, "position": fall.position, "bars": [[name, number(value)] for name, value in fall.bars],
        "rest": number(fall.rest), "rest_count": fall.rest_count, "total": number(fall.total), "error": number(fall.error),
    }  # fmt: skip


def _lens(lens: LensView) -> dict[str, Any]:
    """Tokens by number in a list of their own, since most readings repeat."""
    words = sorted({token for row in lens.top for token in row})
    place = {token: n for n, token in enumerate(words)}
    return {
        "points": list(lens.points), "words": words, "top": [[place[token] for token in row] for row in lens.top],
        "prob": _grid(lens.prob, 0.0, 1.0), "entropy": _grid(lens.entropy), "kl": _grid(lens.kl), "error": number(lens.error),
    }  # fmt: skip
