"""Which device a pass runs on, and in which numbers, checked before anything is read."""

from __future__ import annotations

from typing import Any

import torch

from mechview.errors import ModelError, UsageError

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def checked_device(device: Any) -> str:
    """The device, if this machine has it.

    Raises:
        UsageError: not the name of a device, or one that is not here.
    """
    try:
        kind = torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(f"{device!r} is not a device; use cpu, cuda, cuda:1 or mps") from None
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(kind.type, False) or (kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count()):
        raise UsageError(f"this machine has no device {device}")
    return str(kind)


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype} is not one of {', '.join(DTYPES)}")
    return DTYPES[dtype]
