"""Composition of every writer with every reader: `|M1 P2| / (|M1| |P2|)` for many pairs at once.

A map enters only through the side that meets the other. With `M1 = V1 O1`, `P2 = Q2 K2^T` and `R^T R` the Gram matrix
of the far side, `|M1 P2| = |A B^T|` for `A = R_V O1` and `B = R_K Q2^T`, both `[rank, d_model]`. Then

    |A B^T|^2 = <A^T A, B^T B>,

so that all pairs are one matrix product over the d^2 entries of Gram matrices, formed tile by tile (upper triangle,
off-diagonal entries twice) and never held: cost `heads^2 d^2`, whatever the rank, against `heads^2 r^2 d` for
multiplying factors pair by pair. Where the sum may lose digits (a score small against the Grams' norms) the pair is
computed again from its factors in float64.

Null: a writer turned by a random rotation of the stream has expected squared score exactly `1 / d_model`, with
variance `2 s1 s2 / ((d - 1)(d + 2))`, `s = |G|^2 / tr(G)^2 - 1/d` (Haar moments of order two; Collins and Sniady 2006).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechview.lowrank import LowRank

TILE = 128  # rows and columns of the Gram matrices formed at once
SOUND = 2.5e-7  # largest error of a score that the fast route may leave in float32
AGAIN = 2**22  # numbers of one side of the pairs that are computed again at once


@dataclass(frozen=True)
class Ends:
    """Writers' or readers' sides `[head, rank, d_model]` of norm 1 (or 0), and the spread of their Gram matrices."""

    sides: Float[Tensor, "head rank d_model"]
    spread: Float[Tensor, "head"]

    def __len__(self) -> int:
        return len(self.sides)


def written(low: LowRank) -> Ends:
    """The output side of a batch of maps, the rest of each folded into it."""
    return _ends(_root(low.left), low.right)


def read(low: LowRank) -> Ends:
    """The input side of a batch of maps."""
    return _ends(_root(low.right.mT), low.left.mT)


def spans(sides: Float[Tensor, "head rank d_model"]) -> Ends:
    """Orthonormal rows of the same span, over the root of the rank: every direction counts alike."""
    _, S, Vh = torch.linalg.svd(sides.double(), full_matrices=False)
    kept = S[:, :1] * max(sides.shape[1:]) * torch.finfo(torch.float32).eps < S
    rank = kept.sum(-1).clamp_min(1).double()
    return from_unit((Vh * kept[..., None] / rank.sqrt()[:, None, None]).to(sides.dtype))


def from_unit(sides: Float[Tensor, "head rank d_model"]) -> Ends:
    """Sides whose norm is 1 already."""
    core = sides.double() @ sides.double().mT
    return Ends(sides.contiguous(), core.square().sum((-2, -1)).clamp_min(0.0))


def _ends(root: Float[Tensor, "head rank rank"], near: Float[Tensor, "head rank d_model"]) -> Ends:
    side = root @ near.double()
    norm = torch.linalg.matrix_norm(side)
    bound = torch.linalg.matrix_norm(root) * torch.linalg.matrix_norm(near.double())
    alive = norm > 1e-14 * bound  # below its own rounding a product is zero
    unit = side / norm.where(alive, 1.0)[:, None, None] * alive[:, None, None]
    return from_unit(unit.to(near.dtype))


def _root(far: Float[Tensor, "head d_model rank"]) -> Float[Tensor, "head rank rank"]:
    """R with `R^T R = far^T far`, in float64: by Cholesky, and by eigenvectors where the rank is not full."""
    gram = far.double().mT @ far.double()
    L, failed = torch.linalg.cholesky_ex(gram)
    R = L.mT.contiguous()
    if failed.any():
        values, vectors = torch.linalg.eigh(gram[failed > 0])
        R[failed > 0] = values.clamp_min(0).sqrt()[..., None] * vectors.mT
    return R


@torch.no_grad()
def scores(
    senders: Ends, receivers: list[Ends], pairs: Bool[Tensor, "sender receiver"], tile: int = TILE
) -> list[Float[Tensor, "sender receiver"]]:
    """Scores of the pairs wanted, in float64, for several sets of receivers of one size; others are NaN."""
    squares = _squares(senders, receivers, tile)
    return [_finished(senders, r, s, pairs) for r, s in zip(receivers, squares, strict=True)]


def _squares(senders: Ends, receivers: list[Ends], tile: int) -> list[Float[Tensor, "sender receiver"]]:
    A, Bs = senders.sides, [r.sides for r in receivers]
    d = A.shape[-1]
    found = [A.new_zeros(len(A), len(B), dtype=torch.float64) for B in Bs]
    room = [A.new_empty(max(len(A), *map(len, Bs)) * tile * tile) for _ in range(2)]
    for start in range(0, d, tile):
        for other in range(start, d, tile):
            rows, columns = slice(start, min(start + tile, d)), slice(other, min(other + tile, d))
            G = _gram(A, rows, columns, room[0])
            for square, B in zip(found, Bs, strict=True):
                square.add_(G @ _gram(B, rows, columns, room[1]).mT, alpha=1.0 if start == other else 2.0)
    return found


def _gram(sides: Tensor, rows: slice, columns: slice, room: Tensor) -> Float[Tensor, "head pair"]:
    size = (len(sides), rows.stop - rows.start, columns.stop - columns.start)
    out = room[: size[0] * size[1] * size[2]].view(size)
    return torch.bmm(sides[:, :, rows].mT, sides[:, :, columns], out=out).flatten(1)


def _finished(senders: Ends, receivers: Ends, squares: Tensor, pairs: Tensor) -> Float[Tensor, "sender receiver"]:
    values = squares.clamp_min(0).sqrt()
    eps = torch.finfo(senders.sides.dtype).eps / 2
    doubt = eps * (senders.spread[:, None] * receivers.spread[None, :]).sqrt()
    alive = (senders.spread[:, None] > 0) & (receivers.spread[None, :] > 0)
    limit = SOUND if senders.sides.dtype == torch.float32 else 1e-13
    again = pairs & alive & (doubt > 2 * limit * values)
    pairs_again = again.nonzero()
    values[pairs_again[:, 0], pairs_again[:, 1]] = exact(senders, receivers, pairs_again)
    return values.masked_fill(~pairs, torch.nan)


def exact(senders: Ends, receivers: Ends, pairs: Tensor) -> Float[Tensor, "pair"]:
    """Scores of single pairs from their factors, in float64."""
    rank = max(senders.sides.shape[1], receivers.sides.shape[1])
    step = max(1, AGAIN // (rank * senders.sides.shape[2]))
    found = []
    for part in pairs.split(step):
        A, B = senders.sides[part[:, 0]].double(), receivers.sides[part[:, 1]].double()
        found.append(torch.linalg.matrix_norm(A @ B.mT))
    return torch.cat(found) if found else senders.spread.new_zeros(0)


def null_squares(senders: Ends, receivers: Ends, d_model: int) -> tuple[float, Float[Tensor, "sender receiver"]]:
    """Mean and standard deviation of the squared score of a writer turned at random against each reader."""
    if d_model < 2:
        return 1.0, torch.zeros(len(senders), len(receivers), dtype=torch.float64)
    loose = [(ends.spread - 1 / d_model).clamp_min(0) for ends in (senders, receivers)]
    variance = 2 * loose[0][:, None] * loose[1][None, :] / ((d_model - 1) * (d_model + 2))
    return 1 / d_model, variance.sqrt()


def shuffled(senders: Ends, generator: torch.Generator) -> Ends:
    """Each writer with the coordinates of the stream it writes to permuted, by a permutation of its own."""
    heads, _, d = senders.sides.shape
    order = torch.rand(heads, d, generator=generator).argsort(-1).to(senders.sides.device)
    return Ends(senders.sides.gather(2, order[:, None, :].expand_as(senders.sides)), senders.spread)
