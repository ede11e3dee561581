"""What a note is: the form of every entry in the registry of printed numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """One quantity. `title` is how it is named to a reader."""

    title: str
    definition: str
    unit: str
    source: str
    cannot: str
