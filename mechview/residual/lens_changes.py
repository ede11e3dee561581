"""Why the lens moves: its reading of a logit, from one point of the stream to the next, split over who wrote in between.

The lens divides by the final norm's scale at each point, so between two points there are two reasons to move: what
was written, met with the direction at the later point, and the `rescaling` of everything that stood there before
(its norm grew, or a norm of the stream carried it). Both are exact: rows of a step sum to the change of the
reading, and rows of all steps, with the constants that no component wrote, to the model's own logit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError, UsageError
from mechview.models.blocks import queries
from mechview.models.norms import apply_norm, norm_scale
from mechview.models.trace import Trace, as_trace
from mechview.residual.embeddings import embed_steps
from mechview.residual.grains import Grain, Split, split_of
from mechview.residual.lens import points_of
from mechview.residual.places import checked_position
from mechview.residual.readout import (
    Direction,
    Target,
    as_target,
    before_cap,
    logit_direction,
    read_columns,
    target_weights,
)
from mechview.residual.rows import Step, Transport, block_steps, middle_steps, mlp_steps
from mechview.results import Result, check_count

RESCALING = "rescaling"
START = "start"


@dataclass(frozen=True)
class LensChange:
    """What one component does to the reading between the point before (`since`) and `point`, in logits."""

    since: str
    point: str
    component: str
    value: float


@dataclass(frozen=True)
class LensChanges(Result):
    """`readings[point]` of the logit before any soft-cap, and rows that sum to each step; the first step begins at 0.

    `error` is the largest |sum of a step's rows - its change| over the largest reading or row.
    """

    rows: tuple[LensChange, ...]
    points: tuple[str, ...]
    readings: Float[Tensor, "point"]
    error: float
    direction: str
    position: int
    by: Grain
    neurons: int | None = None
    softcap: float | None = None
    model: str = ""
    revision: str | None = None

    def step(self, point: str) -> tuple[LensChange, ...]:
        """The rows of the step that ends at a point."""
        if point not in self.points:
            raise UsageError(f"the lens has no point {point}; it has {', '.join(self.points)}")
        return tuple(row for row in self.rows if row.point == point)

    def top(self, k: int | Any = 10) -> list[LensChange]:
        """The k largest rows by size."""
        check_count(k)
        return sorted(self.rows, key=lambda row: -abs(row.value))[:k]


def lens_changes(
    trace: Trace | Any, target: Target | Any, against: Target | Any = None, position: int | Any = -1,
    by: Grain = "head", *, neurons: int | Any = None, tokenizer: object = None,
) -> LensChanges:  # fmt: skip
    """The lens's logit of a target (minus another's) at one position, step by step, split over components.

    Raises:
        UsageError: a target that is not one token, no such position or grain.
        UnsupportedError: the model's head is not linear in the stream, or there is none.
    """
    trace, target, against = as_trace(trace), as_target(target), as_target(against)
    split = split_of(by, neurons)
    if target is None:
        raise UsageError("say which token's logit the lens reads: target=")
    position = checked_position(position, len(trace.tokens))
    there = queries(trace, position, position + 1)
    goal = logit_direction(there, target, against, tokenizer or trace.tokenizer)
    named = points_of(there)
    readings = _readings(there, [stream for _, stream in named], target, against, tokenizer or trace.tokenizer)
    rows = list(_rows(there, goal, named, split))
    size = max(float(readings.abs().max()), *(abs(row.value) for row in rows), 1e-30)
    changes = torch.diff(readings, prepend=readings.new_zeros(1)).tolist()
    summed = [sum(row.value for row in rows if row.point == point) for point, _ in named]
    return LensChanges(
        rows=tuple(rows), points=tuple(name for name, _ in named), readings=readings,
        error=max(abs(a - b) for a, b in zip(summed, changes, strict=True)) / size, direction=goal.name,
        position=position, by=by, neurons=split.neurons, softcap=trace.weights.ends().softcap, model=trace.model, revision=trace.revision,
    )  # fmt: skip


def _readings(
    trace: Trace, streams: list[Tensor], target: Target, against: Target | None, tokenizer: object
) -> Float[Tensor, "point"]:
    """The lens's own readings; the last is the model's logit."""
    ends, logits = trace.weights.ends(), trace.logits
    if ends.W_U is None or logits is None:
        raise UnsupportedError("this model has no unembedding: its stream has no logits")
    ids, signs = target_weights(target, against, tokenizer, trace.weights.shape.d_vocab)
    read, bias = read_columns(ends.W_U, ids, signs), 0.0 if ends.b_U is None else float(ends.b_U[ids].double() @ signs)
    early = [apply_norm(stream.double(), ends.final_norm)[0] @ read + bias for stream in streams[:-1]]
    return torch.stack([*(each * ends.logit_scale for each in early), before_cap(logits[0, ids], ends) @ signs])


def _rows(trace: Trace, goal: Direction, named: list[tuple[str, Tensor]], split: Split) -> Iterator[LensChange]:
    """Rows of every step, the constants in the first."""
    norm = trace.weights.ends().final_norm
    at_end = norm_scale(trace.stream_final.double(), norm)
    directions = [goal.vectors * at_end / norm_scale(stream.double(), norm) for _, stream in named]
    yield from (LensChange(START, named[0][0], name, value) for name, value in goal.rows.items())
    yield from _written(START, named[0][0], embed_steps(trace, trace.stack), None, directions[0])
    for (n, (since, stream)), (k, (point, _)) in pairwise(enumerate(named)):
        old = float((stream.double() * directions[n]).sum())
        changes = _written(since, point, _steps(trace, since, split), stream.double(), directions[k])
        for row in changes:
            yield row if row.component != RESCALING else LensChange(since, point, RESCALING, row.value - old)


def _written(
    since: str, point: str, steps: Iterable[Step], before: Tensor | None, D: Float[Tensor, "1 d_model"]
) -> Iterator[LensChange]:
    """Everything along the direction at the later point; what stood there before as `rescaling`, not yet a change."""
    names, parts = ([], []) if before is None else ([RESCALING], [before[None]])
    for step in steps:
        if isinstance(step, Transport):
            parts = [step.carry(torch.cat(parts))]
        else:
            names, parts = [*names, *step.names], [*parts, step.values.double()]
    values = (torch.cat(parts) * D).sum(-1)[:, 0].tolist()
    yield from (LensChange(since, point, name, value) for name, value in zip(names, values, strict=True))


def _steps(trace: Trace, since: str, split: Split) -> Iterator[Step]:
    """What is written from a point to the next."""
    layer, at = int(since[1:].split(".")[0]), since.split(".")[1]
    if trace.weights.shape.placement == "parallel":
        return block_steps(trace, layer, split, trace.stack)
    return (middle_steps if at == "pre" else mlp_steps)(trace, layer, split, trace.stack)
