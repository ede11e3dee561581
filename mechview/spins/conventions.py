"""One place for the papers' conventions: what J, h, beta, radius and free energy are called where.

Here: `E = -1/2 sum_(i != j) J_ij s_i.s_j - sum_i h_i.s_i`, symmetric J without diagonal, uniform probability measure.
- article: `E = -sum_ij J_ij s_i.s_j - sum h.s` over ordered pairs, the diagonal allowed: J here is `J + J^T`, and the
  diagonal adds `-R^2 sum_i J_ii` to energies and free energies.
- AFEM: the article's, with `R = sqrt(D)`; prints `m = d log Z/dh`, which is beta times the mean spin; `t = tau / 2`.
- DIA: weights `e^{+E}` with plus signs and beta inside J and x; its local field is this one's times beta.
- SMT and NEQ: local field `x_i + sum_j J_ij s_j`, `R^2 = D/2 - 1`, any J: the kinetic model's, unchanged.
- counting measure of sign spins: log Z here plus `N log 2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins.reading import read, square, vectors


@dataclass(frozen=True)
class Converted:
    """Numbers in the convention used here, and what to add to its energies to get the other's."""

    J: Float[Tensor, "*batch site site"]
    h: Float[Tensor, "*batch site dim"]
    beta: float
    radius: float
    energy_shift: Float[Tensor, "*batch"]


def from_article(J: Any, h: Any, beta: float = 1.0, radius: float = 1.0) -> Converted:
    """From ordered pairs without 1/2; the diagonal becomes a shift."""
    J, h = square(J), read(h, "h")
    own = J.diagonal(dim1=-2, dim2=-1)
    both = J + J.mT
    return Converted(both - torch.diag_embed(2 * own), h, beta, radius, -(radius**2) * own.sum(-1))


def to_article(J: Any) -> Tensor:
    """Couplings for the article's double sum, symmetric and without diagonal: `J / 2`."""
    return square(J) / 2


def from_afem(J: Any, h: Any, beta: float = 1.0) -> Converted:
    """The article's with spins of length sqrt(D)."""
    return from_article(J, h, beta, vectors(h, "h").shape[-1] ** 0.5)


def afem_magnetisation(m: Any, beta: float) -> Tensor:
    """What AFEM prints as magnetisation, `d log Z/dh = beta m`."""
    return beta * read(m, "m")


def afem_multiplier(tau: Any) -> Tensor:
    """AFEM's saddle variable `t = tau / 2`."""
    return read(tau, "tau") / 2


def from_dia(J: Any, x: Any) -> Converted:
    """Deep implicit attention: beta is inside J and x, spins have the prior's own length."""
    J, x = square(J), read(x, "x")
    return Converted(J, x, 1.0, 1.0, torch.zeros_like(J[..., 0, 0]))


def from_neq(J: Any, x: Any, beta: float = 1.0) -> Converted:
    """SMT and NEQ: any J, self-coupling included, and `R^2 = D/2 - 1`; for the kinetic model.

    Raises:
        UsageError: D of 2 or less, where that radius is not positive.
    """
    J, x = square(J), vectors(x, "x")
    dim = x.shape[-1]
    if dim < 3:
        raise UsageError(f"R^2 = D/2 - 1 is not positive for spins of dimension {dim}")
    return Converted(J, x, beta, (dim / 2 - 1) ** 0.5, torch.zeros_like(J[..., 0, 0]))


def counting_log_partition(log_z: Any, sites: int) -> Tensor:
    """Log Z of sign spins that counts states instead of averaging over them."""
    return read(log_z, "log_z") + sites * math.log(2)
