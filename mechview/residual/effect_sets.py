"""Effects over a set of prompts: the mean of each component, its interval, and whether chance does it.

Ablation and activation patching on many prompts, one at a time. Intervals are BCa bootstrap ones over the
prompts, p values come from flips of sign (is the mean 0?), corrected over the components by Benjamini and
Hochberg: see `compare_statistics`. `rel` is a ratio of means, not a mean of ratios: of a patch, the restored
share of the mean gap between clean and corrupted; of an ablation, the share of the mean clean metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mechview.errors import UsageError
from mechview.models.intervene import BATCH
from mechview.models.load import Model
from mechview.models.prompt_tables import Case
from mechview.models.tracing import Bos, Prompt
from mechview.residual.compare_statistics import Tested, mean_differences
from mechview.residual.donors import Donors, donors_of
from mechview.residual.effects import Effects, effects
from mechview.residual.patching import DENOISING, Patching, patch
from mechview.residual.readout import Target
from mechview.results import Result

Array = np.ndarray
ABLATION = ("direct", "total", "difference")
PATCH = ("change",)


@dataclass(frozen=True)
class EffectMean:
    """One quantity of one component over the prompts, in logits; NaN bounds where nothing can be said."""

    component: str
    stack: str
    layer: int
    head: int | None
    quantity: str
    mean: float
    lo: float
    hi: float
    rel: float
    p: float
    p_adjusted: float


@dataclass(frozen=True)
class EffectSet(Result):
    """Means over `n` prompts. `values[quantity]` is `[component, prompt]`; `baseline` is what `rel` is over.

    `error` is the largest, over the prompts, of a pass in which nothing was changed.
    """

    rows: tuple[EffectMean, ...]
    values: dict[str, Array]
    kind: str
    leading: str
    n: int
    baseline: float
    error: float
    statistics: str
    notes: tuple[str, ...]
    model: str = ""
    revision: str | None = None

    def row(self, name: str, quantity: str | None = None) -> EffectMean:
        wanted = (name, quantity or self.leading)
        found = next((row for row in self.rows if (row.component, row.quantity) == wanted), None)
        if found is None:
            raise UsageError(f"no {wanted[1]} effect of {name} was measured")
        return found

    def top(self, k: int = 10) -> list[EffectMean]:
        """The k components with the largest mean of the leading quantity, by size."""
        return sorted((r for r in self.rows if r.quantity == self.leading), key=lambda row: -abs(row.mean))[:k]


def effects_over(
    model: Model, cases: Iterable[Case], target: Target | None = None, against: Target | None = None, *,
    method: str = "zero", prompts: Sequence[Prompt] | Donors | None = None, by: str = "head", position: int = -1,
    bos: Bos = "auto", batch_size: int = BATCH, draws: int = 1000, seed: int = 0, components: Sequence[Any] | None = None,
) -> EffectSet:  # fmt: skip
    """Direct and total effects of ablation on each prompt's own answer, or on a common `target`.

    Args:
        prompts: where `mean` and `resample` take their replacements from. Unless given, a mean is over the set
            itself, and each prompt is resampled from its own corrupted one.
        draws, seed: resamples of intervals and tests, and their chance.

    Raises:
        UsageError: no prompts, or a prompt without a target.
    """
    asked = _asked(cases, target, against)
    shared = prompts
    if method == "mean" and prompts is None:
        shared = donors_of(model, method, [case.prompt for case in asked], bos=bos)
    elif method != "zero" and prompts is not None and not isinstance(prompts, Donors):
        shared = donors_of(model, method, prompts, bos=bos)

    def measured(case: Case) -> Effects:
        own = [_corrupted(case)] if method == "resample" and prompts is None else shared
        return effects(
            model, case.prompt, case.target, case.against, components, position, method, own, by, bos=bos,
            batch_size=batch_size,
        )  # fmt: skip

    return _over(asked, measured, ABLATION, f"{method} ablation", draws, seed)


def patch_over(
    model: Model, cases: Iterable[Case], target: Target | None = None, against: Target | None = None, *,
    what: str = "heads", position: int = -1, bos: Bos = "auto", batch_size: int = BATCH, draws: int = 1000, seed: int = 0,
) -> EffectSet:  # fmt: skip
    """Activation patching of each prompt into its own corrupted one, all positions of a component together.

    Raises:
        UsageError: no prompts, a prompt without a target or without a corrupted prompt, or the stream, whose
            positions prompts do not share.
    """
    if what == "stream":
        raise UsageError("prompts of a set do not share their positions: patch heads, attention or mlp over a set")

    def measured(case: Case) -> Patching:
        return patch(
            model, case.prompt, _corrupted(case), case.target, case.against, what, position=position, bos=bos,
            batch_size=batch_size,
        )  # fmt: skip

    return _over(_asked(cases, target, against), measured, PATCH, f"patching of {what}", draws, seed)


def _asked(cases: Iterable[Case], target: Target | None, against: Target | None) -> list[Case]:
    found = [case if target is None else replace(case, target=target, against=against) for case in cases]
    if not found:
        raise UsageError("a set of prompts is empty")
    if any(case.target is None for case in found):
        raise UsageError("a prompt of the set has no target: give each its own, or a common target")
    return found


def _corrupted(case: Case) -> Prompt:
    if case.corrupted is None:
        raise UsageError("a prompt of the set has no corrupted one: give each its own")
    return case.corrupted


def _over(
    cases: Sequence[Case], measured: Callable[[Case], Any], quantities: tuple[str, ...], kind: str, draws: int, seed: int
) -> EffectSet:  # fmt: skip
    """Each prompt in turn; only its numbers are kept."""
    columns: dict[str, list[list[float]]] = {quantity: [] for quantity in quantities}
    baselines, errors, first = [], [], None
    for case in cases:
        found = measured(case)
        first = found if first is None else first
        for quantity, kept in columns.items():
            kept.append([np.nan if (v := getattr(row, quantity)) is None else v for row in found.rows])
        errors.append(found.error)
        baselines.append(found.clean - getattr(found, "corrupted", 0.0))
    values = {quantity: np.array(kept, dtype=float).T for quantity, kept in columns.items()}
    there = {quantity: x for quantity, x in values.items() if not np.isnan(x).any()}
    tests = {q: mean_differences(np.zeros_like(x), x, paired=True, draws=draws, seed=seed) for q, x in there.items()}
    leading, any_test = quantities[1 if len(quantities) > 1 else 0], next(iter(tests.values()))
    notes = [*getattr(first, "notes", (DENOISING,)), *any_test.notes]
    return EffectSet(
        rows=tuple(_rows(first, tests, float(np.mean(baselines)))), values=values, kind=kind, leading=leading,
        n=len(cases), baseline=float(np.mean(baselines)), error=max(errors), statistics=any_test.method,
        notes=tuple(dict.fromkeys(notes)), model=first.model if first else "", revision=first.revision if first else None,
    )  # fmt: skip


def _rows(first: Any, tests: dict[str, Tested], baseline: float) -> Iterable[EffectMean]:
    for n, row in enumerate(first.rows):
        for quantity, found in tests.items():
            mean = float(found.delta[n])
            yield EffectMean(
                row.component, row.stack, row.layer, row.head, quantity, mean, float(found.lo[n]), float(found.hi[n]),
                mean / baseline if baseline else float("nan"), float(found.p[n]), float(found.p_adjusted[n]),
            )  # fmt: skip
