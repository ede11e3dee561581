"""The residual stream of one prompt, as plain arrays for the page: sizes, directions, lens and growth.

Rows are the ledger's at layer grain; the waterfall holds the largest shares of the most likely next token
at the last position, with everything else in one row, so that it still adds up to the model's own logit.
What a model does not have (no unembedding, a head that is not linear) is None, with the reason beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mechview.errors import MechviewError

LARGEST = 16


@dataclass(frozen=True)
class Waterfall:
    """Shares along one direction at one position; `bars` and `rest` add up to `total` within `error`."""

    target: str
    position: int
    bars: tuple[tuple[str, float], ...]
    rest: float
    rest_count: int
    total: float
    error: float


@dataclass(frozen=True)
class LensView:
    """Readings `[point, pos]`: the likeliest token as shown, its probability, entropy and KL to the end in nats."""

    points: tuple[str, ...]
    top: tuple[tuple[str, ...], ...]
    prob: np.ndarray
    entropy: np.ndarray
    kl: np.ndarray
    error: float


@dataclass(frozen=True)
class StreamView:
    """Sizes are `[component, pos]` in stream units; growth is `[point, pos]`."""

    components: tuple[str, ...]
    norm: np.ndarray
    cosine: np.ndarray
    shares: np.ndarray | None
    error: float
    points: tuple[str, ...]
    stream_norm: np.ndarray
    stream_cosine: np.ndarray
    waterfall: Waterfall | None
    lens: LensView | None
    missing: tuple[str, ...]


def stream_view(trace: Any, keep_text: bool) -> StreamView:
    """What the page shows of one prompt's stream."""
    from mechview.residual.ledger import cosine, ledger
    from mechview.residual.lens import points_of

    rows = ledger(trace, "layer")
    streams = points_of(trace)
    names, stacked = [name for name, _ in streams], [stream.double() for _, stream in streams]
    missing: list[str] = []
    fall = _tried(lambda: _waterfall(trace, keep_text), "No shares of a logit", missing)
    return StreamView(
        components=rows.components,
        norm=_array(rows.values.double().norm(dim=-1)),
        cosine=_array(rows.cos_stream),
        shares=None if fall is None else _shares(trace, rows.components),
        error=rows.error,
        points=tuple(names),
        stream_norm=np.stack([_array(stream.norm(dim=-1)) for stream in stacked]),
        stream_cosine=np.stack([_array(cosine(stream, stacked[-1])) for stream in stacked]),
        waterfall=fall,
        lens=_tried(lambda: _lens(trace, keep_text), "No logit lens", missing),
        missing=tuple(missing),
    )


def _tried(make: Any, what: str, missing: list[str]) -> Any:
    try:
        return make()
    except MechviewError as error:
        missing.append(f"{what}: {error}.")
        return None


def likeliest(trace: Any) -> int:
    from mechview.errors import UnsupportedError

    if trace.logits is None:
        raise UnsupportedError("this model has no unembedding")
    return int(trace.logits[-1].argmax())


def _waterfall(trace: Any, keep_text: bool) -> Waterfall:
    from mechview.residual.shares import shares

    found = shares(trace, likeliest(trace), by="head")
    bars = found.top(LARGEST)
    kept = {name for name, _ in bars}
    rest = [float(value) for name, value in zip(found.components, found.values, strict=True) if name not in kept]
    return Waterfall(
        target=shown(trace, likeliest(trace), keep_text), position=found.position, bars=tuple(bars), rest=float(sum(rest)),
        rest_count=len(rest), total=found.total, error=found.error,
    )  # fmt: skip


def _shares(trace: Any, components: tuple[str, ...]) -> np.ndarray:
    """Shares of the same token at every position, for the rows of the ledger."""
    from mechview.residual.grains import Split
    from mechview.residual.readout import logit_direction
    from mechview.residual.shares import along

    names, values = along(trace, logit_direction(trace, likeliest(trace), None, None), Split("layer"))
    place = {name: n for n, name in enumerate(names)}
    blank = np.full(values.shape[1], np.nan)
    return np.stack([_array(values[place[name]]) if name in place else blank for name in components])


def _lens(trace: Any, keep_text: bool) -> LensView:
    from mechview.residual.lens import lens

    found = lens(trace)
    unique = {int(token): shown(trace, int(token), keep_text) for token in found.top.unique()}
    return LensView(
        points=found.points, top=tuple(tuple(unique[int(token)] for token in row) for row in found.top),
        prob=_array(found.top_prob), entropy=_array(found.entropy), kl=_array(found.kl), error=found.error,
    )  # fmt: skip


def shown(trace: Any, token: int, keep_text: bool) -> str:
    from mechview.tokens import describe

    return describe([token], trace.tokenizer)[0].shown if keep_text else "•"


def _array(values: Any) -> np.ndarray:
    return values.detach().double().cpu().numpy()
