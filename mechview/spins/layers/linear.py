"""Dense linear fits `Y = X M` from sums in blocks: ridge baselines, and the matrix reaction of the MLP.

Sums `C = X^T X`, `D = X^T Y` (float64) are kept in eight blocks of training sequences: two of them choose
the ridge, and leaving each out in turn gives the jackknife spread of what has no per-sequence value. A
symmetric `M` solves `C M + M C = D + D^T`, in the eigenbasis of `C` entry by entry: `(D + D^T)_ij/(c_i + c_j)`;
an antisymmetric one `(D - D^T)_ij/(c_i + c_j)`. Fields are centred by their training mean; in the metric `tw`
a token's rows are divided by the norm of its target first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.spins.layers.moments import token_weight

BLOCKS, VALIDATION = 8, 2
RIDGES = tuple(10.0**power for power in range(-5, 2))
Part = Literal["general", "symmetric", "antisymmetric"]


@dataclass(frozen=True)
class Sums:
    """`X^T X`, `X^T Y`, sums of X and Y, `sum |Y|^2` and the count, of some sequences."""

    inner: Float[Tensor, "d_in d_in"]
    cross: Float[Tensor, "d_in d_out"]
    x: Float[Tensor, "d_in"]
    y: Float[Tensor, "d_out"]
    own: Float[Tensor, ""]
    count: int

    def __add__(self, other: Sums) -> Sums:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sums(*(a + b for a, b in pairs))

    def __sub__(self, other: Sums) -> Sums:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sums(*(a - b for a, b in pairs))

    def centred(self, mean_x: Tensor, mean_y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`C`, `D` and `sum |Y|^2` of the fields less these means."""
        C = self.inner - torch.outer(mean_x, self.x) - torch.outer(self.x, mean_x)
        C = C + self.count * torch.outer(mean_x, mean_x)
        D = self.cross - torch.outer(mean_x, self.y) - torch.outer(self.x, mean_y)
        D = D + self.count * torch.outer(mean_x, mean_y)
        return C, D, self.own - 2 * mean_y @ self.y + self.count * mean_y @ mean_y


def sums(x: Float[Tensor, "pos d_in"], y: Float[Tensor, "pos d_out"], weighted: bool) -> Sums:
    """Sums of one sequence, position 0 left out by the caller."""
    if weighted:
        weight = token_weight(y)[:, None]
        x, y = x * weight, y * weight
    x, y = x.double(), y.double()
    return Sums(x.mT @ x, x.mT @ y, x.sum(0), y.sum(0), y.square().sum(), len(x))


@dataclass(frozen=True)
class LinearFit:
    """`Y - mean_y = (X - mean_x) M`, with the ridge it was fitted with (as a share of the mean eigenvalue)."""

    matrix: Float[Tensor, "d_in d_out"]
    mean_x: Float[Tensor, "d_in"]
    mean_y: Float[Tensor, "d_out"]
    ridge: float

    def residuals(
        self, x: Float[Tensor, "pos d_in"], y: Float[Tensor, "pos d_out"], weighted: bool
    ) -> tuple[float, float]:
        """Squared error of the fit, and of the mean alone, on the rows of a sequence."""
        if weighted:
            weight = token_weight(y)[:, None]
            x, y = x * weight, y * weight
        off = y - self.mean_y.to(y)
        error = off - (x - self.mean_x.to(x)) @ self.matrix.to(x)
        return float(error.double().square().sum()), float(off.double().square().sum())

    def errors(self, test: Sums) -> tuple[float, float]:
        """The same from sums."""
        C, D, own = test.centred(self.mean_x, self.mean_y)
        fitted = (self.matrix * (C @ self.matrix)).sum() - 2 * (self.matrix * D).sum()
        return float(own + fitted), float(own)


