"""Heat-bath sampling: the reference where quadrature cannot reach. Any N, any D.

Each spin in turn is drawn from its law given the others, a von Mises-Fisher law in the field `h_i + sum_j J_ij s_j`
(Wood's rejection, exact for every D; a coin for D = 1). Standard errors come from independent chains, the
first half of the sweeps being dropped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins.fits import SpinFit
from mechview.spins.fixed_points import Status
from mechview.spins.reading import whole
from mechview.spins.system import System


def sampled(system: System, chains: Any, sweeps: Any, generator: Any) -> SpinFit:
    """Means, correlations and energy with standard errors; no free energy, which samples do not give."""
    chains, sweeps = whole(chains, "chains", 2), whole(sweeps, "sweeps", 2)
    if system.h.ndim != 2:
        raise UsageError(f"sampling takes one system, not a batch of shape {list(system.h.shape[:-2])}")
    with torch.no_grad():
        s = system.radius * _directions((chains, system.sites, system.dim), system.h, generator)
        total, pairs, kept = torch.zeros_like(s), torch.zeros_like(s @ s.mT), sweeps - sweeps // 2
        for sweep in range(sweeps):
            for site in range(system.sites):
                field = system.h[site] + system.J[site] @ s
                s[:, site] = _draw(system.beta * system.radius * field, generator) * system.radius
            if sweep >= sweeps // 2:
                total, pairs = total + s / kept, pairs + s @ s.mT / kept
        m, correlation = total.mean(0), pairs.mean(0)
        return SpinFit(
            model="MonteCarlo", magnetisation=m, status=Status.SAMPLED, steps=sweeps, correlation=correlation,
            residual=torch.zeros_like(system.beta), energy=system.energy(correlation, m), error=total.std(0) / chains**0.5,
        )  # fmt: skip


def _draw(field: Tensor, generator: Any) -> Tensor:
    """Unit vectors, one for each row of `field`, with density proportional to `exp(field.s)`."""
    _count, dim = field.shape
    if dim == 1:
        up = torch.sigmoid(2 * field)
        return 2.0 * (torch.rand(up.shape, dtype=up.dtype, device=up.device, generator=generator) < up).to(up.dtype) - 1
    k = field.norm(dim=-1)
    height = _heights(k, dim, generator)
    axis = torch.where(k[:, None] > 0, field / k[:, None].clamp(min=1e-300), _directions(field.shape, field, generator))
    side = _directions(field.shape, field, generator)
    side = side - (side * axis).sum(-1, keepdim=True) * axis
    side = side / side.norm(dim=-1, keepdim=True)
    return height[:, None] * axis + (1 - height.square()).clamp(min=0).sqrt()[:, None] * side


def _heights(k: Tensor, dim: int, generator: Any) -> Tensor:
    """Cosines to the field, by rejection from a transformed beta law (Wood 1994)."""
    b = (dim - 1) / (2 * k + (4 * k.square() + (dim - 1) ** 2).sqrt())
    centre = (1 - b) / (1 + b)
    offset = k * centre + (dim - 1) * (1 - centre.square()).log()
    height, open_ = torch.zeros_like(k), torch.ones_like(k, dtype=torch.bool)
    while bool(open_.any()):
        beta = (1 + _directions((len(k), dim), k, generator)[:, 0]) / 2
        tried = (1 - (1 + b) * beta) / (1 - (1 - b) * beta)
        chance = torch.rand(k.shape, dtype=k.dtype, device=k.device, generator=generator)
        good = k * tried + (dim - 1) * (1 - centre * tried).log() - offset >= chance.log()
        height, open_ = torch.where(open_ & good, tried, height), open_ & ~good
    return height


def _directions(shape: Any, like: Tensor, generator: Any) -> Tensor:
    normal = torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
    return normal / normal.norm(dim=-1, keepdim=True)
