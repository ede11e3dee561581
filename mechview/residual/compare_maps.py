"""Two heads as maps: how far apart, at what angle, with what spectra; by r x r products only.

`A - B` is the product of thin factors `[La - Lb, (La + Lb) / 2] [(Ra + Rb) / 2; Ra - Rb]`: factors that agree
give exact zeros, and a small edit keeps its digits, where `|A|^2 - 2<A, B> + |B|^2` would cancel them. Then
`2 - 2 cos = (|A - B|^2 - (|A| - |B|)^2) / |A||B|`. The largest principal angle between two subspaces has the
largest singular value of what one lacks of the other as its sine and the smallest of their product as its
cosine (Bjorck and Golub 1973; Knyazev and Argentati 2002), both used, so that small and right angles are
exact. Singular values of A and B cannot differ by more than |A - B| (Mirsky 1960).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.lowrank import LowRank, frobenius_norms

SOUND = 1e-6  # |M|^2 over its bound by columns: what a sum of r x r products keeps of 16 digits


@dataclass(frozen=True)
class MapDifference:
    """One head's map on both sides. Angles in degrees; NaN where a side has no direction."""

    norm_a: float
    norm_b: float
    apart: float
    one_minus_cosine: float
    spectrum_apart: float
    left_angle: float
    right_angle: float


def stack_maps(maps: list[LowRank]) -> LowRank:
    """Maps of one layer as a batch, in float64."""
    return LowRank(torch.stack([m.left for m in maps]).double(), torch.stack([m.right for m in maps]).double())


def subtract(a: LowRank, b: LowRank) -> LowRank:
    """`a - b` as one thin product, exactly zero where the factors agree."""
    rank = max(a.left.shape[-1], b.left.shape[-1])
    La, Lb = (_widened(x.left, rank) for x in (a, b))
    Ra, Rb = (_widened(x.right.mT, rank).mT for x in (a, b))
    return LowRank(torch.cat([La - Lb, (La + Lb) / 2], -1), torch.cat([(Ra + Rb) / 2, Ra - Rb], -2))


def map_differences(a: LowRank, b: LowRank) -> list[MapDifference]:
    """Differences of two batches of maps, one per head; both in float64."""
    norm_a, norm_b, apart = norms(a), norms(b), norms(subtract(a, b))
    lost = (apart.square() - (norm_a - norm_b).square()).clamp(min=0) / (2 * norm_a * norm_b)
    (Ua, Sa, Va), (Ub, Sb, Vb) = decomposed(a), decomposed(b)
    equal = apart == 0  # the last digits of two equal decompositions may differ with their place in memory
    spectra = torch.linalg.vector_norm(_widened(Sb, Sa.shape[-1]) - _widened(Sa, Sb.shape[-1]), dim=-1)
    return [
        MapDifference(
            float(norm_a[n]), float(norm_b[n]), float(apart[n]),
            0.0 if equal[n] else _number(lost[n]), 0.0 if equal[n] else float(spectra[n]),
            0.0 if equal[n] else largest_angle(_span(Ua[n], Sa[n]), _span(Ub[n], Sb[n])),
            0.0 if equal[n] else largest_angle(_span(Va[n], Sa[n]), _span(Vb[n], Sb[n])),
        )
        for n in range(len(apart))
    ]  # fmt: skip


def norms(low: LowRank) -> Float[Tensor, "*batch"]:
    """Frobenius norms by r x r products in float64; by QR where the products cancel."""
    left, right = low.left, low.right
    squares = ((left.mT @ left) * (right @ right.mT)).sum((-2, -1))
    bound = (torch.linalg.vector_norm(left, dim=-2) * torch.linalg.vector_norm(right, dim=-1)).sum(-1).square()
    found = squares.clamp(min=0).sqrt()
    cancelled = squares < SOUND * bound
    if cancelled.any():
        found[cancelled] = frobenius_norms(LowRank(left[cancelled], right[cancelled]))
    return found


def decomposed(low: LowRank) -> tuple[Tensor, Float[Tensor, "*batch rank"], Tensor]:
    """`(U, S, V)` with `M = U S V^T`, from the QR of both factors and the SVD of what is left, r x r."""
    (Q, R), (P, T) = torch.linalg.qr(low.left), torch.linalg.qr(low.right.mT)
    u, S, vh = torch.linalg.svd(R @ T.mT)
    return Q @ u, S, P @ vh.mT


def largest_angle(a: Float[Tensor, "d_model _rank_a"], b: Float[Tensor, "d_model _rank_b"]) -> float:
    """Largest of the min(rank) principal angles of two spans of orthonormal columns, in degrees."""
    if not a.shape[1] or not b.shape[1]:
        return math.nan
    wide, thin = (a, b) if a.shape[1] >= b.shape[1] else (b, a)
    inside = wide.mT @ thin
    outside = thin - wide @ inside
    sine = math.sqrt(max(0.0, float(torch.linalg.eigvalsh(outside.mT @ outside)[-1])))
    return math.degrees(math.atan2(sine, float(torch.linalg.svdvals(inside)[-1])))


def _number(x: Tensor) -> float:
    """NaN for what a map of zeros divides by."""
    return float(x) if x.isfinite() else math.nan


def _span(vectors: Float[Tensor, "d_model rank"], S: Float[Tensor, "rank"]) -> Tensor:
    """Singular vectors of the singular values that float32 weights can tell from zero."""
    floor = S[0] * max(vectors.shape) * torch.finfo(torch.float32).eps
    return vectors[:, floor < S]


def _widened(x: Tensor, width: int) -> Tensor:
    """Zeros after the last column, up to `width`."""
    return torch.nn.functional.pad(x, (0, max(0, width - x.shape[-1])))
