"""What a user hands in, read once: numbers from anything array-like, and counts; or one sentence why not.

Lists, arrays and tensors are read alike; half precision is raised to single, integers and truth values to double.
A tensor keeps its graph and its device. Complex, sparse and non-numeric values are refused.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechview.errors import UsageError


def real(value: Any, name: str) -> Tensor:
    """A real, floating tensor of at least single precision; its values are not looked at, so it works under vmap."""
    try:
        found = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{name} is not an array of numbers") from None
    if found.is_complex():
        raise UsageError(f"{name} is complex: spins here are real")
    if found.layout is not torch.strided:
        raise UsageError(f"{name} is sparse: give it as a dense array")
    if not found.is_floating_point():
        return found.double()
    return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found


def read(value: Any, name: str) -> Tensor:
    """The same, finite throughout."""
    found = real(value, name)
    wrong = int((~found.detach().isfinite()).sum())
    if wrong:
        raise UsageError(f"{name} has {wrong} values that are NaN or infinite")
    return found


def positive(value: Any, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same, above zero throughout, also once it is rounded to `dtype`."""
    found = read(value, name).to(device, dtype)
    if bool((found.detach() <= 0).any()):
        raise UsageError(f"{name} is not positive")
    return found


def vectors(value: Any, name: str) -> Tensor:
    """Vectors over the last axis; NaN and infinities are left to show in the answer."""
    found = real(value, name)
    if found.ndim == 0 or found.shape[-1] == 0:
        raise UsageError(f"{name} has shape {list(found.shape)}: its last axis is the components of a vector")
    return found


def square(J: Any) -> Tensor:
    """Couplings: a square matrix, or a batch of them."""
    found = read(J, "J")
    if found.ndim < 2 or found.shape[-1] != found.shape[-2]:
        raise UsageError(f"J has shape {list(found.shape)}: couplings are square, one row and one column a spin")
    return found


def whole(value: Any, name: str, least: int) -> int:
    """A count of at least `least`."""
    try:
        found = operator.index(value)
    except TypeError:
        raise UsageError(f"{name}={value!r} is not a whole number") from None
    if found < least:
        raise UsageError(f"{name}={found} is too small: at least {least}")
    return found
