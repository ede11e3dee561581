"""How the stream grows with depth: its norm, what each half block adds, and how far it turns, point by point.

Position 0 is kept apart wherever positions are averaged: as an attention sink its norm can be hundreds of
times the others'. Growth follows Heimersheim and Turner 2023 (norms grow about exponentially with depth).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.models.trace import Trace
from mechview.residual.ledger import cosine
from mechview.residual.lens import points_of
from mechview.results import Result


@dataclass(frozen=True)
class Depth(Result):
    """Readings `[point, pos]`: norms, norms of what was added since the point before, and two cosines.

    `cos_before` is to the stream at the point before, `cos_final` to the final stream; NaN at the first point,
    where nothing came before, and where a norm is zero.
    """

    points: tuple[str, ...]
    norm: Float[Tensor, "point pos"]
    added: Float[Tensor, "point pos"]
    cos_before: Float[Tensor, "point pos"]
    cos_final: Float[Tensor, "point pos"]
    model: str = ""
    revision: str | None = None


def depth(trace: Trace) -> Depth:
    """Growth and turning of one pass's stream, before each block, in its middle, and at the end."""
    named = points_of(trace)
    stream = torch.stack([values.double() for _, values in named])
    nothing = torch.full_like(stream[:1, :, 0], torch.nan)
    before = torch.stack([cosine(now, then) for now, then in zip(stream[1:], stream[:-1], strict=True)])
    return Depth(
        points=tuple(name for name, _ in named),
        norm=stream.norm(dim=-1),
        added=torch.cat([nothing, (stream[1:] - stream[:-1]).norm(dim=-1)]),
        cos_before=torch.cat([nothing, before]),
        cos_final=cosine(stream, stream[-1]),
        model=trace.model,
        revision=trace.revision,
    )
