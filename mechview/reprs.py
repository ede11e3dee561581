"""How a record shows itself: its words and numbers, the shape of its tensors, the count of its rows.

A notebook prints whatever a cell ends with; a record of a forward pass must not answer with a screen of digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

LONGEST = 60


def short_repr(record: Any) -> str:
    """One line for a dataclass; fields that are None, empty or hidden (`repr=False`) are left out."""
    shown = [(f.name, shown_value(getattr(record, f.name))) for f in fields(record) if f.repr]
    return f"{type(record).__name__}({', '.join(f'{name}={text}' for name, text in shown if text)})"


def shown_value(value: Any) -> str:
    """A short form of one value; nothing for what is not there."""
    if value is None or (isinstance(value, str | tuple | list | Mapping) and not value):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        kind = str(value.dtype).removeprefix("torch.")
        return f"<{kind} {' x '.join(map(str, value.shape)) or 'number'}>"
    if isinstance(value, tuple | list | Mapping):
        plain = all(isinstance(item, str | int | float) for item in value) and not isinstance(value, Mapping)
        whole = repr(value)
        return whole if plain and len(whole) <= LONGEST else f"<{len(value)}>"
    text = repr(value)
    return text if len(text) <= LONGEST and "\n" not in text else f"{text.splitlines()[0][: LONGEST - 3]}..."
