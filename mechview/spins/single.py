"""One spin in a field, for every dimension D: what all spin models here are built on.

A spin is a vector of length R in D dimensions, `beta` the inverse temperature, `h` its field. The response is
`phi(h) = beta R^2 q(s) h` with `s = (beta R |h|)^2`; D = 1 is tanh, D = 3 Langevin's function. `log z` uses the
uniform probability measure on the sphere (0 at `beta = 0`), so entropies are relative to uniform and not positive.

A `form` names the function q: `exact` (ratio of Bessel functions), `large_d` (its leading order at fixed
`u = k / nu` with `nu = D/2 - 1`) and `saddle` (`nu = D/2`: what steepest descent gives, better at small D).
At zero temperature the response is `R h/|h|`, which with `R = sqrt(D)` is RMSNorm without a gain.
Sources: SMT and AFEM (Bal 2021, 2023); Kiefer and Weiss for large D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins import bessel
from mechview.spins.reading import real, vectors

FORMS = ("exact", "large_d", "saddle")
Size = Any  # a number, or numbers that broadcast over the leading axes
Vectors = Any  # read here: `[*batch, dim]`, a tensor or anything array-like


@dataclass(frozen=True)
class SiteLaw:
    """The law of one spin: `q(s)`, its derivatives, `log z(s)` and the way back, in one of three forms."""

    dim: int
    form: str = "exact"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise UsageError(f"form={self.form!r} is not a response; choose one of {', '.join(FORMS)}")
        if self.dim < 1 or (self.form == "large_d" and self.dim < 3):
            raise UsageError(f"a spin of dimension {self.dim} has no {self.form} response")

    @property
    def nu(self) -> float:
        """The large parameter of the approximate forms."""
        return self.dim / 2 - (self.form == "large_d")

    def ratio(self, s: Tensor) -> Tensor:
        """q(s), so that `m = beta R^2 q h`."""
        return bessel.ratio(s, self.dim) if self.form == "exact" else 1 / (self.nu * (1 + self._gamma(s)))

    def slope(self, s: Tensor) -> Tensor:
        """dq/ds."""
        if self.form == "exact":
            return bessel.slope(s, self.dim)
        return -self.ratio(s).square() / (2 * self.nu * self._gamma(s))

    def curvature(self, s: Tensor) -> Tensor:
        """d^2q/ds^2."""
        if self.form == "exact":
            return bessel.curvature(s, self.dim)
        gamma = self._gamma(s)
        return self.ratio(s) * self.slope(s) / (self.nu * gamma) * (-1 - (1 + gamma) / (2 * gamma))

    def log_partition(self, s: Tensor) -> Tensor:
        """log z(s)."""
        if self.form == "exact":
            return bessel.log_partition(s, self.dim)
        excess = s / (self.nu**2 * (1 + self._gamma(s)))
        return self.nu * (excess - torch.log1p(excess / 2))

    def inverse(self, t: Tensor) -> Tensor:
        """s at a squared length `t = |m|^2 / R^2 < 1`."""
        return bessel.inverse(t, self.dim) if self.form == "exact" else t * (2 * self.nu / (1 - t)).square()

    def _gamma(self, s: Tensor) -> Tensor:
        return (1 + s / self.nu**2).sqrt()


def amplitude(k: Any, dim: int, form: str = "exact") -> Tensor:
    """`A_D(k)`: the length of a unit spin's mean in a field with `k = beta R |h|`."""
    k = real(k, "k")
    return k * SiteLaw(dim, form).ratio(k.square())


def response(h: Vectors, beta: Size = 1.0, radius: Size = 1.0, form: str = "exact") -> Float[Tensor, "*batch dim"]:
    """Mean spin in a field, `phi(h)`; `beta` and `radius` broadcast over the leading axes of h."""
    law, h, beta, radius, s = _site(h, beta, radius, form)
    return beta * radius**2 * law.ratio(s)[..., None] * h


def log_partition(h: Vectors, beta: Size = 1.0, radius: Size = 1.0, form: str = "exact") -> Float[Tensor, "*batch"]:
    """`log z` of a spin in a field (normalised measure)."""
    law, *_, s = _site(h, beta, radius, form)
    return law.log_partition(s)


