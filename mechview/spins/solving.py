"""One function for every spin model: `solve`. It checks the model, finds the solution, and says how that ended.

Mean-field theories share one road (fixed points of `equations`); a solution counts as converged only if its
susceptibility is positive there, so that a spin-glass phase or a saddle is not sold as equilibrium.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from math import inf
from typing import Any

import torch
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins import equations, exact, hopfield, kinetic, sampling
from mechview.spins import saddle as steepest
from mechview.spins.fits import SpinFit, strict_or, susceptibility_of, thermodynamics
from mechview.spins.fixed_points import Found, Status, attach, find
from mechview.spins.models import (
    TAP,
    AdaptiveTAP,
    Exact,
    Hopfield,
    KineticMeanField,
    MeanField,
    MonteCarlo,
    SpinModel,
    SteepestDescent,
)
from mechview.spins.reading import read, whole
from mechview.spins.stability import leading
from mechview.spins.system import System, system

TOL, STEPS = 1e-13, 400
MARGIN = 1e-7  # a rotation of an ordered state costs nothing: its eigenvalue is 1 to rounding
Equation = Callable[[System, Tensor], Tensor]


def solve(model: Any, *, strict: bool = True, tol: Any = TOL, max_steps: Any = STEPS) -> SpinFit:
    """Solve any model of `mechview.spins`; gradients flow from the fit to J, h, beta and radius.

    Args:
        strict: raise if the solver did not end at a stable solution; otherwise `fit.status` says so.
        tol: residual at which the equations hold, in units of the field.

    Raises:
        UsageError: what is given is no model, or its numbers do not fit together.
        SolverError: not converged, with `strict`.
    """
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not 0 < tol < inf:
        raise UsageError(f"tol={tol!r} is not a number above 0")
    fit = _solve(model, tol, whole(max_steps, "max_steps", 1))
    return strict_or(replace(fit, settings=model), strict)


def susceptibility(model: Any, *, strict: bool = True) -> Tensor:
    """`dm_ia / dh_jb [N, D, N, D]` of one system, through its solver."""
    if not isinstance(model, SpinModel) or isinstance(model, MonteCarlo):
        raise UsageError(f"{type(model).__name__} is not a spin model whose means have a derivative")
    given = read(model.h, "h").detach().clone()
    h = (given[:, None] if given.ndim == 1 else given).requires_grad_()
    with torch.enable_grad():
        fit = solve(replace(model, h=h), strict=strict)
    if fit.magnetisation.ndim != 2:
        raise UsageError(f"a susceptibility is of one system: this is a batch of shape {list(fit.residual.shape)}")
    return susceptibility_of(fit.magnetisation, h).detach()


@singledispatch
def _solve(model: Any, tol: float, max_steps: int) -> SpinFit:
    raise UsageError(f"{type(model).__name__} is not a spin model")


@_solve.register
def _(model: MeanField, tol: float, max_steps: int) -> SpinFit:
    checked = system(model.J, model.h, model.beta, model.radius, model.form)
    fit, theta = _equilibrium("MeanField", checked, equations.naive, model.start, tol, max_steps)
    m = fit.magnetisation
    correlation = _with_diagonal(m @ m.mT, checked.radius)
    known = thermodynamics(equations.naive_free_energy(checked, theta), checked.energy(correlation, m), checked.beta)
    return replace(fit, correlation=correlation, **known)


@_solve.register
def _(model: TAP, tol: float, max_steps: int) -> SpinFit:
    checked = system(model.J, model.h, model.beta, model.radius, model.form)
    start = _naive_start(checked, model.start, tol, max_steps)
    fit, theta = _equilibrium("TAP", checked, equations.tap, start, tol, max_steps)
    correlation = _with_diagonal(equations.tap_correlation(checked, theta), checked.radius)
    energy = checked.energy(correlation, fit.magnetisation)
    known = thermodynamics(equations.tap_free_energy(checked, theta), energy, checked.beta)
    return replace(fit, correlation=correlation, **known)


@_solve.register
def _(model: AdaptiveTAP, tol: float, max_steps: int) -> SpinFit:
    checked = system(model.J, model.h, model.beta, model.radius, model.form)
    if model.prior == "gaussian":
        if bool((checked.radius != 1).any()):
            raise UsageError("Gaussian spins have no length: leave radius at 1")
        return _gaussian(checked)
    if model.prior != "sphere":
        raise UsageError(f"prior={model.prior!r} is not known: sphere or gaussian")
    start = _naive_start(checked, model.start, tol, max_steps)
    theta = _begin(checked, start)
    c = equations.site_variance(checked, theta).detach()
    V = checked.beta.detach()[..., None] * (checked.J.detach().square() @ c[..., None])[..., 0]
    state = torch.cat([theta, V[..., None]], -1)
    fit, state = _equilibrium("AdaptiveTAP", checked, equations.adaptive, None, tol, max_steps, state=state)
    m, wide = fit.magnetisation, (checked.dim / checked.beta)[..., None, None]
    correlation = m @ m.mT + wide * equations.gaussian_inverse(checked, state)
    energy = checked.energy(correlation, m)
    known = thermodynamics(equations.adaptive_free_energy(checked, state), energy, checked.beta)
    return replace(fit, multiplier=state[..., -1], correlation=correlation, **known)


@_solve.register
def _(model: SteepestDescent, tol: float, max_steps: int) -> SpinFit:
    checked = system(model.J, model.h, model.beta, model.radius)
    found = steepest.minimise(checked, shared=model.shared, tol=tol, max_steps=max_steps)
    tau = steepest.attached(checked, found.x, shared=model.shared)
    at = steepest.saddle(checked, tau, shared=model.shared)
    correlation = at.m @ at.m.mT + (checked.dim / checked.beta)[..., None, None] * at.inverse
    free = -steepest.log_partition(checked, at) / checked.beta
    known = thermodynamics(free, checked.energy(correlation, at.m), checked.beta)
    return SpinFit(
        model="SteepestDescent", magnetisation=at.m, status=found.status, steps=found.steps, residual=found.residual,
        correlation=correlation, multiplier=tau, gain=_residual_gain(checked, tau), **known,
    )  # fmt: skip


@_solve.register
def _(model: Exact, tol: float, max_steps: int) -> SpinFit:
    return exact.exact(system(model.J, model.h, model.beta, model.radius), model.nodes)


@_solve.register
def _(model: MonteCarlo, tol: float, max_steps: int) -> SpinFit:
    checked = system(model.J, model.h, model.beta, model.radius)
    return sampling.sampled(checked, model.chains, model.sweeps, model.generator)


@_solve.register
def _(model: KineticMeanField, tol: float, max_steps: int) -> SpinFit:
    return kinetic.kinetic(model, tol, max_steps)


@_solve.register
def _(model: Hopfield, tol: float, max_steps: int) -> SpinFit:
    return hopfield.retrieved(model, tol, max_steps)


def _equilibrium(
    name: str, checked: System, equation: Equation, start: Any, tol: float, max_steps: int, state: Tensor | None = None
) -> tuple[SpinFit, Tensor]:
    """The fixed point of an equation of state, with its stability; and the state itself, with gradients."""
    shape = (checked.h if state is None else state).shape
    if state is None:
        state = _begin(checked, start)

    def update(x: Tensor, *parameters: Tensor) -> Tensor:
        return equation(checked.with_parameters(*parameters), x.reshape(shape)).flatten(-2)

    found = find(update, state.flatten(-2), checked.parameters, tol=tol, max_steps=max_steps)
    gain, top = leading(update, found, checked.parameters)
    status = Status.UNSTABLE if found.status is Status.CONVERGED and bool((top > 1 + MARGIN).any()) else found.status
    state = attach(update, found.x, checked.parameters).reshape(shape)
    theta = state[..., : checked.dim]
    fit = SpinFit(
        model=name, magnetisation=equations.means(checked, theta), status=status, steps=found.steps,
        residual=found.residual, field=theta, gain=gain,
    )  # fmt: skip
    return fit, state


def _begin(checked: System, start: Any) -> Tensor:
    """Fields to search from: those in which the mean spins are `start`, or the external ones."""
    return (checked.h if start is None else checked.conjugate(checked.given_means(start))).detach()


def _naive_start(checked: System, start: Any, tol: float, max_steps: int) -> Any:
    """Naive mean field's means where none are given, as far as its iteration brings them."""
    if start is not None:
        return start
    bare = checked.with_parameters(*(p.detach() for p in checked.parameters))
    shape = bare.h.shape

    def update(x: Tensor, *parameters: Tensor) -> Tensor:
        return equations.naive(bare.with_parameters(*parameters), x.reshape(shape)).flatten(-2)

    found: Found = find(update, bare.h.flatten(-2), bare.parameters, tol=max(tol, 1e-8), max_steps=max_steps)
    return equations.means(bare, found.x.reshape(shape)) if bool(found.x.isfinite().all()) else None


