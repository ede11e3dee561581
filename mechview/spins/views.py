"""What solved systems look like over a parameter: beta sweeps, a free-energy landscape, a retrieval map.

Each is a `Result` of plain tensors; `.frame()` and `.figure()` belong to `tables` and `figures`. The landscape is
that of two spins of one component: the exact constrained free energy `F(m_1, m_2)` (all laws with these means, by
the convex dual) beside naive mean field's and TAP's, so that one sees what the approximations miss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.results import Result
from mechview.spins.fits import SpinFit
from mechview.spins.hopfield import energy, step
from mechview.spins.models import SpinModel
from mechview.spins.reading import read, whole
from mechview.spins.single import entropy
from mechview.spins.solving import solve

DUAL_STEPS = 60
EDGE = 0.995


@dataclass(frozen=True)
class BetaSweep(Result):
    """One model at several inverse temperatures, each solved on its own; failed ones keep their status."""

    model: str
    betas: tuple[float, ...]
    fits: tuple[SpinFit, ...]


@dataclass(frozen=True)
class Landscape(Result):
    """`F(m_1, m_2)` of two sign spins on a grid: `exact`, `naive` and `tap`."""

    axis: Float[Tensor, "n"]
    exact: Float[Tensor, "n n"]
    naive: Float[Tensor, "n n"]
    tap: Float[Tensor, "n n"]
    J: float
    beta: float


@dataclass(frozen=True)
class RetrievalMap(Result):
    """Which pattern each of several states falls to, update by update."""

    beta: float
    weights: Float[Tensor, "state site n"]
    energies: Float[Tensor, "state site"]


def beta_sweep(model: Any, betas: Any) -> BetaSweep:
    """Solve `model` at each inverse temperature."""
    if not isinstance(model, SpinModel):
        raise UsageError(f"{type(model).__name__} is not a spin model")
    listed = tuple(float(beta) for beta in read(betas, "betas").flatten())
    if not listed:
        raise UsageError("a sweep needs at least one beta")
    fits = tuple(solve(replace(model, beta=beta), strict=False) for beta in listed)
    return BetaSweep(model=type(model).__name__, betas=listed, fits=fits)


def landscape(J: Any, h: Any = (0.0, 0.0), beta: Any = 1.0, points: Any = 41) -> Landscape:
    """The free-energy surface of two coupled sign spins (half convention, uniform measure)."""
    points, (J, beta) = whole(points, "points", 3), (float(read(x, name)) for x, name in ((J, "J"), (beta, "beta")))
    if not beta > 0:
        raise UsageError("beta is not positive")
    fields = read(h, "h").double().flatten()
    if len(fields) != 2:
        raise UsageError("a landscape is of two spins: h has two values")
    axis = torch.linspace(-EDGE, EDGE, points, dtype=torch.float64)
    m = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    product = m.prod(-1)
    ideal = -entropy(m[..., None]).sum(-1) / beta - m @ fields
    spread = (1 - m.square()).prod(-1)
    naive = ideal - J * product
    return Landscape(
        axis=axis, exact=_exact(m, J, beta) - m @ fields, naive=naive, tap=naive - beta / 2 * J**2 * spread,
        J=J, beta=beta,
    )  # fmt: skip


def _exact(m: Tensor, J: float, beta: float) -> Tensor:
    """`min [U - S/beta]` over the laws of two signs with these means: one unknown, `<s_1 s_2>`, by bisection."""
    total = m.sum(-1)
    low, high = total.abs() - 1, 1 - (m[..., 0] - m[..., 1]).abs()
    for _ in range(DUAL_STEPS):
        c = (low + high) / 2
        up = (1 + c + total) * (1 + c - total) / ((1 - c) ** 2 - (m[..., 0] - m[..., 1]) ** 2)
        below = up.log() / 4 < beta * J
        low, high = torch.where(below, c, low), torch.where(below, high, c)
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=m.dtype)
    p = (1 + m @ signs.mT + c[..., None] * signs.prod(-1)) / 4
    return -J * c + torch.xlogy(p, 4 * p).sum(-1) / beta


def retrieval_map(patterns: Any, states: Any, beta: float = 1.0, steps: Any = 5) -> RetrievalMap:
    """Attention of each state to each pattern, and its energy, before each of `steps` updates and after the last."""
    X, xi = read(patterns, "patterns"), read(states, "states")
    if X.ndim != 2 or xi.ndim != 2 or X.shape[1] != xi.shape[1] or not beta > 0:
        raise UsageError("a retrieval map takes patterns [N, d], states [queries, d] and beta above 0")
    steps = whole(steps, "steps", 0)
    xi, weights, energies = xi.to(X.dtype), [], []
    for _ in range(steps + 1):
        weights.append(torch.softmax(beta * xi @ X.mT, -1))
        energies.append(energy(X, xi, beta))
        xi = step(X, xi, beta)
    return RetrievalMap(beta=float(beta), weights=torch.stack(weights), energies=torch.stack(energies))
