"""A ledger in blocks of query positions: every row and number of `mv.ledger`, a few positions at a time.

By source, a ledger has a row for every head and key position, `[layer * head * key, query, d_model]` numbers: 29 GB
for GPT-2 small and 256 tokens. A block of queries needs its share of that, and nothing of one block is kept for the
next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mechview.errors import UsageError
from mechview.models.blocks import queries
from mechview.models.trace import Trace, as_trace
from mechview.residual.grains import Grain
from mechview.residual.ledger import Ledger, Place, ledger


def ledger_blocks(
    trace: Trace | Any, by: Grain = "source", point: Place = "final", *, block: int | Any = 8
) -> Iterator[Ledger]:
    """Ledgers of `block` positions each, in order; `.trace.start` is the first one's position.

    Raises:
        UsageError: an unknown grain or point, a block of no positions, or neurons, whose rows differ by block.
    """
    if by == "neuron":
        raise UsageError("by='neuron' keeps the neurons that write most in the positions it sees: use mv.ledger")
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise UsageError(f"block={block!r} is not a number of positions; it must be at least 1")
    return _blocks(as_trace(trace), by, point, block)


def _blocks(trace: Trace, by: Grain, point: Place, block: int) -> Iterator[Ledger]:
    for start in range(0, len(trace.tokens), block):
        yield ledger(queries(trace, start, min(start + block, len(trace.tokens))), by, point)