def variances(
    h: Vectors, beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Variance of a spin across its field and along it."""
    law, _, _, radius, s = _site(h, beta, radius, form)
    q, squared = law.ratio(s), radius[..., 0] ** 2
    return squared * q, squared * (q + 2 * s * law.slope(s))


def covariance(
    h: Vectors, beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> Float[Tensor, "*batch dim dim"]:
    """Covariance of a spin in a field; `d phi / d h` is beta times it."""
    law, h, beta, radius, s = _site(h, beta, radius, form)
    s = s[..., None, None]
    outer = (beta * radius)[..., None] ** 2 * h[..., :, None] * h[..., None, :]
    one = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device)
    return radius[..., None] ** 2 * (law.ratio(s) * one + 2 * law.slope(s) * outer)


def inverse_response(
    m: Vectors, beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> Float[Tensor, "*batch dim"]:
    """The field in which the mean spin is `m`.

    Raises:
        UsageError: some |m| is not below the radius: no finite field does that.
    """
    law, m, beta, radius, _ = _site(m, beta, radius, form, "m")
    t = (m / radius).square().sum(-1, keepdim=True)
    if bool((t.detach() >= 1).any()):
        raise UsageError("a mean spin as long as the spin itself needs an infinite field")
    return m / (beta * radius**2 * law.ratio(law.inverse(t)))


def entropy(m: Vectors, beta: Size = 1.0, radius: Size = 1.0, form: str = "exact") -> Float[Tensor, "*batch"]:
    """Entropy (nats, relative to uniform) of a spin with mean `m`; it does not depend on beta."""
    _, m, wide, _, _ = _site(m, beta, radius, form, "m")
    theta = inverse_response(m, beta, radius, form)
    return log_partition(theta, beta, radius, form) - wide[..., 0] * (theta * m).sum(-1)


def divergence(
    a: Vectors, b: Vectors, beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> Float[Tensor, "*batch"]:
    """KL(a || b), nats, of the laws of a spin in the fields a and b."""
    law, a, wide, _, s = _site(a, beta, radius, form, "a")
    _, b, _, _, s_b = _site(b, beta, radius, form, "b")
    if a.shape[-1] != b.shape[-1]:
        raise UsageError(f"a has {a.shape[-1]} components and b {b.shape[-1]}: both are fields of one spin")
    gap = wide[..., 0] * ((a - b) * response(a, beta, radius, form)).sum(-1)
    return law.log_partition(s_b) - law.log_partition(s) + gap


def zero_temperature(h: Vectors, radius: Size | None = None) -> Float[Tensor, "*batch dim"]:
    """The response as beta grows without bound; by default with `R = sqrt(D)`, which makes it RMSNorm. 0 at h = 0."""
    h = vectors(h, "h")
    length = h.shape[-1] ** 0.5 if radius is None else _column(radius, "radius", h)
    size = h.detach().abs().amax(-1, keepdim=True)
    h = h / torch.where(size > 0, size, 1.0)
    norm = h.norm(dim=-1, keepdim=True)
    return length * h / torch.where(norm > 0, norm, 1.0)


def _site(
    h: Vectors, beta: Size, radius: Size, form: str, name: str = "h"
) -> tuple[SiteLaw, Tensor, Tensor, Tensor, Tensor]:
    """The law, the field, its sizes with one more axis, and s; where s overflows it is NaN, for q would be 0."""
    h = vectors(h, name)
    beta, radius = _column(beta, "beta", h), _column(radius, "radius", h)
    s = (beta * radius * h).square().sum(-1)
    return SiteLaw(h.shape[-1], form), h, beta, radius, torch.where(s.isinf(), torch.nan, s)


def _column(size: Size, name: str, like: Tensor) -> Tensor:
    """A size in the dtype of `like`, with one more axis."""
    found = real(size, name).to(like)
    try:
        torch.broadcast_shapes(found.shape, like.shape[:-1])
    except RuntimeError:
        raise UsageError(f"{name} of shape {list(found.shape)} does not fit fields {list(like.shape)}") from None
    return found[..., None]
