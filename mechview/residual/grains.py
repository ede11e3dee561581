"""At which grain the stream's additions are rows: words that users say, and how many neurons stand alone.

`layer` keeps attention and MLP whole, `head` splits the attention, `source` each head by key position, `bias` takes
biases apart, `expert` and `neuron` open the MLP. An MLP has thousands of neurons: those that write most have rows of
their own, the others one row together (`L5.mlp_rest`), so that rows sum to the whole at any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mechview.errors import UsageError

Grain = str  # one of GRAINS; checked where a caller's word comes in
GRAINS = ("layer", "head", "source", "neuron", "expert", "bias")
TOP_NEURONS = 10


@dataclass(frozen=True)
class Split:
    """A grain, and how many neurons of each MLP have rows of their own (None at the other grains)."""

    by: Grain = "head"
    neurons: int | None = None


def split_of(by: Grain | Any, neurons: int | Any = None) -> Split:
    """The grain that a caller asked for.

    Raises:
        UsageError: no such grain, a number of neurons that is none, or one at a grain without neurons.
    """
    if by not in GRAINS:
        raise UsageError(f"by={by!r} is not a grain; choose one of {', '.join(GRAINS)}")
    if by != "neuron":
        if neurons is not None:
            raise UsageError(f"neurons={neurons!r} belongs to by='neuron', not to by={by!r}")
        return Split(by)
    kept = TOP_NEURONS if neurons is None else neurons
    if isinstance(kept, bool) or not isinstance(kept, int) or kept < 0:
        raise UsageError(f"neurons={neurons!r} is not a number of neurons; it must be a whole number of at least 0")
    return Split(by, kept)
