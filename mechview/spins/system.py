"""What every spin model starts from: couplings, fields, inverse temperature and radius, checked once.

`J[i, j]` couples spin i to spin j, `h[i]` is the field on spin i; leading axes are a batch. How values are read is
in `reading`. A field without a component axis (`h [N]`) is that of sign spins, D = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins.reading import positive, read, square
from mechview.spins.single import SiteLaw, inverse_response

ROUNDING = 1e3
WIDEST = {torch.float32: 1e15, torch.float64: 1e100}  # fields whose squares and their products still have a value


@dataclass(frozen=True)
class System:
    """Couplings `J [*batch, N, N]`, fields `h [*batch, N, D]`, `beta` and `radius` `[*batch]`, the law of a site."""

    J: Float[Tensor, "*batch site site"]
    h: Float[Tensor, "*batch site dim"]
    beta: Float[Tensor, "*batch"]
    radius: Float[Tensor, "*batch"]
    law: SiteLaw

    @property
    def sites(self) -> int:
        """Number of spins, N."""
        return self.h.shape[-2]

    @property
    def dim(self) -> int:
        """Components of a spin, D."""
        return self.h.shape[-1]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What a solution depends on, in the order `with_parameters` takes."""
        return self.J, self.h, self.beta, self.radius

    def with_parameters(self, *parameters: Tensor) -> System:
        """The same system with other numbers."""
        J, h, beta, radius = parameters
        return replace(self, J=J, h=h, beta=beta, radius=radius)

    def given_means(self, start: Any) -> Tensor:
        """Mean spins to start from, in this system's shape, shorter than the radius.

        Raises:
            UsageError: another shape, or values that are no mean spin.
        """
        m = read(start, "start").to(self.h)
        m = m[:, None] if m.ndim == 1 else m
        try:
            m = m.expand(self.h.shape)
        except RuntimeError:
            raise UsageError(f"start has shape {list(m.shape)}, the field {list(self.h.shape)}") from None
        return m

    def conjugate(self, m: Tensor) -> Tensor:
        """Fields in which the mean spins are m."""
        return inverse_response(m, self.beta[..., None], self.radius[..., None], self.law.form)

    def energy(self, correlation: Tensor, m: Tensor) -> Tensor:
        """`U = -1/2 sum J_ij <s_i.s_j> - sum h_i.m_i`."""
        return -(self.J * correlation).sum((-2, -1)) / 2 - (self.h * m).sum((-2, -1))


def system(J: Any, h: Any, beta: Any, radius: Any, form: str = "exact", *, symmetric: bool = True) -> System:
    """The checked system.

    Args:
        symmetric: an equilibrium is asked for, which needs symmetric couplings and no self-coupling.

    Raises:
        UsageError: shapes that do not fit, NaN or infinite values, `beta` or `radius` not positive, couplings
            that have no equilibrium of this form, fields too strong for floating point.
    """
    J, h = square(J), read(h, "h")
    h = h[:, None] if h.ndim == 1 else h
    if J.shape[-1] == 0:
        raise UsageError("J has shape [0, 0]: a system has at least one spin")
    if h.ndim < 2 or h.shape[-2] != J.shape[-1] or h.shape[-1] == 0:
        raise UsageError(f"h has shape {list(h.shape)}: with {J.shape[-1]} spins it is [{J.shape[-1]}, components]")
    dtype = torch.promote_types(J.dtype, h.dtype)
    sizes = [positive(value, name, dtype, h.device) for value, name in ((beta, "beta"), (radius, "radius"))]
    try:
        batch = torch.broadcast_shapes(J.shape[:-2], h.shape[:-2], *(size.shape for size in sizes))
    except RuntimeError:
        raise UsageError("the leading axes of J, h, beta and radius are not one batch") from None
    J, h = J.to(h.device, dtype).expand(*batch, *J.shape[-2:]), h.to(dtype).expand(*batch, *h.shape[-2:])
    if symmetric:
        _check_equilibrium(J.detach())
    beta, radius = (size.expand(batch) for size in sizes)
    _check_strength(*(part.detach() for part in (J, h, beta, radius)))
    return System(J, h, beta, radius, SiteLaw(h.shape[-1], form))


def _check_strength(J: Tensor, h: Tensor, beta: Tensor, radius: Tensor) -> None:
    """Beyond this the square of a field overflows, and its response would come out as zero."""
    field = h.abs().sum(-1) + radius[..., None] * J.abs().sum(-1)
    strongest = (beta[..., None].double() * radius[..., None].double() * field.double()).max()
    if h.numel() and not bool(strongest < WIDEST[h.dtype]):
        raise UsageError(
            f"beta times radius times field is {float(strongest):.1g}, too large for {str(h.dtype).removeprefix('torch.')}:"
            " it is the zero-temperature limit, R h/|h|"
        )


def _check_equilibrium(J: Tensor) -> None:
    largest, rounding = float(J.abs().max()) if J.numel() else 0.0, ROUNDING * torch.finfo(J.dtype).eps
    if bool(((J - J.mT).abs() > rounding * largest).any()):
        raise UsageError(
            "J is not symmetric, so it has no equilibrium: use KineticMeanField, or (J + J^T)/2 as a surrogate"
        )
    if bool((J.diagonal(dim1=-2, dim2=-1).abs() > rounding * largest).any()):
        raise UsageError("J couples a spin to itself, which only shifts the energy: set its diagonal to 0")
