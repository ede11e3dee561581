"""A trace of some of a prompt's queries: the same pass, cut to a block of positions.

Everything a ledger adds up belongs to one query position; only messages reach over to other positions, and the
keys they come from stay whole. So a ledger of a block is exact, and one that would not fit in memory (a row for
every head and source position) is made block by block. All tensors are views of the whole trace's.
"""

from __future__ import annotations

from dataclasses import replace

from mechview.errors import UsageError
from mechview.models.capture import AttentionCapture, Capture, MlpCapture
from mechview.models.trace import Trace


def queries(trace: Trace, start: int, stop: int) -> Trace:
    """The trace of positions `start` to `stop - 1` of the stack that has the logits.

    Raises:
        UsageError: no such positions.
    """
    if not 0 <= start < stop <= len(trace.tokens):
        last = len(trace.tokens) - 1
        raise UsageError(f"positions {start} to {stop - 1} do not exist: the prompt has positions 0 to {last}")
    at, capture = slice(start, stop), trace.capture
    whole = {"encoder"} if len(trace.weights.shape.stacks) > 1 else set()
    cut = Capture(
        attention={k: v if k[0] in whole else _attention(v, at) for k, v in capture.attention.items()},
        mlp={
            k: v if k[0] in whole else MlpCapture(v.stream[at], v.written[at]) for k, v in capture.mlp.items()
        },
        post={k: v if k[0] in whole else v[at] for k, v in capture.post.items()},
        logits=None if capture.logits is None else capture.logits[at],
        backend=capture.backend,
    )  # fmt: skip
    return replace(trace, capture=cut, tokens=trace.tokens[at], start=trace.start + start)


def _attention(seen: AttentionCapture, at: slice) -> AttentionCapture:
    return AttentionCapture(
        stream=seen.stream[at],
        reads=seen.reads[at],
        source=seen.source,
        pattern=seen.pattern[:, at],
        scores=None if seen.scores is None else seen.scores[:, at],
        z=seen.z[at],
        written=seen.written[at],
    )
