"""One set of prompts in two models: what each component contributes in one and in the other.

Both models run one prompt at a time, and only numbers are kept: every component's value at the asked position
(share or norm) on both sides and, where both streams have the same coordinates, the norm of the difference of
its writes. Prompts pair the sides: intervals and p values are of the differences within prompts. A difference
of writes has no sign, so no test: its mean over the prompts is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mechview.errors import UsageError
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.residual.align import DIFFERENT_TOKENIZERS, Pair, one_vocabulary
from mechview.residual.compare_rows import Comparison, Question, Row, alike, position_in, relative_to
from mechview.residual.compare_sets import Item, cases_of, common_question
from mechview.residual.compare_statistics import mean_differences
from mechview.residual.compare_traces import caps_note, compared

Array = np.ndarray
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
    found: list[Comparison] = []
    for case in cases:
        if isinstance(case.prompt, Trace):
            raise UsageError("a trace was run by one model already: give two models their prompts as text or ids")
        own = question if case.target is None else replace(question, target=case.target, against=case.against)
        traces = [question.passed(model, case.prompt) for model in (a, b)]
        found.append(_one(traces[0], traces[1], own))
    rows, method, notes = _together(found, question.quantity, draws, seed)
    return Passes(
        rows=tuple(rows),
        identical=all(each.identical for each in found),
        error=max(each.error for each in found),
        method=method,
        notes=tuple(dict.fromkeys((*notes, *(note for each in found for note in each.notes if note != "identical")))),
    )


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
        kind="models", aligned=None, asked=asked, notes=(spoken, caps_note([a, b], question)),
    )  # fmt: skip


def _together(
    found: Sequence[Comparison], quantity: str, draws: int, seed: int
) -> tuple[list[Row], str, tuple[str, ...]]:
    """One row per component: means over prompts, tested where the quantity has a sign."""
    first = {(row.component, row.quantity): row for row in found[0].rows}
    values = {key: np.empty((3, len(found))) for key in first}
    for n, each in enumerate(found):
        for row in each.rows:
            if (row.component, row.quantity) in values:
                values[row.component, row.quantity][:, n] = [getattr(row, side) for side in SIDES]
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
