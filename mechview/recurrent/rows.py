"""Rows of the two tables that both sides share: `gates` (values over text) and `memory` (numbers with nulls)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from mechview.recurrent.verdicts import Measured, Verdict

LAYER = re.compile(r"(?:[EX]\.)?L(\d+)(?:H(\d+))?")


@dataclass(frozen=True)
class GateRow:
    """A gate at one token: mean, quartiles over the channels (or heads) it stands for, and their number.

    `place` is the layer, head or sublayer; `gate` what it is: input, forget, output, candidate (its size), cell (its
    size), of a transformer pattern (received), coherence, or forget (the effective gate of a write).
    """

    side: str
    prompt: int
    pos: int
    token: str
    place: str
    gate: str
    value: float
    q25: float = math.nan
    q75: float = math.nan
    n: int = 1


@dataclass(frozen=True)
class MemoryRow:
    """One number; `over` is time, depth, positions or behaviour. `later` is the write or lag at which it is taken."""

    side: str
    over: str
    place: str
    quantity: str
    found: Measured
    later: str | None = None
    lag: int | None = None
    index: int | None = None
    n: int = 1
    judged: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """How the nulls judge it; None where the number is a profile or a description."""
        return self.found.verdict if self.judged else None

    @property
    def layer(self) -> int | None:
        match = LAYER.match(self.place)
        return None if match is None else int(match[1])

    @property
    def head(self) -> int | None:
        match = LAYER.match(self.place)
        return None if match is None or match[2] is None else int(match[2])


def plain(side: str, over: str, place: str, quantity: str, value: float, **where: object) -> MemoryRow:
    """A row without nulls."""
    return MemoryRow(side, over, place, quantity, Measured(value), **where)  # type: ignore[arg-type]
