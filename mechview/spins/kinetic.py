"""Spins out of equilibrium: the synchronous chain `P(s'|s) = prod_i exp(beta s'_i.h_i)/z`, `h = x + J s`, any J.

First order (naive): `m_t = phi(x + J m_{t-1})`. Second order: the Onsager field of `equations`, implicit only in a
site's own `theta_t`, with the fluctuations of `t-1`. Without couplings' symmetry there is no free energy.
Entropy production per step in the stationary state is `beta sum_ij (J_ij - J_ji) D_ij` with the lagged correlation
`D_ij = <s_i(t+1).s_j(t)>_c`; it is zero for symmetric J, and for attention it is fixed by the causal mask.
With symmetric J the synchronous chain is reversible with Peretto's law, not Boltzmann's.
Sources: Aguilera et al. 2021; NEQ (Bal 2026).
"""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins import equations
from mechview.spins.fits import HOLDS, SpinFit
from mechview.spins.fixed_points import Found, Status, attach, find
from mechview.spins.models import KineticMeanField
from mechview.spins.reading import positive, read, square, whole
from mechview.spins.stability import leading
from mechview.spins.system import System, system


def kinetic(model: KineticMeanField, tol: float, max_steps: int) -> SpinFit:
    """The steady state, or what `steps` updates make of the start (zero means, if none is given)."""
    checked = system(model.J, model.h, model.beta, model.radius, model.form, symmetric=False)
    if model.order not in (1, 2):
        raise UsageError(f"order={model.order} is not known: 1 (naive) or 2 (with the Onsager field)")
    start = torch.zeros_like(checked.h) if model.start is None else checked.given_means(model.start)
    theta = checked.conjugate(start)
    if model.steps is None:
        return _steady(checked, model.order, theta, tol, max_steps)
    steps, status, left = whole(model.steps, "steps", 0), Status.EXACT, torch.zeros_like(checked.beta)
    for _ in range(steps):
        theta, found = advance(checked, theta, model.order, tol, max_steps)
        left = torch.maximum(left, found.residual)
        status = found.status if status in HOLDS else status
    return _fit(checked, theta, Found(theta.flatten(-2), left, steps, status), None)


def advance(checked: System, theta: Tensor, order: int, tol: float, max_steps: int) -> tuple[Tensor, Found]:
    """Conjugate fields one step later."""
    field = equations.naive(checked, theta)
    if order == 1:
        return field, Found(field.flatten(-2), torch.zeros_like(checked.beta), 1, Status.EXACT)

    def update(x: Tensor, field: Tensor, before: Tensor, *parameters: Tensor) -> Tensor:
        x = x.reshape(field.shape)
        return (field + equations.reaction(checked.with_parameters(*parameters), x, before)).flatten(-2)

    parameters = (field, theta, *checked.parameters)
    found = find(update, field.detach().flatten(-2), parameters, tol=tol, max_steps=max_steps)
    return attach(update, found.x, parameters).reshape(field.shape), found


def _steady(checked: System, order: int, theta: Tensor, tol: float, max_steps: int) -> SpinFit:
    shape = checked.h.shape

    def update(x: Tensor, *parameters: Tensor) -> Tensor:
        equation = equations.naive if order == 1 else equations.tap
        return equation(checked.with_parameters(*parameters), x.reshape(shape)).flatten(-2)

    begin = equations.naive(checked, theta).detach().flatten(-2)
    found = find(update, begin, checked.parameters, tol=tol, max_steps=max_steps)
    gain, _ = leading(update, found, checked.parameters)
    return _fit(checked, attach(update, found.x, checked.parameters).reshape(shape), found, gain)


def _fit(checked: System, theta: Tensor, found: Found, gain: Tensor | None) -> SpinFit:
    return SpinFit(
        model="KineticMeanField", magnetisation=equations.means(checked, theta), status=found.status,
        steps=found.steps, residual=found.residual, field=theta, gain=gain,
    )  # fmt: skip


def equal_time_correlation(
    J: Float[Tensor, "*batch site site"], m: Float[Tensor, "*batch site"], before: Float[Tensor, "*batch site"]
) -> Float[Tensor, "*batch site site"]:
    """Connected `<s_i s_k>` of sign spins one step after independent ones with means `before` (beta = 1)."""
    free, spread = 1 - m.square(), 1 - before.square()
    C = einsum(J, J, spread, "... i j, ... k j, ... j -> ... i k") * free[..., :, None] * free[..., None, :]
    own = torch.eye(J.shape[-1], dtype=torch.bool, device=J.device)
    return torch.where(own, torch.diag_embed(free), C)


def lagged_correlation(
    J: Float[Tensor, "*batch site site"],
    m: Float[Tensor, "*batch site"],
    before: Float[Tensor, "*batch site"],
    order: int = 2,
) -> Float[Tensor, "*batch site site"]:
    """Connected `<s_i(t) s_l(t-1)>` of sign spins (beta = 1), to second order in the couplings, or to first."""
    first = J * (1 - m.square())[..., :, None] * (1 - before.square())[..., None, :]
    return first if order == 1 else first * (1 + 2 * J * m[..., :, None] * before[..., None, :])


def lagged_vector_correlation(J: Any, theta: Any, before: Any, beta: Any = 1.0, radius: Any = 1.0) -> Tensor:
    """`D_ij = beta J_ij Tr(Sigma_i,t Sigma_j,t-1)` of vector spins in the fields `theta` and `before`."""
    checked = system(J, theta, beta, radius, symmetric=False)
    return (
        checked.beta[..., None, None]
        * checked.J
        * equations.overlap(checked, checked.h, read(before, "before").to(checked.h))
    )


def entropy_production(J: Any, lagged: Any, beta: Any = 1.0) -> Tensor:
    """Per step, nats, from lagged correlations of the stationary state: exact if those are."""
    J, lagged = square(J), read(lagged, "lagged")
    if lagged.shape[-2:] != J.shape[-2:]:
        raise UsageError(f"J {list(J.shape)} and lagged {list(lagged.shape)} are not two matrices of one system")
    return positive(beta, "beta", J.dtype, J.device) * ((J - J.mT) * lagged.to(J)).sum((-2, -1))


def entropy_production_proxy(J: Any, theta: Any, beta: Any = 1.0, radius: Any = 1.0) -> Tensor:
    """The mean-field stand-in `beta^2/2 sum_ij (J_ij - J_ji)^2 Tr(Sigma_i Sigma_j)` at the fields theta."""
    checked = system(J, theta, beta, radius, symmetric=False)
    asymmetry = (checked.J - checked.J.mT).square() * equations.overlap(checked, checked.h, checked.h)
    return checked.beta.square() / 2 * asymmetry.sum((-2, -1))
