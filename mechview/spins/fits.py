"""What a solver returns: the mean spins with the quantities that its theory defines, and how it ended.

A quantity a theory does not define is None: a free energy out of equilibrium, say. `susceptibility` is the
derivative of the mean spins by the fields, through the solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import CheckError
from mechview.results import Result
from mechview.spins.fixed_points import Status

HOLDS = (Status.CONVERGED, Status.EXACT, Status.SAMPLED)


class SolverError(CheckError):
    """A solver did not end at a solution; the sentence says how it ended."""


@dataclass(frozen=True)
class SpinFit(Result):
    """Mean spins and thermodynamics of one model, per member of the batch.

    Attributes:
        magnetisation: mean spins `[*batch, N, D]`.
        free_energy: `-log Z / beta`; `log_partition`, `energy` U and `entropy` S belong to it.
        correlation: `<s_i.s_j>`, `[*batch, N, N]`, diagonal `R^2`.
        field: conjugate field of each spin, whose response is the magnetisation.
        multiplier: V of adaptive TAP, tau of steepest descent.
        error: standard error of the magnetisation, where it is sampled.
        gain: spectral radius of the map that was iterated, at the solution; below 1 it contracts.
        residual: how far the equations are from holding, `max|T(x) - x|`.
    """

    model: str
    magnetisation: Float[Tensor, "*batch site dim"]
    status: Status
    steps: int
    residual: Float[Tensor, "*batch"]
    free_energy: Float[Tensor, "*batch"] | None = None
    log_partition: Float[Tensor, "*batch"] | None = None
    energy: Float[Tensor, "*batch"] | None = None
    entropy: Float[Tensor, "*batch"] | None = None
    correlation: Float[Tensor, "*batch site site"] | None = None
    field: Float[Tensor, "*batch site dim"] | None = None
    multiplier: Float[Tensor, "*batch n"] | None = None
    error: Float[Tensor, "*batch site dim"] | None = None
    gain: Float[Tensor, "*batch"] | None = None
    settings: Any = None

    @property
    def converged(self) -> bool:
        """The equations hold, at a stable point."""
        return self.status in HOLDS


def strict_or(fit: SpinFit, strict: bool) -> SpinFit:
    """The fit; with `strict`, only one that converged.

    Raises:
        SolverError: it did not.
    """
    if strict and not fit.converged:
        worst = float(fit.residual.detach().max()) if fit.residual.numel() else 0.0
        raise SolverError(f"{fit.model}: {fit.status.value} ({fit.steps} steps, residual {worst:.1e})")
    return fit


def thermodynamics(free_energy: Tensor, energy: Tensor | None, beta: Tensor) -> dict[str, Any]:
    """Free energy, log Z, energy and entropy, as fields of a fit."""
    entropy = None if energy is None else beta * (energy - free_energy)
    return {"free_energy": free_energy, "log_partition": -beta * free_energy, "energy": energy, "entropy": entropy}


def susceptibility_of(magnetisation: Tensor, h: Tensor) -> Float[Tensor, "site dim site dim"]:
    """`dm_ia / dh_jb` of one system, from a graph."""
    rows = [torch.autograd.grad(value, h, retain_graph=True, allow_unused=True)[0] for value in magnetisation.flatten()]
    filled = [torch.zeros_like(h) if row is None else row for row in rows]
    return torch.stack(filled).reshape(*magnetisation.shape, *h.shape)
