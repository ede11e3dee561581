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

FORMS = ("exact", "large_d", "saddle")
Size = float | Tensor


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
    k = _tensor(k)
    return k * SiteLaw(dim, form).ratio(k.square())


def response(
    h: Float[Tensor, "*batch dim"], beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> Float[Tensor, "*batch dim"]:
    """Mean spin in a field, `phi(h)`; `beta` and `radius` broadcast over the leading axes of h."""
    beta, radius = _columns(h, beta, radius)
    return beta * radius**2 * SiteLaw(h.shape[-1], form).ratio(_square(h, beta, radius)[..., None]) * h


def log_partition(
    h: Float[Tensor, "*batch dim"], beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> Float[Tensor, "*batch"]:
    """`log z` of a spin in a field (normalised measure)."""
    return SiteLaw(h.shape[-1], form).log_partition(_square(h, *_columns(h, beta, radius)))


def variances(
    h: Float[Tensor, "*batch dim"], beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Variance of a spin across its field and along it."""
    law, s = SiteLaw(h.shape[-1], form), _square(h, *_columns(h, beta, radius))
    q, squared = law.ratio(s), _columns(h, beta, radius)[1][..., 0] ** 2
    return squared * q, squared * (q + 2 * s * law.slope(s))


def covariance(
    h: Float[Tensor, "*batch dim"], beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> Float[Tensor, "*batch dim dim"]:
    """Covariance of a spin in a field; `d phi / d h` is beta times it."""
    law, (beta, radius) = SiteLaw(h.shape[-1], form), _columns(h, beta, radius)
    s = _square(h, beta, radius)[..., None, None]
    outer = (beta * radius)[..., None] ** 2 * h[..., :, None] * h[..., None, :]
    one = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device)
    return radius[..., None] ** 2 * (law.ratio(s) * one + 2 * law.slope(s) * outer)


def inverse_response(
    m: Float[Tensor, "*batch dim"], beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> Float[Tensor, "*batch dim"]:
    """The field in which the mean spin is `m`.

    Raises:
        UsageError: some |m| is not below the radius: no finite field does that.
    """
    law, (beta, radius) = SiteLaw(m.shape[-1], form), _columns(m, beta, radius)
    t = (m / radius).square().sum(-1, keepdim=True)
    if bool((t.detach() >= 1).any()):
        raise UsageError("a mean spin as long as the spin itself needs an infinite field")
    return m / (beta * radius**2 * law.ratio(law.inverse(t)))


def entropy(
    m: Float[Tensor, "*batch dim"], beta: Size = 1.0, radius: Size = 1.0, form: str = "exact"
) -> Float[Tensor, "*batch"]:
    """Entropy (nats, relative to uniform) of a spin with mean `m`; it does not depend on beta."""
    theta = inverse_response(m, beta, radius, form)
    return log_partition(theta, beta, radius, form) - _columns(m, beta, radius)[0][..., 0] * (theta * m).sum(-1)


def divergence(
    a: Float[Tensor, "*batch dim"],
    b: Float[Tensor, "*batch dim"],
    beta: Size = 1.0,
    radius: Size = 1.0,
    form: str = "exact",
) -> Float[Tensor, "*batch"]:
    """KL(a || b), nats, of the laws of a spin in the fields a and b."""
    gap = _columns(a, beta, radius)[0][..., 0] * ((a - b) * response(a, beta, radius, form)).sum(-1)
    return log_partition(b, beta, radius, form) - log_partition(a, beta, radius, form) + gap


def zero_temperature(h: Float[Tensor, "*batch dim"], radius: Size | None = None) -> Float[Tensor, "*batch dim"]:
    """The response as beta grows without bound; by default with `R = sqrt(D)`, which makes it RMSNorm."""
    length = h.shape[-1] ** 0.5 if radius is None else _columns(h, radius)[0]
    return length * h / h.norm(dim=-1, keepdim=True)


def _square(h: Tensor, beta: Tensor, radius: Tensor) -> Tensor:
    return (beta * radius * h).square().sum(-1)


def _columns(like: Tensor, *sizes: Size) -> tuple[Tensor, ...]:
    """Sizes in the dtype of `like`, with one more axis: a float must not be rounded to single precision first."""
    return tuple(torch.as_tensor(size, dtype=like.dtype, device=like.device)[..., None] for size in sizes)


def _tensor(k: Any) -> Tensor:
    return k if isinstance(k, Tensor) else torch.tensor(k, dtype=torch.float64)
