"""Two sets of prompts in one model: per component the mean of its value on each, and what differs.

The value is the share along each prompt's own target (or a common direction), otherwise the norm of the
write, at one position of each prompt. One prompt is run at a time and only its column of numbers is kept, so
memory does not grow with the number of prompts; prompts are never padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mechview.errors import UsageError
from mechview.models.load import Model
from mechview.models.one_stack import prefixed, stack_prefix
from mechview.models.prompt_tables import Case
from mechview.models.trace import Trace
from mechview.models.tracing import Prompt
from mechview.models.weights import ModelWeights
from mechview.residual.compare_rows import Comparison, Question, Row, placer, position_in, relative_to
from mechview.residual.compare_statistics import Tested, mean_differences
from mechview.residual.compare_traces import caps_note, groups_of
from mechview.residual.shares import shares

Item = Case | Prompt | Trace
Array = np.ndarray


@dataclass(frozen=True)
class Column:
    """Every component's value on one prompt, and the completeness error of shares (0 for norms)."""

    names: tuple[str, ...]
    values: Array
    error: float


def compare_sets(
    a: Sequence[Item], b: Sequence[Item], model: Model | None, question: Question, *,
    paired: bool, draws: int, seed: int,
) -> Comparison:  # fmt: skip
    """Two sets of prompts (or traces, or `Case`s with targets of their own)."""
    if question.by == "source":
        raise UsageError("by='source' names positions, which prompts of a set do not share: use head or layer")
    cases = [cases_of(side) for side in (a, b)]
    question, readers = common_question([*cases[0], *cases[1]], question), [Reader(), Reader()]
    sides = [list(columns(side, model, question, one)) for side, one in zip(cases, readers, strict=True)]
    names, values_a, values_b = stacked(*sides)
    found = mean_differences(values_a, values_b, paired=paired, draws=draws, seed=seed)
    weights = readers[0].read
    rows = set_rows(names, question.quantity, values_a, values_b, found, weights, "paired" if paired else "unpaired")
    identical = values_a.shape == values_b.shape and bool((values_a == values_b).all())
    notes = ("identical" if identical else "", *found.notes, caps_note([weights], question))
    return Comparison(
        kind="sets", model_a=readers[0].model, model_b=readers[1].model, by=question.by, rows=tuple(rows),
        identical=identical, leading=(question.quantity,), error=max(c.error for side in sides for c in side),
        method=found.method, notes=tuple(note for note in notes if note),
    )  # fmt: skip


@dataclass
class Reader:
    """Who read the prompts of a side: the model's name and its weights, and nothing of a pass."""

    model: str = ""
    weights: ModelWeights | None = None

    def meet(self, seen: Trace) -> None:
        self.model, self.weights = self.model or seen.model, self.weights or seen.weights

    @property
    def read(self) -> ModelWeights:
        if self.weights is None:
            raise UsageError("a set of prompts is empty")
        return self.weights


def columns(cases: Iterable[Case], model: Model | None, question: Question, reader: Reader) -> Iterator[Column]:
    """Values of each prompt in turn; its pass is gone before the next begins."""
    return (_column_of(case, model, question, reader) for case in cases)


def _column_of(case: Case, model: Model | None, question: Question, reader: Reader) -> Column:
    seen = passed(case.prompt, model, question)
    reader.meet(seen)
    own = question if case.target is None else replace(question, target=case.target, against=case.against)
    return column(seen, own)


def passed(prompt: Prompt | Trace, model: Model | None, question: Question) -> Trace:
    if isinstance(prompt, Trace):
        return question.of(prompt)
    if model is None:
        raise UsageError("prompts need a model to run them: give model=")
    return question.passed(model, prompt)


def column(seen: Trace, question: Question) -> Column:
    """Every component's value at the asked position of one pass."""
    position = position_in(seen, question.position)
    if question.quantity == "share":
        found = shares(seen, question.target, question.against, position, question.by, direction=question.direction)
        return Column(found.components, found.values.double().cpu().numpy(), found.error)
    names: list[str] = []
    norms: list[Array] = []
    for group in groups_of(seen, question.by):
        names += group.names
        norms.append(torch.linalg.vector_norm(group.values[:, position].double(), dim=-1).cpu().numpy())
    return Column(tuple(names), np.concatenate(norms), 0.0)


def stacked(a: Sequence[Column], b: Sequence[Column]) -> tuple[tuple[str, ...], Array, Array]:
    """Names, and values `[component, prompt]` of both sides.

    Raises:
        UsageError: sides whose components differ.
    """
    names = a[0].names
    if any(each.names != names for each in (*a, *b)):
        raise UsageError("the prompts do not share their components: sets are compared within one model")
    values_a, values_b = (np.stack([each.values for each in side], axis=1) for side in (a, b))
    return names, values_a, values_b


def set_rows(
    names: Sequence[str], quantity: str, a: Array, b: Array, found: Tested, weights: ModelWeights, aligned: str
) -> Iterator[Row]:
    """One row per component: means of both sides and what was tested."""
    place, prefix = placer(weights), stack_prefix(weights)
    means = a.mean(1).tolist(), b.mean(1).tolist()
    tests = (each.tolist() for each in (found.delta, found.lo, found.hi, found.p, found.p_adjusted))
    for name, side_a, side_b, delta, lo, hi, p, adjusted in zip(names, *means, *tests, strict=True):
        yield Row(
            prefixed(name, prefix), quantity, side_a, side_b, delta, relative_to(delta, side_a), **place(name),
            lo=lo, hi=hi, p=p, p_adjusted=adjusted, aligned=aligned,
        )  # fmt: skip


def cases_of(items: Sequence[Item]) -> list[Case]:
    """Prompts as cases.

    Raises:
        UsageError: there are none.
    """
    if not items:
        raise UsageError("a set of prompts is empty")
    return [item if isinstance(item, Case) else Case(item) for item in items]


def common_question(cases: Sequence[Case], question: Question) -> Question:
    """The question of the whole comparison: either every prompt has a target, or none."""
    own = [case.target is not None for case in cases]
    if question.quantity == "share" or not any(own):
        return question
    if not all(own):
        raise UsageError(f"{own.count(True)} of {len(own)} prompts have a target: give one to all, or a common target=")
    return replace(question, target=cases[0].target, against=cases[0].against)
