"""Fixed points `x = T(x)`: found by damped iteration and Newton's method, differentiated by the implicit function theorem.

The state `x [*batch, n]` is flat. A damped iteration comes first; what it leaves is closed by Newton steps with
halving, each from the dense Jacobian up to `DENSE` unknowns and by GMRES (products with the Jacobian only) above.
Gradients never pass through the iteration: at the solution `dx = (1 - T_x)^-1 T_p dp`, which holds for the second
derivative as well because the backward pass is itself differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.spins.krylov import gmres

DENSE = 512
HALVINGS = 30
Update = Callable[..., Tensor]


class Status(Enum):
    """How a solver ended, as a sentence."""

    CONVERGED = "the equations hold at the point returned"
    STEPS = "the limit of steps was reached before the equations held"
    STALLED = "no step brought the equations closer to holding"
    DIVERGED = "the values stopped being finite"
    UNSTABLE = "the equations hold, but the susceptibility there is not positive: a spin glass, or a broken symmetry"
    COARSE = "the quadrature has too few nodes for fields this strong: give more nodes, or use MonteCarlo"
    EXACT = "computed without approximation"
    SAMPLED = "estimated from samples, up to the standard error given"


@dataclass(frozen=True)
class Found:
    """A point with its residual `max|T(x) - x|`, the steps taken, and how the search ended."""

    x: Float[Tensor, "*batch n"]
    residual: Float[Tensor, "*batch"]
    steps: int
    status: Status


def find(
    update: Update, x: Tensor, parameters: tuple[Tensor, ...], *, tol: float, max_steps: int, damping: float = 0.5
) -> Found:
    """Iterate from `x`; without gradients."""
    fixed = tuple(p.detach() for p in parameters)
    tol = max(tol, 64 * torch.finfo(x.dtype).eps) * max(1.0, float(x.detach().abs().max()) if x.numel() else 1.0)

    def residual(x: Tensor) -> Tensor:
        return update(x, *fixed) - x

    with torch.no_grad():
        x, steps = _damped(residual, x.detach(), tol, max_steps, damping)
        return _newton(residual, x, tol, max_steps, steps)


def _damped(residual: Update, x: Tensor, tol: float, max_steps: int, damping: float) -> tuple[Tensor, int]:
    """Stops early where progress is slower than a Newton step is worth."""
    steps, before = 0, float("inf")
    while steps < max_steps // 2:
        r = residual(x)
        size = float(r.abs().max()) if r.numel() else 0.0
        if size <= tol or not size < float("inf"):
            break
        if steps % 20 == 19:
            if size > before / 10:
                break
            before = size
        x, steps = x + damping * r, steps + 1
    return x, steps


def _newton(residual: Update, x: Tensor, tol: float, max_steps: int, steps: int) -> Found:
    r, status = residual(x), Status.STEPS
    size = _size(r)
    while steps < max_steps:
        if not bool(size.isfinite().all()):
            status = Status.DIVERGED
            break
        if bool((size <= tol).all()):
            status = Status.CONVERGED
            break
        x, r, moved = _step(residual, x, r)
        steps, size = steps + 1, _size(r)
        if not moved:
            floor = 1e4 * torch.finfo(x.dtype).eps * x.abs().amax(-1).clamp(min=1)
            status = Status.CONVERGED if bool((size <= floor).all()) else Status.STALLED
            break
    return Found(x, size, steps, status)


def _step(residual: Update, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor, bool]:
    """One Newton step, halved for each member of the batch until its residual falls."""
    direction = _solve(lambda x: x + residual(x), x, r)
    scale, norm = torch.ones_like(r[..., :1]), r.norm(dim=-1, keepdim=True)
    for _ in range(HALVINGS):
        tried = x + scale * direction
        found = residual(tried)
        worse = ~(found.norm(dim=-1, keepdim=True) < norm)
        if not bool(worse.any()):
            break
        scale = torch.where(worse, scale / 2, scale)
    better = found.norm(dim=-1, keepdim=True) < norm
    return torch.where(better, tried, x), torch.where(better, found, r), bool(better.any())


def jacobian(update: Update, x: Tensor, *parameters: Tensor) -> Tensor:
    """`dT_a / dx_b` for each member of a batch, dense."""
    n = x.shape[-1]
    _, pull = torch.func.vjp(lambda x: update(x, *parameters), x)
    rows = torch.eye(n, dtype=x.dtype, device=x.device).reshape(n, *[1] * (x.ndim - 1), n).expand(n, *x.shape)
    return torch.func.vmap(lambda row: pull(row)[0])(rows).movedim(0, -2)


def _solve(update: Update, x: Tensor, b: Tensor) -> Tensor:
    """`(1 - T_x)^-1 b`."""
    if x.shape[-1] <= DENSE:
        one = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        system, info = torch.linalg.solve_ex(one - jacobian(update, x), b[..., None])
        return torch.nan_to_num(system[..., 0], nan=0.0, posinf=0.0, neginf=0.0) if bool(info.any()) else system[..., 0]
    _, pull = torch.func.vjp(update, x)
    zero = torch.zeros_like(x)
    _, push = torch.func.vjp(lambda v: pull(v)[0], zero)
    return gmres(lambda v: v - push(v)[0], b)


def attach(update: Update, x: Tensor, parameters: tuple[Tensor, ...], slope: Update | None = None) -> Tensor:
    """The solution as a function of its parameters, for autograd; `slope` is the dense `T_x` where it is known."""
    if not any(p.requires_grad for p in parameters) or not torch.is_grad_enabled():
        return x
    return _Implicit.apply(update, slope, x, *parameters)


class _Implicit(torch.autograd.Function):
    """The backward pass solves one linear system, with operations that autograd can follow."""

    @staticmethod
    def forward(ctx: Any, update: Update, slope: Update | None, x: Tensor, *parameters: Tensor) -> Tensor:
        out = x.clone()
        ctx.update, ctx.slope = update, slope
        ctx.save_for_backward(out, *parameters)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *parameters = ctx.saved_tensors
        adjoint = _adjoint(ctx.update, ctx.slope, x, tuple(parameters), grad)
        _, pull = torch.func.vjp(lambda *p: ctx.update(x, *p), *parameters)
        return (None, None, None, *pull(adjoint))


def _adjoint(update: Update, slope: Update | None, x: Tensor, parameters: tuple[Tensor, ...], grad: Tensor) -> Tensor:
    if slope is not None or x.shape[-1] <= DENSE:
        one = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        T_x = jacobian(update, x, *parameters) if slope is None else slope(x, *parameters)
        return torch.linalg.solve(one - T_x.mT, grad[..., None])[..., 0]
    _, pull = torch.func.vjp(lambda x: update(x, *parameters), x)
    return gmres(lambda v: v - pull(v)[0], grad)


def _size(r: Tensor) -> Tensor:
    return r.abs().amax(-1) if r.shape[-1] else r.sum(-1)
