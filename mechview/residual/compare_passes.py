"""One set of prompts in two models: what each component contributes in one and in the other.

Both models run one prompt at a time, and only numbers are kept: every component's value at the asked position
(share or norm) on both sides and, where both streams have the same coordinates, the norm of the difference of
its writes. Prompts pair the sides: intervals and p values are of the differences within prompts. A difference
of writes has no sign, so no test: its mean over the prompts is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mechview.errors import UsageError
from mechview.models.load import Model
from mechview.models.prompt_tables import Case
from mechview.models.trace import Trace
from mechview.residual.align import DIFFERENT_TOKENIZERS, Pair, one_vocabulary
from mechview.residual.compare_rows import Comparison, Question, Row, alike, position_in, relative_to
from mechview.residual.compare_sets import Item, cases_of, common_question
from mechview.residual.compare_statistics import mean_differences
from mechview.residual.compare_traces import caps_note, compared

Array = np.ndarray
Key = tuple[str, str]
SIDES = ("side_a", "side_b", "delta")


@dataclass(frozen=True)
class Passes:
    """Rows of contributions, and what a reader must know of them."""

    rows: tuple[Row, ...]
    identical: bool
    error: float
    method: str
    notes: tuple[str, ...]


def compare_passes(a: Model, b: Model, prompts: Sequence[Item], question: Question, *, draws: int, seed: int) -> Passes:
    """Contributions of two models on the same prompts.

    Raises:
        UsageError: no prompts, or traces instead of prompts (those were run by one model).
    """
    cases = cases_of(prompts)
    question = common_question(cases, question)
    met = _Met()
    for n, case in enumerate(cases):
        met.take(_compared(a, b, case, question), n, len(cases))
    rows, method, notes = _together(met, question.quantity, draws, seed)
    return Passes(tuple(rows), met.identical, met.error, method, tuple(dict.fromkeys((*notes, *met.notes))))


def _compared(a: Model, b: Model, case: Case, question: Question) -> Comparison:
    """One prompt in both models; the passes end with it."""
    if isinstance(case.prompt, Trace):
        raise UsageError("a trace was run by one model already: give two models their prompts as text or ids")
    own = question if case.target is None else replace(question, target=case.target, against=case.against)
    return _one(question.passed(a, case.prompt), question.passed(b, case.prompt), own)


@dataclass
class _Met:
    """What is kept of the prompts: the rows of the first, and three numbers a row of each."""

    rows: dict[Key, Row] = field(default_factory=dict)
    values: dict[Key, Array] = field(default_factory=dict)
    identical: bool = True
    error: float = 0.0
    notes: tuple[str, ...] = ()

    def take(self, one: Comparison, n: int, count: int) -> None:
        if n == 0:
            self.rows = {(row.component, row.quantity): row for row in one.rows}
            self.values = {key: np.full((3, count), np.nan) for key in self.rows}
        for row in one.rows:
            if (row.component, row.quantity) in self.values:
                self.values[row.component, row.quantity][:, n] = [getattr(row, side) for side in SIDES]
        self.identical, self.error = self.identical and one.identical, max(self.error, one.error)
        self.notes = tuple(dict.fromkeys((*self.notes, *(note for note in one.notes if note != "identical"))))


def _one(a: Trace, b: Trace, question: Question) -> Comparison:
    """Both models at the asked position of one prompt."""
    position = position_in(a, question.position), position_in(b, question.position)
    pair = Pair(*position, "same" if a.tokens == b.tokens else "asked")
    asked = None if question.quantity == "norm" else position
    spoken = (
        "" if one_vocabulary(a.tokenizer, b.tokenizer) else f"{DIFFERENT_TOKENIZERS}: each model reads its own tokens"
    )
    return compared(
        a, b, question, (pair,), alike(a.weights, b.weights),
        kind="models", aligned=None, asked=asked, notes=(spoken, caps_note([a.weights, b.weights], question)),
    )  # fmt: skip


def _together(met: _Met, quantity: str, draws: int, seed: int) -> tuple[list[Row], str, tuple[str, ...]]:
    """One row per component: means over prompts, tested where the quantity has a sign."""
    first, values = met.rows, met.values
    signed = [key for key in first if key[1] == quantity and np.isfinite(values[key]).all()]
    a, b = (np.stack([values[key][side] for key in signed]) for side in (0, 1))
    tests = mean_differences(a, b, paired=True, draws=draws, seed=seed)
    columns = zip(
        signed, tests.lo.tolist(), tests.hi.tolist(), tests.p.tolist(), tests.p_adjusted.tolist(), strict=True
    )
    bounds = {key: {"lo": lo, "hi": hi, "p": p, "p_adjusted": adjusted} for key, lo, hi, p, adjusted in columns}
    rows = []
    for key, row in first.items():
        if key[1] in (quantity, "difference"):
            side_a, side_b, delta = values[key].mean(1).tolist()
            means = {"side_a": side_a, "side_b": side_b, "delta": delta, "rel": relative_to(delta, side_a)}
            rows.append(replace(row, position_a=None, position_b=None, **means, **bounds.get(key, {})))
    return rows, tests.method, tests.notes
