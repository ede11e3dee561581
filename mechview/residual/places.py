"""Positions that callers name: counted from the start, or refused with one sentence for every function alike."""

from __future__ import annotations

from typing import Any

from mechview.errors import UsageError


def checked_position(position: Any, length: int) -> int:
    """A position counted from the start, if the prompt has it.

    Raises:
        UsageError: it is no whole number, or the prompt has no such position.
    """
    if isinstance(position, bool) or not isinstance(position, int):
        raise UsageError(f"position={position!r} is not a whole number")
    if not -length <= position < length:
        raise UsageError(f"position {position} does not exist: the prompt has positions 0 to {length - 1}")
    return position % length
