"""Symmetry and directionality of patterns (Saponati et al. 2025), right for grouped heads.

`symmetry = tr(PP) / |P|^2`: 1 for a symmetric pattern, -1 for an antisymmetric one; the paper's code also returns
`(1 + s) / 2`. `directionality = (c - r) / (c + r)`, c the sum of what the column norms of P have beyond their mean plus
two standard deviations, r the same of rows, 0 where none has: the excess, as in the authors' code. Sign convention
here: rows are the query side and columns the key side (`x P x^T`), so positive means that a few coordinates of what
is *looked at* stand out. Query head h
meets the key/value head of its own group. Directionality depends on the basis of the stream; symmetry does not.
A layer's heads summed (as the paper does) give larger symmetry than the mean over heads: both are kept apart.
Nulls: symmetry with a random rotation between the head's two sides, which keeps what each side reads; directionality
of random heads behind the same norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.factors import HeadFactors
from mechview.heads.circuits import random_turn
from mechview.heads.weight_scores import WeightScore, head_factors_of, head_layers, named, random_heads, score_row
from mechview.lowrank import LowRank, symmetries
from mechview.models.weights import HasWeights, ModelWeights, Stack, weights_of
from mechview.results import Result

DRAWS = 16
OUTSTANDING = 2.0  # standard deviations above the mean


@dataclass(frozen=True)
class LayerGeometry:
    """Symmetry and directionality of the sum of a layer's patterns."""

    layer: int
    symmetry: float
    directionality: float


@dataclass(frozen=True)
class Geometry(Result):
    """Rows of heads (`pattern_symmetry`, `pattern_directionality`) and of summed layers."""

    rows: tuple[WeightScore, ...]
    layers: tuple[LayerGeometry, ...]
    model: str = "arrays"
    revision: str | None = None


@torch.no_grad()
def geometry(
    model: ModelWeights | HasWeights,
    *,
    layers: Sequence[int] | None = None,
    offset: int = 0,
    fold: bool = True,
    stack: Stack | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Geometry:
    """Symmetry and directionality of every head's pattern at an offset, with nulls.

    Raises:
        HeadError: a layer or stack that does not exist.
    """
    generator = torch.Generator().manual_seed(seed)
    rows: list[WeightScore] = []
    whole: list[LayerGeometry] = []
    for attention, several in head_layers(weights_of(model), layers, stack):
        heads = head_factors_of(attention, fold, several)
        low, at = patterns(heads, offset), offset if heads[0].needs_offset else None
        random = directionality(patterns(random_heads(attention, draws, fold, generator), offset))
        turned = torch.stack([symmetries(_turned(low, generator)) for _ in range(draws)])
        for n, (factors, s, d) in enumerate(zip(heads, symmetries(low), directionality(low), strict=True)):
            rows.append(score_row(factors, "pattern_symmetry", float(s), turned[:, n], at))
            rows.append(score_row(factors, "pattern_directionality", float(d), random, at))
        total = LowRank(torch.cat([*low.left], -1), torch.cat([*low.right], -2))
        joint = LowRank(total.left[None], total.right[None])
        whole.append(LayerGeometry(attention.layer, total.symmetry(), float(directionality(joint)[0])))
    return Geometry(rows=tuple(rows), layers=tuple(whole), **named(model))


def patterns(heads: list[HeadFactors], offset: int) -> LowRank:
    """Patterns of a layer as a batch, in float64."""
    maps = [f.pattern(offset if f.needs_offset else None) for f in heads]
    return LowRank(torch.stack([m.left for m in maps]).double(), torch.stack([m.right for m in maps]).double())


def directionality(low: LowRank) -> Float[Tensor, "*batch"]:
    """`(c - r) / (c + r)` of each matrix; see the module's text."""
    left_core, right_core = low.left.mT @ low.left, low.right @ low.right.mT
    rows = ((low.left @ right_core) * low.left).sum(-1).clamp_min(0).sqrt()
    columns = ((left_core @ low.right) * low.right).sum(-2).clamp_min(0).sqrt()
    r, c = outstanding(rows), outstanding(columns)
    return (c - r) / (c + r).where(c + r > 0, 1.0)


def outstanding(norms: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch"]:
    """Sum of what norms have beyond their mean plus two standard deviations."""
    bound = norms.mean(-1, keepdim=True) + OUTSTANDING * norms.std(-1, keepdim=True)
    return (norms - bound).clamp_min(0).sum(-1)


def _turned(low: LowRank, generator: torch.Generator) -> LowRank:
    """Each pattern with a random rotation between its two sides, inside the head."""
    turns = torch.stack([random_turn(low.left.shape[-1], generator) for _ in low.left])
    return LowRank(low.left @ turns.to(low.left), low.right)
