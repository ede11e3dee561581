"""The ledger: every addition to the residual stream, in rows that sum to what the model computed.

Completeness is in every answer: `error = max|sum of rows - model's stream| / max|model's stream|`, and
the total is the model's own stream, never the sum. Norms that the stream passes are frozen at the scale
they had at each position (the default and only exact choice for post-norm models).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.checks import relative
from mechview.errors import UsageError
from mechview.models.reader import check_layer
from mechview.models.trace import Point, Trace, as_trace
from mechview.models.weights import Stack
from mechview.residual.embeddings import embed_steps
from mechview.residual.grains import Grain, Split, split_of
from mechview.residual.readout import Direction, Target, as_target, logit_direction, vector_direction
from mechview.residual.rows import Step, Transport, attention_steps, block_steps, middle_steps
from mechview.results import Result

MOST_BYTES = 4e9  # of rows by source, before their sums
Place = str | tuple[int, str]


@dataclass(frozen=True)
class Ledger(Result):
    """Rows `values[component, pos, d_model]` named by `components`, at one point of one stack.

    `cos_stream` is each row's cosine to the stream before it was written (NaN for the first),
    `share_of_update` its projection on what its sublayer added, as a share of that (they sum to 1), `cos_direction`
    its cosine, as it reaches `point`, to the direction asked about (None where none was).
    """

    trace: Trace = field(repr=False)
    components: tuple[str, ...]
    values: Float[Tensor, "component pos d_model"]
    total: Float[Tensor, "pos d_model"]
    error: float
    by: Grain
    point: str
    stack: Stack
    cos_stream: Float[Tensor, "component pos"]
    share_of_update: Float[Tensor, "component pos"]
    cos_direction: Float[Tensor, "component pos"] | None = None
    direction: str | None = None
    neurons: int | None = None

    def row(self, component: str) -> Float[Tensor, "pos d_model"]:
        if component not in self.components:
            raise UsageError(f"the ledger has no row {component}; it has {self.components[0]} to {self.components[-1]}")
        return self.values[self.components.index(component)]


def ledger(
    trace: Trace | Any, by: Grain = "head", point: Place = "final", *, neurons: int | Any = None, stack: Stack | None = None,
    target: Target | Any = None, against: Target | Any = None, direction: Float[Tensor, "d_model"] | None = None,
) -> Ledger:  # fmt: skip
    """Every addition to the stream up to a point.

    Args:
        by: `layer` (attention and MLP whole), `head`, `source` (head x key position), `neuron` (top ones and
            the remainder), `expert`, `bias` (value, attention, MLP biases as rows of their own).
        point: `final` (before the final norm), or `(layer, "pre" | "mid" | "post")`.
        neurons: of each MLP, how many have rows of their own (by `neuron`; 10 unless given): those whose writes are
            largest at any position. The others are one row, `L5.mlp_rest`.
        stack: `encoder` for the encoder of an encoder-decoder model.
        target, against: a logit (or a difference of two) whose direction, behind the frozen final norm, each row has
            a cosine to; at the final point alone. `direction`: a vector of the stream instead, at any point.

    Raises:
        UsageError: an unknown grain, point or direction, or experts of a model that has none.
    """
    trace = as_trace(trace)
    split = split_of(by, neurons)
    stack = check_layer(trace.weights.shape, 0, stack or trace.stack)
    goal = _goal(trace, target, against, direction, point, stack)
    last, at = _point(trace, point, stack)
    rows = gathered(trace, split, last + 1, stack, steps_to(trace, split, last, at, stack))
    total = trace.stream(last, at, stack)
    values = rows.values
    return Ledger(
        trace=trace,
        components=tuple(rows.names),
        values=values,
        total=total,
        error=relative(values.double().sum(0), total),
        by=by,
        point="final" if point == "final" else f"L{last}.{at}",
        stack=stack,
        cos_stream=torch.cat(rows.cosines),
        share_of_update=torch.cat(rows.shares),
        cos_direction=None if goal is None else cosine(values.double(), goal.vectors),
        direction=None if goal is None else goal.name,
        neurons=split.neurons,
    )


def _goal(
    trace: Trace, target: Any, against: Any, direction: Tensor | None, point: Place, stack: Stack
) -> Direction | None:
    """The direction asked about, at each position."""
    if target is None and direction is None:
        if against is not None:
            raise UsageError("against needs a target: the difference of two logits is asked for")
        return None
    if target is not None and direction is not None:
        raise UsageError("give a target token or a direction, one of the two")
    if direction is not None:
        return vector_direction(trace, direction, stream=trace.stream(0, "pre", stack))
    if point != "final" or stack != trace.stack:
        raise UsageError("a logit is read at the final stream: leave out the point, or give a direction")
    return logit_direction(trace, as_target(target), as_target(against), trace.tokenizer)  # type: ignore[arg-type]


@dataclass
class Rows:
    """Rows so far and the stream they make; a transport carries all of them.

    Cosine and share are taken at the moment of writing, before any later norm carries the row.
    """

    names: list[str] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    stream: Tensor | None = None
    cosines: list[Tensor] = field(default_factory=list)
    shares: list[Tensor] = field(default_factory=list)

    def take(self, step: Step) -> None:
        if isinstance(step, Transport):
            self.parts = [step.carry(self.values)]
            self.stream = None if self.stream is None else step.carry(self.stream[None])[0]
            return
        update = step.values.sum(0)
        before = torch.full_like(update, torch.nan) if self.stream is None else self.stream
        self.names += step.names
        self.parts.append(step.values)
        self.cosines.append(cosine(step.values, before))
        self.shares.append((step.values * update).sum(-1) / update.square().sum(-1))
        self.stream = update if self.stream is None else self.stream + update

    @property
    def values(self) -> Float[Tensor, "component pos d_model"]:
        return torch.cat(self.parts)


def gathered(trace: Trace, split: Split, layers: int, stack: Stack, steps: Iterable[Step]) -> Rows:
    """Rows of the steps through so many layers.

    Raises:
        UsageError: rows by source that no machine should be asked to hold at once.
    """
    _check_size(trace, split, layers, stack)
    rows = Rows()
    for step in steps:
        rows.take(step)
    return rows


def cosine(x: Float[Tensor, "*component pos d_model"], y: Float[Tensor, "pos d_model"]) -> Tensor:
    """Cosine of rows to a stream, NaN where either is zero."""
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


def steps_to(trace: Trace, split: Split, last: int, at: Point, stack: Stack) -> Iterator[Step]:
    """Steps up to a point of layer `last`."""
    yield from embed_steps(trace, stack)
    for layer in range(last):
        yield from block_steps(trace, layer, split, stack)
    if at == "post":
        yield from block_steps(trace, last, split, stack)
    elif at == "mid":
        yield from middle_steps(trace, last, split, stack)


def steps_before(trace: Trace, split: Split, layer: int, stack: Stack) -> Iterator[Step]:
    """Steps up to what queries of an attention layer read; cross-attention reads behind its block's own attention."""
    if stack != "cross":
        yield from steps_to(trace, split, layer, "pre", stack)
        return
    yield from steps_to(trace, split, layer, "pre", "decoder")
    yield from attention_steps(trace, layer, split, "decoder")


def _check_size(trace: Trace, split: Split, layers: int, stack: Stack) -> None:
    seen = trace.attention(0, stack)
    size = layers * seen.pattern.numel() * seen.stream.shape[-1] * seen.stream.element_size()
    if split.by == "source" and size > MOST_BYTES:
        raise UsageError(
            f"rows by source of {len(seen.stream)} positions are {size / 1e9:.1f} GB; mv.ledger_blocks gives them a few "
            "positions at a time, mv.shares along a direction"
        )


def _point(trace: Trace, point: Place, stack: Stack) -> tuple[int, Point]:
    count = trace.weights.shape.layers(stack)
    if point == "final":
        return count - 1, "post"
    if not isinstance(point, tuple) or len(point) != 2 or point[1] not in ("pre", "mid", "post"):
        raise UsageError(f"point={point!r} is not a place in the stream; use 'final' or (layer, 'pre'|'mid'|'post')")
    check_layer(trace.weights.shape, point[0], stack)
    return point[0], cast(Point, point[1])
