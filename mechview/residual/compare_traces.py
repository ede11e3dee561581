"""Two passes side by side: every component's write at every aligned position, and its share of a logit.

Both ledgers are walked together, a few rows at a time where the stream passes no norm, so that two long
prompts never have both ledgers in memory. Rows of a component at a pair of positions: `norm` of both writes,
`difference` (norm of b's write minus a's, where both streams have the same coordinates), `cosine` of the two
(1 - cos from the chord between the unit vectors, so that equal writes give exactly 0), and `share` along a
logit or direction, each side with its own frozen norm. Models of different shape have no head in common:
their layers stand together by relative depth, and only norms and shares of whole layers are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.checks import relative
from mechview.errors import UsageError
from mechview.models.one_stack import prefixed, stack_prefix
from mechview.models.trace import Trace
from mechview.models.weights import ModelWeights
from mechview.residual.align import Alignment, Pair, align, align_tokens
from mechview.residual.compare_rows import (
    NAN,
    Comparing,
    Comparison,
    Placer,
    Question,
    Row,
    alike,
    placer,
    position_in,
    relative_to,
)
from mechview.residual.embeddings import embed_steps
from mechview.residual.grains import Grain, Split
from mechview.residual.ledger import Rows, ledger
from mechview.residual.partners import Partner, by_depth, by_name, key_names
from mechview.residual.readout import before_cap, logit_direction, vector_direction, vocabulary_weights
from mechview.residual.rows import Write, block_steps
from mechview.residual.shares import along

DIFFERENT_SHAPES = (
    "the models have different shapes: layers are compared by relative depth, as wholes; single heads, vector "
    "differences and cosines do not exist between them"
)


@dataclass(frozen=True)
class Group:
    """Some rows of a ledger at the end of the stack."""

    names: tuple[str, ...]
    values: Float[Tensor, "component pos d_model"]


@dataclass(frozen=True)
class Grid:
    """Shares of every component at every position, the model's own total, and the completeness error."""

    names: tuple[str, ...]
    values: Float[Tensor, "component pos"]
    totals: Float[Tensor, "pos"]
    error: float


def compare_traces(a: Trace, b: Trace, question: Question) -> Comparison:
    """Two prompts, or one prompt in two models."""
    same_shape = alike(a.weights, b.weights)
    question = question if same_shape else replace(question, by="layer")
    aligned = align(a, b)
    at = question.position
    asked = None if question.quantity == "norm" else (position_in(a, at), position_in(b, at))
    notes = (aligned.note, "" if same_shape else DIFFERENT_SHAPES, caps_note([a.weights, b.weights], question))
    return compared(
        a, b, question, _with_asked(aligned.pairs, asked), same_shape,
        kind="prompts" if same_shape else "models by depth", aligned=aligned, asked=asked, notes=notes,
    )  # fmt: skip


def compare_positions(trace: Trace, a: int | Any, b: int | Any, question: Question) -> Comparison:
    """Two positions of one prompt."""
    a, b = position_in(trace, a), position_in(trace, b)
    pair = Pair(a, b, "same" if a == b else "asked")
    asked = None if question.quantity == "norm" else (a, b)
    notes = (caps_note([trace.weights], question),)
    return compared(trace, trace, question, (pair,), True, kind="positions", aligned=None, asked=asked, notes=notes)


def compared(
    a: Trace, b: Trace, question: Question, pairs: tuple[Pair, ...], same_shape: bool, *,
    kind: Comparing, aligned: Alignment | None, asked: tuple[int, int] | None, notes: tuple[str, ...],
) -> Comparison:  # fmt: skip
    """Two passes at given pairs of positions; `asked` is the pair at which a target was asked for."""
    meet = _Meeting(a, b, question.by, aligned, same_shape, pairs, placer(a.weights), placer(b.weights))
    errors: list[float] = []
    rows = list(meet.contributions(errors))
    totals = None
    if asked is not None:
        grids = share_grid(a, question), share_grid(b, question)
        rows += meet.shares(*grids)
        errors += [grid.error for grid in grids]
        totals = float(grids[0].totals[asked[0]]), float(grids[1].totals[asked[1]])
    identical = all(row.aligned == "same" and row.delta == 0.0 for row in rows)
    leading = "share" if asked else "difference" if same_shape else "norm"
    return Comparison(
        kind=kind, model_a=a.model, model_b=b.model, by=question.by, rows=tuple(rows), identical=identical,
        leading=(leading,), aligned=aligned, asked=asked, totals=totals, error=max(errors),
        tokens=(tuple(t.shown for t in a.tokens), tuple(t.shown for t in b.tokens)),
        notes=tuple(note for note in ("identical" if identical else "", *notes) if note),
    )  # fmt: skip


