"""Which device a pass runs on, checked before anything is read."""

from __future__ import annotations

from typing import Any

from mechview.errors import UsageError


def checked_device(device: Any) -> str:
    """The device, if this machine has it.

    Raises:
        UsageError: not the name of a device, or one that is not here.
    """
    import torch

    try:
        kind = torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(f"{device!r} is not a device; use cpu, cuda, cuda:1 or mps") from None
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(kind.type, False) or (kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count()):
        raise UsageError(f"this machine has no device {device}")
    return str(kind)
