"""What a solver costs, in multiplications counted operator by operator, against the theory's count.

Steepest descent: steps x (N^3 + N^2 D). TAP: evaluations x N^2 D, its map never forming a D x D matrix a site. Counts do
not depend on the machine or its load; seconds are measured beside them and only recorded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

import mechview as mv
from mechview.spins import equations
from mechview.spins.system import system


@dataclass(frozen=True)
class Cost:
    """One solve or evaluation: steps, multiplications and additions counted, the theory's count, and seconds."""

    sites: int
    dim: int
    steps: int
    counted: float
    theory: float
    seconds: float

    @property
    def ratio(self) -> float:
        return self.counted / self.theory


def _cubic(shape, *_, out_shape=None, **__) -> int:
    """Two thirds of N^3 twice over: a factorisation with its inverse, batched or not."""
    return int(torch.Size(shape[:-2]).numel() * 2 * shape[-1] ** 3 // 3)


LINEAR_ALGEBRA = {
    torch.ops.aten.linalg_cholesky_ex: _cubic,
    torch.ops.aten.cholesky_inverse: _cubic,
    torch.ops.aten._linalg_solve_ex: _cubic,
    torch.ops.aten._linalg_eigh: _cubic,
}


def inputs(sites: int, dim: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    J = torch.randn(sites, sites, generator=generator, dtype=torch.float64) / (2 * sites**0.5)
    return ((J + J.mT) / 2).fill_diagonal_(0), torch.randn(sites, dim, generator=generator, dtype=torch.float64)


def steepest(sites: int, dim: int) -> Cost:
    J, h = inputs(sites, dim)
    counter, start = FlopCounterMode(display=False, custom_mapping=LINEAR_ALGEBRA), time.perf_counter()
    with counter:
        fit = mv.spins.solve(mv.spins.SteepestDescent(J, h, 1.0, dim**0.5))
    theory = fit.steps * (sites**3 + sites**2 * dim)
    return Cost(sites, dim, fit.steps, counter.get_total_flops(), theory, time.perf_counter() - start)


def tap_map(sites: int, dim: int) -> Cost:
    J, h = inputs(sites, dim)
    checked = system(J, h, 1.0, 1.0)
    counter, start = FlopCounterMode(display=False), time.perf_counter()
    with counter:
        equations.tap(checked, h)
    return Cost(sites, dim, 1, counter.get_total_flops(), sites**2 * dim, time.perf_counter() - start)
