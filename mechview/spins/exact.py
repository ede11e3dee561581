"""Small systems without approximation: all states of sign spins, or quadrature over spheres. The reference.

The last spin is integrated in closed form (its partition function in the field of the others), so two vector spins
need one sphere. For D > 3 that integral depends on the sphere only through the plane of two fields, and becomes a
two-dimensional Gauss-Jacobi rule; for D <= 3 the whole circle or sphere is covered, up to three spins. Everything
else is a derivative of log Z: `m = (1/beta) d log Z/dh`, `<s_i.s_j> = (1/beta) d log Z/dJ_ij`.

Limits: enumeration up to 20 sign spins; quadrature for two vector spins of any D, three for D of 2 or 3 (D = 3 with
`n` nodes costs `(2 n^2)^2` points). log Z is computed again with three quarters of the nodes; the difference is the
`residual`, and where it is more than 1e-8 of log Z the nodes do not resolve fields this strong and the status is COARSE.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from scipy.special import roots_jacobi
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins.fits import SpinFit, thermodynamics
from mechview.spins.fixed_points import Status
from mechview.spins.reading import whole
from mechview.spins.system import System

MOST_SIGNS = 20
RESOLVED = 1e-8


def exact(system: System, nodes: Any) -> SpinFit:
    """Log Z and its first derivatives, which stay differentiable."""
    nodes = whole(nodes, "nodes", 4)
    batch = system.h.shape[:-2]
    flat = [p.reshape((-1, *p.shape[len(batch) :])) for p in system.parameters]
    each = [_one(system.with_parameters(*parts), nodes) for parts in zip(*flat, strict=True)]
    log_z, m, correlation = (torch.stack(parts).reshape((*batch, *parts[0].shape)) for parts in zip(*each, strict=True))
    with torch.no_grad():
        again = [log_partition(system.with_parameters(*parts), 3 * nodes // 4) for parts in zip(*flat, strict=True)]
        residual = (torch.stack(again).reshape(batch) - log_z).abs()
        rounding = max(RESOLVED, 1e2 * torch.finfo(log_z.dtype).eps)
        resolved = bool((residual <= rounding * (1 + log_z.abs())).all())
    known = thermodynamics(-log_z / system.beta, system.energy(correlation, m), system.beta)
    return SpinFit(
        model="Exact", magnetisation=m, correlation=correlation, steps=0, residual=residual,
        status=Status.EXACT if resolved else Status.COARSE, **known,
    )  # fmt: skip


def _one(system: System, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log Z, mean spins and correlations of one system."""
    keep = torch.is_grad_enabled() and any(p.requires_grad for p in system.parameters)
    with torch.enable_grad():
        J, h = (p if keep and p.requires_grad else p.detach().requires_grad_() for p in (system.J, system.h))
        log_z = log_partition(system.with_parameters(J, h, system.beta, system.radius), nodes)
        by_h, by_J = torch.autograd.grad(log_z, (h, J), create_graph=keep, allow_unused=True)
    by_J = torch.zeros_like(J) if by_J is None else by_J
    m, beta = by_h / system.beta, system.beta
    own = torch.eye(system.sites, dtype=J.dtype, device=J.device) * system.radius**2
    found = (log_z, m, (by_J + by_J.mT) / beta + own)
    return found if keep else tuple(part.detach() for part in found)  # type: ignore[return-value]


def log_partition(system: System, nodes: int) -> Tensor:
    """Log Z of one system."""
    if system.dim == 1:
        return _signs(system)
    if system.sites == 1:
        return system.law.log_partition(_square(system, system.h[0]))
    if system.sites == 2:
        return _pair(system, nodes)
    if system.sites == 3 and system.dim <= 3:
        return _triple(system, nodes)
    raise UsageError(f"{system.sites} spins in {system.dim} dimensions are too many for quadrature: use MonteCarlo")


def sign_states(sites: int, like: Tensor) -> Float[Tensor, "state site"]:
    """All 2^N states of sign spins."""
    if sites > MOST_SIGNS:
        raise UsageError(f"{sites} sign spins have too many states: at most {MOST_SIGNS}, or use MonteCarlo")
    index = torch.arange(2**sites, device=like.device)
    bits = (index[:, None] >> torch.arange(sites - 1, -1, -1, device=like.device)) & 1
    return 1 - 2 * bits.to(like.dtype)