@dataclass(frozen=True)
class Basis:
    """`C` diagonalised, and `D` in its eigenbasis (on both sides for a square map)."""

    sums: Sums
    values: Float[Tensor, "d_in"]
    vectors: Float[Tensor, "d_in d_in"]

    def matrix(self, cross: Float[Tensor, "d_in d_out"], part: Part, ridge: float) -> Float[Tensor, "d_in d_out"]:
        """The least-squares map of one kind, for centred `X^T Y = cross`."""
        E = self.vectors
        if part == "general":
            return E @ self.inside(E.mT @ cross, part, ridge)
        return E @ self.inside(E.mT @ cross @ E, part, ridge) @ E.mT

    def inside(self, turned: Float[Tensor, "d_in d_out"], part: Part, ridge: float) -> Float[Tensor, "d_in d_out"]:
        """The map in the eigenbasis, for a cross product that is in it (on its left side only for a general one)."""
        size = self.values.clamp(min=0) + ridge * self.values.mean().clamp(min=1e-300)
        if part == "general":
            return turned / size[:, None]
        turned = turned + turned.mT if part == "symmetric" else turned - turned.mT
        return turned / (size[:, None] + size)


def basis(total: Sums) -> Basis:
    C = total.centred(total.x / total.count, total.y / total.count)[0]
    values, vectors = torch.linalg.eigh(C)
    return Basis(total, values, vectors)


def solve(at: Basis, part: Part, ridge: float) -> LinearFit:
    total = at.sums
    mean_x, mean_y = total.x / total.count, total.y / total.count
    cross = total.centred(mean_x, mean_y)[1]
    return LinearFit(at.matrix(cross, part, ridge), mean_x, mean_y, ridge)


def ridged(total: Sums, ridge: float) -> Float[Tensor, "d_in d_out"]:
    """The general map alone, without a spectrum."""
    C, D, _ = total.centred(total.x / total.count, total.y / total.count)
    penalty = ridge * C.diagonal().mean().clamp(min=1e-300)
    return torch.linalg.solve(C + penalty * torch.eye(len(C)).to(C), D)


def chosen_ridge(at: Basis, validation: Sums, part: Part) -> float:
    """The ridge that errs least on sequences that were not fitted; of equal ones the larger.

    Errors are taken in the eigenbasis, to which the validation sums are brought once for all ridges.
    """
    total, E = at.sums, at.vectors
    mean_x, mean_y = total.x / total.count, total.y / total.count
    C, D, _ = validation.centred(mean_x, mean_y)
    inner, cross, turned = E.mT @ C @ E, E.mT @ D, E.mT @ total.centred(mean_x, mean_y)[1]
    if part != "general":
        cross, turned = cross @ E, turned @ E
    errors = {}
    for ridge in RIDGES:
        M = at.inside(turned, part, ridge)
        errors[ridge] = float((M * (inner @ M - 2 * cross)).sum())
    return min(reversed(RIDGES), key=lambda ridge: errors[ridge])


def fitted(
    blocks: list[Sums], parts: tuple[Part, ...] = ("general",), kept: int = VALIDATION
) -> tuple[Basis, dict[Part, LinearFit]]:
    """Ridges by validation on the last `kept` blocks, then maps from all of them."""
    trial, validation = basis(added(blocks[:-kept])), added(blocks[-kept:])
    ridges = {part: chosen_ridge(trial, validation, part) for part in parts}
    whole = basis(added(blocks))
    return whole, {part: solve(whole, part, ridge) for part, ridge in ridges.items()}


def added(blocks: list[Sums]) -> Sums:
    total = blocks[0]
    for block in blocks[1:]:
        total = total + block
    return total


def put(blocks: list[Sums], place: int, new: Sums) -> None:
    """Add a sequence's sums to a block; blocks are filled in order."""
    if place >= len(blocks):
        blocks.append(new)
    else:
        blocks[place] = blocks[place] + new


def symmetric_share(matrix: Float[Tensor, "d d"]) -> float:
    """`|sym M|^2 / |M|^2`; 1/2 without structure, 0 for a zero matrix."""
    size = matrix.square().sum()
    return float(((matrix + matrix.mT) / 2).square().sum() / size) if size > 0 else 0.0


def negative_share(eigenvalues: Float[Tensor, "d"]) -> float:
    """Squared mass of the negative eigenvalues of `sym M`."""
    squares = eigenvalues.square()
    return float(squares[eigenvalues < 0].sum() / squares.sum()) if squares.sum() > 0 else 0.0
