"""What is measured, by name: the quantity, its target, how a null of it is called.

A `Key` names one series of per-sequence numbers: the real one (`control` empty) or one draw of a control.
Every number is a ratio of sums over sequences, `sum num / sum den`: `R^2` with `num = SST - SSE` and
`den = SST`, a mean with `den = 1`. So one bootstrap over sequences serves all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mechview.spins.layers.controls import REAL


class Key(NamedTuple):
    """One series: a quantity of a layer (or of one of its heads), in one metric, real or one draw of a control."""

    quantity: str
    head: int | None = None
    metric: str = "raw"
    control: str = REAL
    draw: int = 0


@dataclass
class Samples:
    """Per-sequence numerators and denominators of every series of one layer."""

    series: dict[Key, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, key: Key, num: float, den: float = 1.0) -> None:
        self.series.setdefault(key, []).append((num, den))

    def add_heads(self, key: Key, values: list[float]) -> None:
        """One number per head."""
        for head, value in enumerate(values):
            self.add(key._replace(head=head), value)

    def add_mean(self, key: Key, values: list[float]) -> None:
        """The layer's number, the mean over its heads, beside each head's own."""
        self.add(key, sum(values) / len(values))
        self.add_heads(key, values)