def _signs(system: System) -> Tensor:
    """The upper triangle alone carries J, as in the other sums, so that a derivative by J_ij is one pair's."""
    s = system.radius * sign_states(system.sites, system.h)
    energy = ((s @ system.J.triu(1)) * s).sum(-1) + s @ system.h[:, 0]
    return torch.logsumexp(system.beta * energy, 0) - system.sites * math.log(2)


def _pair(system: System, nodes: int) -> Tensor:
    if system.dim <= 3:
        points, log_weights = _sphere(system, nodes)
        first, second = (points @ system.h.mT).unbind(-1)
    else:
        (first, second), log_weights = _plane(system, nodes)
    J = system.J[0, 1]
    squared = system.h[1].square().sum() + 2 * J * second + (J * system.radius) ** 2
    last = system.law.log_partition((system.beta * system.radius) ** 2 * squared.clamp(min=0))
    return torch.logsumexp(log_weights + system.beta * first + last, 0)


def _triple(system: System, nodes: int) -> Tensor:
    points, log_weights = _sphere(system, nodes)
    own = points @ system.h[:2].mT
    pair = own[:, None, 0] + own[None, :, 1] + system.J[0, 1] * points @ points.mT
    field = system.h[2] + system.J[0, 2] * points[:, None] + system.J[1, 2] * points[None, :]
    terms = system.beta * pair + system.law.log_partition(_square(system, field))
    return torch.logsumexp((terms + log_weights[:, None] + log_weights).flatten(), 0)


def _square(system: System, field: Tensor) -> Tensor:
    return (system.beta * system.radius * field).square().sum(-1)


def _sphere(system: System, nodes: int) -> tuple[Tensor, Tensor]:
    """Points of a circle or a sphere and the logs of their weights: equal angles, and Gauss-Legendre in the height."""
    like = system.h
    if system.dim == 2:
        angle = torch.arange(4 * nodes, dtype=like.dtype, device=like.device) * (math.pi / (2 * nodes))
        points = torch.stack([angle.cos(), angle.sin()], -1)
        return system.radius * points, like.new_full((len(points),), -math.log(len(points)))
    height, weight = (torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in roots_jacobi(nodes, 0, 0))
    around = 2 * nodes
    angle = torch.arange(around, dtype=like.dtype, device=like.device) * (2 * math.pi / around)
    wide = (1 - height.square()).sqrt()[:, None]
    parts = (wide * angle.cos(), wide * angle.sin(), height[:, None].expand(-1, around))
    log_weights = (weight / (2 * around)).log()[:, None].expand(-1, around)
    return system.radius * torch.stack(parts, -1).flatten(0, 1), log_weights.flatten()


def _plane(system: System, nodes: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """`h_1.s` and `h_2.s` for s on a sphere of D > 3 dimensions: Gauss-Jacobi in the plane of the two fields."""
    like, D = system.h, system.dim
    rules = [roots_jacobi(nodes, power, power) for power in ((D - 3) / 2, (D - 4) / 2)]
    (a, wa), (b, wb) = [[torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in rule] for rule in rules]
    height = a[:, None].expand(-1, nodes).flatten()
    across = ((1 - a.square()).sqrt()[:, None] * b).flatten()
    weights = (wa[:, None] * wb).flatten()
    h1, h2 = like
    first, shared = _root(h1 @ h1), h1 @ h2
    parallel = torch.where(h1.detach().norm() > 0, shared / torch.where(first > 0, first, torch.ones_like(first)), 0.0)
    beside = _root(h2 @ h2 - parallel.square()) if bool(h1.detach().norm() > 0) else _root(h2 @ h2)
    along = system.radius * height * first
    return (along, system.radius * (height * parallel + across * beside)), (weights / weights.sum()).log()


def _root(square: Tensor) -> Tensor:
    """Square root with no slope at zero: what is rooted here is stationary there."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, torch.ones_like(square)).sqrt(), 0.0)