def _gaussian(checked: System) -> SpinFit:
    """Unit Gaussian spins, for which adaptive TAP is exact: `m = (1 - J)^-1 h`, the model linear in h."""
    one = torch.eye(checked.sites, dtype=checked.J.dtype, device=checked.J.device)
    L, info = torch.linalg.cholesky_ex(one - checked.J)
    if bool(info.any()):
        raise UsageError("J has an eigenvalue of 1 or more: Gaussian spins have no equilibrium there")
    chi = torch.cholesky_inverse(L)
    m = chi @ checked.h
    V = 1 - chi.diagonal(dim1=-2, dim2=-1).reciprocal()
    logdet = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_z = -checked.dim / 2 * logdet + checked.beta / 2 * (checked.h * m).sum((-2, -1))
    correlation = m @ m.mT + (checked.dim / checked.beta)[..., None, None] * chi
    return SpinFit(
        model="AdaptiveTAP", magnetisation=m, status=Status.EXACT, steps=0, residual=torch.zeros_like(log_z),
        correlation=correlation, multiplier=V,
        **thermodynamics(-log_z / checked.beta, checked.energy(correlation, m), checked.beta),
    )  # fmt: skip


def _with_diagonal(correlation: Tensor, radius: Tensor) -> Tensor:
    own = radius.square()[..., None] - correlation.diagonal(dim1=-2, dim2=-1)
    return correlation + torch.diag_embed(own)


def _residual_gain(checked: System, tau: Tensor) -> Tensor:
    """Spectral radius of `diag(1/tau) J`: below 1 the response is a sum of repeated mixing steps."""
    root = tau.detach().expand(*tau.shape[:-1], checked.sites).abs().rsqrt()
    scaled = root[..., :, None] * checked.J.detach() * root[..., None, :]
    return torch.linalg.eigvalsh(scaled).abs().amax(-1)