@dataclass(frozen=True)
class _Meeting:
    """Two traces, and what of one stands beside what of the other."""

    a: Trace
    b: Trace
    by: Grain
    aligned: Alignment | None
    same_shape: bool
    pairs: tuple[Pair, ...]
    place_a: Placer
    place_b: Placer

    def contributions(self, errors: list[float]) -> Iterator[Row]:
        """Rows of norms, differences and cosines; appends each side's completeness error."""
        sums = [torch.zeros_like(side.stream_final, dtype=torch.float64) for side in (self.a, self.b)]
        for group_a, group_b in self.groups():
            sums[0] += group_a.values.double().sum(0)
            sums[1] += group_b.values.double().sum(0)
            yield from self._of_group(group_a, group_b)
        errors += [relative(sums[0], self.a.stream_final), relative(sums[1], self.b.stream_final)]

    def groups(self) -> Iterator[tuple[Group, Group]]:
        """Rows of both sides, a few at a time where both models add in the same order and pass no norm."""
        if self.a is self.b:
            return ((group, group) for group in groups_of(self.a, self.by))
        kinds = [(trace.weights.shape.family, trace.weights.shape.placement) for trace in (self.a, self.b)]
        if self.same_shape and kinds[0] == kinds[1]:
            return zip(groups_of(self.a, self.by), groups_of(self.b, self.by), strict=True)
        return iter([(whole(self.a, self.by), whole(self.b, self.by))])

    def partners(self, names_a: Sequence[str], names_b: Sequence[str]) -> list[Partner]:
        if not self.same_shape:
            return by_depth(names_a, names_b, self.a.weights.shape, self.b.weights.shape, self.a.stack, self.b.stack)
        if self.by != "source" or self.aligned is None:
            return by_name(names_a, names_b)
        crossed = self.a.source_tokens and align_tokens(
            self.a.source_tokens, self.b.source_tokens, self.a.tokenizer, self.b.tokenizer
        )
        return by_name(names_a, names_b, key_names(self.aligned, crossed or self.aligned))

    def _of_group(self, a: Group, b: Group) -> Iterator[Row]:
        partners = self.partners(a.names, b.names)
        norms_a, norms_b = (torch.linalg.vector_norm(side.values.double(), dim=-1).tolist() for side in (a, b))
        both = [n for n, partner in enumerate(partners) if partner.a is not None and partner.b is not None]
        found = dict(zip(both, _differences(a, b, [partners[n] for n in both], self._both()), strict=True))
        for n, partner in enumerate(partners):
            yield from self._rows("norm", partner, norms_a, norms_b)
            if n in found and self.same_shape:
                yield from self._joint(partner, norms_a, norms_b, *found[n])

    def _both(self) -> list[tuple[int, int]]:
        return [(pair.a, pair.b) for pair in self.pairs if pair.a is not None and pair.b is not None]

    def _rows(self, quantity: str, partner: Partner, a: list[list[float]], b: list[list[float]]) -> Iterator[Row]:
        """Rows of a number that each side has of its own; delta is b - a."""
        for pair in self.pairs:
            side_a = NAN if partner.a is None or pair.a is None else a[partner.a][pair.a]
            side_b = NAN if partner.b is None or pair.b is None else b[partner.b][pair.b]
            yield self._row(quantity, partner, pair, side_a, side_b, side_b - side_a, side_a)

    def _joint(
        self, partner: Partner, a: list[list[float]], b: list[list[float]], difference: list[float], chord: list[float]
    ) -> Iterator[Row]:
        """Rows of a number that both sides have together."""
        pairs = [pair for pair in self.pairs if pair.a is not None and pair.b is not None]
        for pair, apart, half_square in zip(pairs, difference, chord, strict=True):
            side_a, side_b = a[partner.a or 0][pair.a or 0], b[partner.b or 0][pair.b or 0]
            yield self._row("difference", partner, pair, side_a, side_b, apart, side_a)
            if side_a and side_b:
                yield self._row("cosine", partner, pair, 1.0, 1.0 - half_square, -half_square, 1.0)

    def _row(
        self, quantity: str, partner: Partner, pair: Pair, side_a: float, side_b: float, delta: float, reference: float
    ) -> Row:
        aligned = pair.kind if partner.aligned == "same" else partner.aligned
        place = self.place_b if partner.a is None else self.place_a
        return Row(
            prefixed(partner.component, stack_prefix(self.a.weights)), quantity, side_a, side_b, delta, relative_to(delta, reference),
            **place(partner.component), position_a=pair.a, position_b=pair.b, aligned=aligned,
        )  # fmt: skip

    def shares(self, a: Grid, b: Grid) -> Iterator[Row]:
        values = a.values.tolist(), b.values.tolist()
        for partner in self.partners(a.names, b.names):
            yield from self._rows("share", partner, *values)


