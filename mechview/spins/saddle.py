"""Steepest descent for large D (AFEM): the spherical free energy, exact as D grows and for Gaussian fluctuations.

With `V = diag(tau) - J` and fields H the function

    Phi(tau) = beta R^2/(2D) sum tau - 1/2 log det V + beta/(2D) Tr(H^T V^-1 H)

is strictly convex where V is positive definite, so a damped Newton iteration that stays there (tested by a
Cholesky factorisation, with Armijo's rule) always ends at its one minimum. There `m = V^-1 H`,
`R^2 = |m_i|^2 + (D/beta) V^-1_ii`, and `log Z = D [Phi - N/2 (1 + log(beta R^2/D))]`. A step costs O(N^3 + N^2 D).
With one `tau` for all sites this is the spherical model of Berlin and Kac.
Source: AFEM (Bal 2021b); the Hessian printed there has row sums on its diagonal, and differs from this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.spins.fixed_points import Found, Status, attach
from mechview.spins.system import System

ARMIJO = 1e-4


@dataclass(frozen=True)
class Saddle:
    """Value, gradient and Hessian of Phi at a feasible point, with the inverse of V and the mean spins."""

    value: Float[Tensor, "*batch"]
    gradient: Float[Tensor, "*batch n"]
    hessian: Float[Tensor, "*batch n n"]
    inverse: Float[Tensor, "*batch site site"]
    m: Float[Tensor, "*batch site dim"]


def saddle(system: System, tau: Tensor, *, shared: bool = False) -> Saddle:
    """Phi and its derivatives; with `shared`, derivatives are in one common tau (`[..., 1]`)."""
    L = torch.linalg.cholesky(_V(system, tau))
    return _parts(system, tau, L, shared)


def _parts(system: System, tau: Tensor, L: Tensor, shared: bool) -> Saddle:
    beta, ratio = system.beta[..., None], (system.beta / system.dim)[..., None]
    inverse = torch.cholesky_inverse(L)
    m = inverse @ system.h
    constraint = beta * system.radius[..., None] ** 2 / system.dim
    logdet = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    every = tau.expand(*tau.shape[:-1], system.sites)
    value = ((constraint * every).sum(-1) - logdet + ratio[..., 0] * (system.h * m).sum((-2, -1))) / 2
    gradient = (constraint - inverse.diagonal(dim1=-2, dim2=-1) - ratio * m.square().sum(-1)) / 2
    hessian = inverse.square() / 2 + ratio[..., None] * inverse * (m @ m.mT)
    if shared:
        gradient, hessian = gradient.sum(-1, keepdim=True), hessian.sum((-2, -1))[..., None, None]
    return Saddle(value, gradient, hessian, inverse, m)


def _V(system: System, tau: Tensor) -> Tensor:
    return torch.diag_embed(tau.expand(*tau.shape[:-1], system.sites)) - system.J


def minimise(system: System, *, shared: bool, tol: float, max_steps: int) -> Found:
    """The minimum of Phi by damped Newton steps, in double precision; all members of a batch together."""
    dtype, system = system.h.dtype, system.with_parameters(*(p.detach().double() for p in system.parameters))
    with torch.no_grad():
        tau = _start(system)[..., None]
        tau = tau if shared else tau.expand(*tau.shape[:-1], system.sites).contiguous()
        at, status, steps = saddle(system, tau, shared=shared), Status.STEPS, 0
        tol = max(tol, 16 * torch.finfo(tau.dtype).eps)
        while steps < max_steps:
            step = -torch.linalg.solve(at.hessian, at.gradient[..., None])[..., 0]
            tau, at, moved = _descend(system, tau, at, step, shared)
            steps += 1
            if bool(((step.abs() / tau.abs()).amax(-1) < tol).all()) or not moved:
                status = Status.CONVERGED
                break
        residual = at.gradient.abs().amax(-1)
        holds = residual <= 1e5 * torch.finfo(tau.dtype).eps * (1 + system.beta * system.radius**2 / system.dim)
        status = status if bool(holds.all()) else (Status.STALLED if status is Status.CONVERGED else status)
        return Found(tau.to(dtype), residual.to(dtype), steps, status)


def _start(system: System) -> Tensor:
    """Feasible, and the solution where J = 0 and all fields are as long as the longest."""
    size = system.beta * system.radius**2
    longest = system.h.square().sum(-1).amax(-1)
    largest = torch.linalg.eigvalsh(system.J)[..., -1].clamp(min=0)
    return largest + (system.dim + (system.dim**2 + 4 * system.beta * size * longest).sqrt()) / (2 * size)


def _descend(system: System, tau: Tensor, at: Saddle, step: Tensor, shared: bool) -> tuple[Tensor, Saddle, bool]:
    """The longest halving of the step that stays feasible and lowers Phi enough, for each member of a batch."""
    scale, fall = torch.ones_like(tau[..., :1]), (at.gradient * step).sum(-1)
    slack = 1e-14 * at.value.abs()
    for _ in range(60):
        tried = tau + scale * step
        L, info = torch.linalg.cholesky_ex(_V(system, tried))
        L = torch.where((info > 0)[..., None, None], torch.eye(system.sites, dtype=L.dtype, device=L.device), L)
        found = _parts(system, tried, L, shared)
        enough = found.value <= at.value + ARMIJO * scale[..., 0] * fall + slack
        good = (info == 0) & enough
        if bool(good.all()):
            return tried, found, True
        scale = torch.where(good[..., None], scale, scale / 2)
    tau = torch.where(good[..., None], tried, tau)
    return tau, saddle(system, tau, shared=shared), bool(good.any())


def attached(system: System, tau: Tensor, *, shared: bool) -> Tensor:
    """The minimum as a function of J, h, beta and radius: `dtau = -Hess^-1 d(gradient)`."""

    def update(tau: Tensor, *parameters: Tensor) -> Tensor:
        return tau - saddle(system.with_parameters(*parameters), tau, shared=shared).gradient

    def slope(tau: Tensor, *parameters: Tensor) -> Tensor:
        hessian = saddle(system.with_parameters(*parameters), tau, shared=shared).hessian
        return torch.eye(tau.shape[-1], dtype=tau.dtype, device=tau.device) - hessian

    return attach(update, tau, system.parameters, slope)


def log_partition(system: System, at: Saddle) -> Tensor:
    """`log Z` per system, with the normalised measure (0 for J = h = 0)."""
    unit = 1 + (system.beta * system.radius**2 / system.dim).log()
    return system.dim * (at.value - system.sites / 2 * unit)
