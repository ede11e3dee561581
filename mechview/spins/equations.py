"""The equations of state `theta = T(theta)` of mean-field theories, in the conjugate field `theta` of each spin.

Naive mean field: `theta_i = h_i + sum_j J_ij m_j`. TAP adds the Onsager field, here in a form that is smooth at
zero field and costs O(N^2 D): with `c = beta^2 R^2`, `p = q + 2 s q'`, `K_i = sum_j J_ij^2 Sigma_j`,

    dtheta = c { theta q' tr(K)/p + 2 (q'/q) K theta + 2c [q q'' - 2 q'^2]/(p q) theta (theta.K theta) }.

Adaptive TAP has the reaction `-V_i m_i`, with V from the Gaussian with the same variances:
`1/(beta c_i) = Lambda_i - V_i`, `beta c_i = [(diag(Lambda) - J)^-1]_ii`, `c_i = tr(Sigma_i)/D`; O(N^3 + N^2 D).
Free energies are at the mean spins of `theta`; each is stationary where its equation holds.
Sources: Plefka 1982; Opper and Winther 2001; SMT (Bal 2023), whose long form equals this one at v = 0.
"""

from __future__ import annotations

import torch
from einops import einsum
from torch import Tensor

from mechview.spins.single import SiteLaw
from mechview.spins.system import System


def square(system: System, theta: Tensor) -> Tensor:
    """`s = (beta R |theta|)^2` of each spin."""
    return (_wide(system.beta * system.radius) * theta).square().sum(-1)


def means(system: System, theta: Tensor) -> Tensor:
    """Mean spins in the fields theta."""
    q = system.law.ratio(square(system, theta))
    return _wide(system.beta * system.radius.square()) * q[..., None] * theta


def naive(system: System, theta: Tensor) -> Tensor:
    """Right-hand side of naive mean field."""
    return system.h + system.J @ means(system, theta)


def tap(system: System, theta: Tensor) -> Tensor:
    """Right-hand side of TAP, second order in the couplings."""
    return naive(system, theta) + reaction(system, theta, theta)


def reaction(system: System, theta: Tensor, sources: Tensor) -> Tensor:
    """Onsager field of spins in fields `theta`, from spins that fluctuate in the fields `sources`."""
    law, c = system.law, _wide((system.beta * system.radius).square())
    s = square(system, sources)
    q, slope = law.ratio(s), law.slope(s)
    weight = system.J.square() * _wide(system.radius.square())
    trace = einsum(weight, system.dim * q + 2 * s * slope, "... i j, ... j -> ... i")
    mixed = weight * (theta @ sources.mT) * slope[..., None, :]
    K_theta = einsum(weight, q, "... i j, ... j -> ... i")[..., None] * theta + 2 * c * (mixed @ sources)
    return onsager(law, system.beta * system.radius, theta, trace, K_theta)


def onsager(law: SiteLaw, scale: Tensor, theta: Tensor, trace: Tensor, K_theta: Tensor) -> Tensor:
    """The Onsager field from `tr K` and `K theta`; `scale = beta R`."""
    c = _wide(scale.square())
    s = (c * theta.square()).sum(-1)
    q, slope, bend = (value[..., None] for value in (law.ratio(s), law.slope(s), law.curvature(s)))
    p = q + 2 * s[..., None] * slope
    along = (theta * K_theta).sum(-1, keepdim=True)
    radial = slope * trace[..., None] / p + 2 * c * (q * bend - 2 * slope.square()) / (p * q) * along
    return c * (theta * radial + 2 * slope / q * K_theta)


def adaptive(system: System, state: Tensor) -> Tensor:
    """Right-hand side of adaptive TAP for the state `[theta, V]`, concatenated over the last axis of a site."""
    theta, V = state[..., :-1], state[..., -1]
    inverse = (system.beta[..., None] * site_variance(system, theta)).reciprocal()
    cavity = V + inverse - gaussian_inverse(system, state).diagonal(dim1=-2, dim2=-1).reciprocal()
    field = naive(system, theta) - V[..., None] * means(system, theta)
    return torch.cat([field, cavity[..., None]], -1)


def site_variance(system: System, theta: Tensor) -> Tensor:
    """`c_i = (R^2 - |m_i|^2) / D`, written without the difference."""
    s, law = square(system, theta), system.law
    trace = system.dim * law.ratio(s) + 2 * s * law.slope(s) if law.form == "exact" else 2 * law.nu * law.ratio(s)
    return system.radius.square()[..., None] * trace / system.dim


def gaussian_inverse(system: System, state: Tensor) -> Tensor:
    """`(diag(Lambda) - J)^-1` of adaptive TAP, beta times the covariance a component."""
    inverse = (system.beta[..., None] * site_variance(system, state[..., :-1])).reciprocal()
    return torch.linalg.inv(torch.diag_embed(state[..., -1] + inverse) - system.J)


def naive_free_energy(system: System, theta: Tensor) -> Tensor:
    """Variational free energy at the mean spins of theta; not below the exact one."""
    m = means(system, theta)
    own = (theta * m).sum((-2, -1)) - system.law.log_partition(square(system, theta)).sum(-1) / system.beta
    return own - (m * (system.J @ m)).sum((-2, -1)) / 2 - (system.h * m).sum((-2, -1))


def tap_free_energy(system: System, theta: Tensor) -> Tensor:
    """TAP's: naive mean field less `beta/4 sum J_ij^2 Tr(Sigma_i Sigma_j)`. Not a bound."""
    second = (system.J.square() * overlap(system, theta, theta)).sum((-2, -1))
    return naive_free_energy(system, theta) - system.beta / 4 * second


def tap_correlation(system: System, theta: Tensor) -> Tensor:
    """`<s_i.s_j> = m_i.m_j + beta J_ij Tr(Sigma_i Sigma_j)`, i != j: what `dF/dJ_ij` is where F is stationary."""
    m = means(system, theta)
    return m @ m.mT + system.beta[..., None, None] * system.J * overlap(system, theta, theta)


def overlap(system: System, a: Tensor, b: Tensor) -> Tensor:
    """`Tr(Sigma_i Sigma_j)` of spin i in the field `a_i` and spin j in `b_j`."""
    (s, q, slope), (s_b, q_b, slope_b) = (
        (square(system, x), system.law.ratio(square(system, x)), system.law.slope(square(system, x))) for x in (a, b)
    )
    across = system.dim * q[..., :, None] * q_b[..., None, :]
    along = 2 * q[..., :, None] * (slope_b * s_b)[..., None, :] + 2 * (slope * s)[..., :, None] * q_b[..., None, :]
    c = _wide((system.beta * system.radius).square())
    aligned = 4 * c.square() * slope[..., :, None] * slope_b[..., None, :] * (a @ b.mT).square()
    return _wide(system.radius**4) * (across + along + aligned)


def adaptive_free_energy(system: System, state: Tensor) -> Tensor:
    """Adaptive TAP's: naive mean field plus the Gaussian correction at equal variances."""
    theta, V = state[..., :-1], state[..., -1]
    c, beta = site_variance(system, theta), system.beta[..., None]
    Lambda = V + (beta * c).reciprocal()
    logdet = torch.linalg.slogdet(beta[..., None] * (torch.diag_embed(Lambda) - system.J))[1]
    gaussian = logdet + (c.log() - beta * Lambda * c + 1).sum(-1)
    return naive_free_energy(system, theta) + system.dim / 2 * gaussian / system.beta


def _wide(size: Tensor) -> Tensor:
    return size[..., None, None]
