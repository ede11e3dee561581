"""A rotary head's pattern as a family over the offset, and what positions alone do to any head's score.

`P(t) = W_Q R(t) W_K^T`, `t = q_pos - k_pos`: its norm, its cosine to P(0) and its symmetry. For random W_Q and W_K
the cosine is `tr R(t) / (d_head a^2)`, a the attention factor: that closed form is the null. The positional kernel
is the part of the score that depends on distance and not on which tokens meet:

    rotary            scale * mean over pairs of tokens of their score at t (biases in, rows normed)
    learned           scale * mean over positions of p_i P p_(i - t)^T (rows as they are: their norm needs content)
    ALiBi, T5's bias  the bias itself

For rotary heads `same` is the mean score of a token with itself: content that matches, seen through the distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError, UsageError
from mechview.factors import HeadFactors, check_head, factor_head, homogeneous
from mechview.heads.vocabulary import Reading, kept_ids, key_rows, query_rows
from mechview.heads.weight_scores import named
from mechview.lowrank import LowRank, symmetries
from mechview.models.positions import position_bias, rotation
from mechview.models.weights import AttentionWeights, HasWeights, ModelWeights, Stack, weights_of
from mechview.results import Result

DEFAULT_OFFSETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
POSITIONS = 512  # learned positions that the mean of a distance is taken over


@dataclass(frozen=True)
class OffsetCurves(Result):
    """One head by offset; NaN where a curve does not exist for its kind of positions.

    `kernel` says how the positional kernel was taken, `cosine_null` is that of random factors.
    """

    label: str
    layer: int
    head: int
    kv_head: int
    stack: Stack
    position: str
    offsets: tuple[int, ...]
    norm: Float[Tensor, "n"] = field(repr=False)
    cosine: Float[Tensor, "n"] = field(repr=False)
    cosine_null: Float[Tensor, "n"] = field(repr=False)
    symmetry: Float[Tensor, "n"] = field(repr=False)
    kernel: Float[Tensor, "n"] = field(repr=False)
    same: Float[Tensor, "n"] = field(repr=False)
    model: str = "arrays"
    revision: str | None = None


@torch.no_grad()
def offset_curves(
    model: ModelWeights | HasWeights, *, layer: int, head: int, offsets: Sequence[int] = DEFAULT_OFFSETS,
    fold: bool = True, stack: Stack = "decoder",
) -> OffsetCurves:  # fmt: skip
    """Norm, cosine to offset 0, symmetry and positional kernel of one head at each offset.

    Raises:
        HeadError: no such head. UsageError: no offsets. UnsupportedError: a head without positions of its own.
    """
    weights = weights_of(model)
    place = check_head(weights.shape, layer, head, stack)
    attention = weights.attention(layer, place)
    factors = factor_head(attention, head, fold, len(weights.shape.stacks) > 1)
    if not offsets:
        raise UsageError("offsets is empty: give at least one distance q_pos - k_pos")
    if attention.rotary is not None:
        curves = _map_curves(factors, offsets) | _rotary_kernel(model, weights, attention, factors, offsets)
    else:
        nothing = torch.full((len(offsets),), torch.nan, dtype=torch.float64)
        names = ("norm", "cosine", "cosine_null", "symmetry", "same")
        curves = dict.fromkeys(names, nothing) | {"kernel": _other_kernel(weights, attention, factors, offsets)}
    about: dict[str, Any] = named(model)
    return OffsetCurves(
        label=factors.label, layer=layer, head=head, kv_head=factors.kv_head, stack=place,
        position=weights.shape.position, offsets=tuple(offsets), **curves, **about,
    )  # fmt: skip


def _map_curves(factors: HeadFactors, offsets: Sequence[int]) -> dict[str, Any]:
    maps = [factors.pattern(t) for t in (0, *offsets)]
    low = LowRank(torch.stack([m.left for m in maps]).double(), torch.stack([m.right for m in maps]).double())
    keys = low.right[0] @ low.right[0].mT
    inner = ((low.left[:1].mT @ low.left) * keys).sum((-2, -1))
    norm = ((low.left.mT @ low.left) * keys).sum((-2, -1)).clamp_min(0).sqrt()
    turns = torch.stack([_rotation(factors, t) for t in (0, *offsets)])
    trace = turns.diagonal(dim1=-2, dim2=-1).sum(-1)
    null = trace / (torch.linalg.matrix_norm(turns) * torch.linalg.matrix_norm(turns[0]))
    cosine = inner / (norm * norm[0]).where(norm * norm[0] > 0, torch.nan)
    return {"norm": norm[1:], "cosine": cosine[1:], "cosine_null": null[1:], "symmetry": symmetries(low)[1:]}


def _rotation(factors: HeadFactors, offset: int) -> Float[Tensor, "d_head d_head"]:
    if factors.rotary is None:
        raise UnsupportedError(f"{factors.label} has no rotary positions")
    return rotation(factors.rotary, offset, factors.query.shape[1])


def _rotary_kernel(
    model: ModelWeights | HasWeights, weights: ModelWeights, attention: AttentionWeights, factors: HeadFactors,
    offsets: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    ids = kept_ids(weights.shape.d_vocab, getattr(model, "tokenizer", None))
    reading = Reading(rows="normed")
    sides = [
        make(weights, ids, reading, attention, factors.folded).through(lambda x, W=side: homogeneous(x) @ W.double())
        for make, side in ((query_rows, factors.query_side), (key_rows, factors.key_side))
    ]
    q, k = sides
    turns = torch.stack([_rotation(factors, t) for t in offsets])
    kernel = factors.scale * ((q.mean(0) @ turns) * k.mean(0)).sum(-1)
    same = factors.scale * (turns * (q.mT @ k)).sum((-2, -1)) / len(ids)
    return {"kernel": kernel, "same": same}


def _other_kernel(
    weights: ModelWeights, attention: AttentionWeights, factors: HeadFactors, offsets: Sequence[int]
) -> Float[Tensor, "n"]:
    if attention.position_bias is not None:
        here, keys = torch.tensor([0]), -torch.tensor(list(offsets))  # ALiBi is a slope times k_pos: only k - q counts
        bias = position_bias(attention.position_bias, here, keys, attention.scale)
        return torch.zeros(len(keys), dtype=torch.float64) if bias is None else bias[factors.head, 0].double()
    W_pos = weights.ends().W_pos
    if W_pos is None or W_pos.shape[1] != weights.shape.d_model or attention.stack == "cross":
        raise UnsupportedError(f"{factors.label} has no positions of its own: its score does not depend on distance")
    p, low = W_pos[:POSITIONS].double(), factors.pattern()
    score = factors.scale * (p @ low.left.double()) @ (p @ low.right.mT.double()).mT
    means = [score.diagonal(-t).mean() if abs(t) < len(p) else score.new_tensor(torch.nan) for t in offsets]
    return torch.stack(means)
