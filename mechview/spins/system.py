"""What every spin model starts from: couplings, fields, inverse temperature and radius, checked once.

`J[i, j]` couples spin i to spin j, `h[i]` is the field on spin i; leading axes are a batch. Lists, arrays and
tensors are read; half precision is raised to single, integers to double. A field without a component axis
(`h [N]`) is that of sign spins, D = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins.single import SiteLaw

ROUNDING = 1e3


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

    def energy(self, correlation: Tensor, m: Tensor) -> Tensor:
        """`U = -1/2 sum J_ij <s_i.s_j> - sum h_i.m_i`."""
        return -(self.J * correlation).sum((-2, -1)) / 2 - (self.h * m).sum((-2, -1))


def system(J: Any, h: Any, beta: Any, radius: Any, form: str = "exact", *, symmetric: bool = True) -> System:
    """The checked system.

    Args:
        symmetric: an equilibrium is asked for, which needs symmetric couplings and no self-coupling.

    Raises:
        UsageError: shapes that do not fit, NaN or infinite values, `beta` or `radius` not positive, couplings
            that have no equilibrium of this form.
    """
    J, h = read(J, "J"), read(h, "h")
    h = h[:, None] if h.ndim == 1 else h
    if J.ndim < 2 or J.shape[-1] != J.shape[-2]:
        raise UsageError(f"J has shape {list(J.shape)}: couplings are square, one row and one column a spin")
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
    return System(J, h, beta, radius, SiteLaw(h.shape[-1], form))


def _check_equilibrium(J: Tensor) -> None:
    largest, rounding = float(J.abs().max()) if J.numel() else 0.0, ROUNDING * torch.finfo(J.dtype).eps
    if bool(((J - J.mT).abs() > rounding * largest).any()):
        raise UsageError(
            "J is not symmetric, so it has no equilibrium: use KineticMeanField, or (J + J^T)/2 as a surrogate"
        )
    if bool((J.diagonal(dim1=-2, dim2=-1).abs() > rounding * largest).any()):
        raise UsageError("J couples a spin to itself, which only shifts the energy: set its diagonal to 0")


def read(value: Any, name: str) -> Tensor:
    """A finite, real, floating tensor of at least single precision, from anything array-like."""
    try:
        found = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{name} is not an array of numbers") from None
    if found.is_complex():
        raise UsageError(f"{name} is complex: spins here are real")
    if not found.is_floating_point():
        found = found.double()
    found = found.float() if found.dtype in (torch.float16, torch.bfloat16) else found
    wrong = int((~found.detach().isfinite()).sum())
    if wrong:
        raise UsageError(f"{name} has {wrong} values that are NaN or infinite")
    return found


def positive(value: Any, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same, above zero throughout."""
    found = read(value, name).to(device, dtype)
    if bool((found.detach() <= 0).any()):
        raise UsageError(f"{name} is not positive")
    return found
