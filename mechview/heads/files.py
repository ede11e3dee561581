"""A head's factors as named matrices and the facts needed to use them; what a file of factors holds.

Row vectors: `x @ left @ right` applies the map. `affine_left` and `affine_right` read `[x, 1]` and carry
the biases. No dense matrix unless asked: it would be `d_model / d_head` times larger and say no more.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mechview.factors import HeadFactors
from mechview.lowrank import LowRank
from mechview.manifest import SCHEMA_VERSION
from mechview.models.load import Model
from mechview.version import __version__


def side_maps(factors: HeadFactors, side: str, offset: int | None) -> tuple[LowRank, LowRank]:
    """The pure and the affine map of a side (`pattern` or `message`); the offset matters to rotary heads."""
    if side == "message":
        return factors.message, factors.message_affine
    at = offset if factors.needs_offset else None
    return factors.pattern(at), factors.pattern_affine(at)


def factor_matrices(factors: HeadFactors, side: str, offset: int | None, dense: bool = False) -> dict[str, Tensor]:
    """`left`, `right`, `affine_left`, `affine_right`, and `dense` when asked."""
    pure, affine = side_maps(factors, side, offset)
    found = {"left": pure.left, "right": pure.right, "affine_left": affine.left, "affine_right": affine.right}
    return found | ({"dense": pure.dense()} if dense else {})


def about_factors(model: Model, factors: HeadFactors, side: str, offset: int | None) -> dict[str, Any]:
    """Everything that decides what the numbers mean."""
    return {
        "schema_version": SCHEMA_VERSION,
        "mechview": __version__,
        "model": model.name,
        "source": model.source.kind,
        "revision": model.source.revision,
        "family": model.shape.family,
        "label": factors.label,
        "stack": factors.stack,
        "kv_head": factors.kv_head,
        "side": side,
        "offset": offset if side == "pattern" and factors.needs_offset else None,
        "folded": factors.folded,
        "scale": factors.scale,
        "use": "row vectors: x @ left @ right; [x, 1] @ affine_left @ affine_right",
    }