def _differences(
    a: Group, b: Group, partners: list[Partner], pairs: list[tuple[int, int]]
) -> list[tuple[list[float], list[float]]]:
    """Per partner: norms of b - a at each pair of positions, and 1 - cosine."""
    if a.values.shape[-1] != b.values.shape[-1]:
        return [([], [])] * len(partners)
    x = a.values[[p.a for p in partners]][:, [i for i, _ in pairs]].double()
    y = b.values[[p.b for p in partners]][:, [j for _, j in pairs]].double()
    apart = torch.linalg.vector_norm(y - x, dim=-1)
    unit_x, unit_y = torch.nn.functional.normalize(x, dim=-1), torch.nn.functional.normalize(y, dim=-1)
    chord = (unit_y - unit_x).square().sum(-1) / 2
    return list(zip(apart.tolist(), chord.tolist(), strict=True))


def groups_of(trace: Trace, by: Grain) -> Iterator[Group]:
    """A ledger in parts that are already final; in one part where every row passes the norms of later blocks."""
    stack = trace.stack
    norms = trace.weights.attention(0, stack).stream_norm.kind, trace.weights.mlp(0, stack).stream_norm.kind
    if norms != ("none", "none"):
        return iter([whole(trace, by)])
    start = Rows()
    for step in embed_steps(trace, stack):
        start.take(step)
    layers = range(trace.weights.shape.layers(stack))
    steps = chain.from_iterable(block_steps(trace, layer, Split(by), stack) for layer in layers)
    added = (Group(step.names, step.values) for step in steps if isinstance(step, Write))
    return chain([Group(tuple(start.names), start.values)], added)


def whole(trace: Trace, by: Grain) -> Group:
    parts = ledger(trace, by)
    return Group(parts.components, parts.values)


def share_grid(trace: Trace, question: Question) -> Grid:
    """Shares at every position of one pass.

    Raises:
        UsageError: neither target nor direction. UnsupportedError: logits that have no shares.
    """
    target, against = question.target, question.against
    if question.direction is not None:
        goal = vector_direction(trace, question.direction)
        totals = (trace.stream_final.double() * goal.vectors).sum(-1)
    elif target is not None and trace.logits is not None:
        goal = logit_direction(trace, target, against, trace.tokenizer)
        weight = vocabulary_weights(trace, target, against, trace.tokenizer)
        totals = before_cap(trace.logits, trace.weights.ends()) @ weight.to(trace.logits.device)
    else:
        raise UsageError("shares need a direction, or a target token and a model with logits")
    names, values = along(trace, goal, Split(question.by))
    size = torch.maximum(totals.abs(), values.abs().amax(0)).clamp(min=1e-30)
    return Grid(tuple(names), values, totals, float(((values.sum(0) - totals).abs() / size).max()))


def _with_asked(pairs: tuple[Pair, ...], asked: tuple[int, int] | None) -> tuple[Pair, ...]:
    """The asked positions stand together even where the alignment does not put them."""
    if asked is None or any((pair.a, pair.b) == asked for pair in pairs):
        return pairs
    return (*pairs, Pair(*asked, "asked"))


def caps_note(sides: Sequence[ModelWeights], question: Question) -> str:
    """What to say of a final soft-cap, if shares of a logit are asked for and there is one."""
    caps = [weights.ends().softcap for weights in sides]
    capped = question.target is not None and any(cap is not None for cap in caps)
    return "shares are of the logit before the final soft-cap" if capped else ""
