"""Verdicts on a number by its nulls: informative, weak, vacuous, or not applicable (SPIN.md, C.3).

`tokens` is a null that breaks only which token goes with which (later writes of another token, attention
shuffled inside its row); `weights` is the same number in copies of the model whose weight matrices were
permuted entry by entry, on the same prompts. A number that such a copy has as well says nothing about what was
learned, however large it is. Intervals are 95 % percentile bootstraps over prompts; where there is one prompt only,
over blocks of 16 tokens, or a jackknife over them. A number without an interval is never called informative.
Nothing here knows what it judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

DRAWS = 400
NORMAL = 1.959964  # standard deviations that hold 95 %
SPREAD = 2.0  # standard deviations of a null on either side of its mean


class Verdict(StrEnum):
    """What a number is worth; the sentence is in `MEANING`."""

    informative = "informative"
    weak = "weak"
    vacuous = "vacuous"
    not_applicable = "not-applicable"


MEANING = {
    Verdict.informative: "beyond models with permuted weights, and on the same side when tokens count alike",
    Verdict.weak: "beyond other tokens, but not, or for want of an interval not surely, beyond permuted weights",
    Verdict.vacuous: "other tokens and models with permuted weights have it too",
    Verdict.not_applicable: "there is no admissible null for it here",
}


@dataclass(frozen=True)
class Null:
    """Mean and spread of a null over its draws; `n` = 0 where there is none."""

    mean: float = math.nan
    sd: float = math.nan
    n: int = 0


@dataclass(frozen=True)
class Measured:
    """A number with its interval and both nulls; `even` is the same with every token counting alike."""

    value: float
    lo: float = math.nan
    hi: float = math.nan
    tokens: Null = Null()
    weights: Null = Null()
    even: float | None = None

    @property
    def verdict(self) -> Verdict:
        if not math.isfinite(self.value) or self.weights.n == self.tokens.n == 0:
            return Verdict.not_applicable
        decided = beyond(self, self.weights) and same_side(self)
        if decided and not math.isnan(self.lo):
            return Verdict.informative
        if decided or beyond(self, self.tokens):
            return Verdict.weak
        return Verdict.vacuous


def beyond(found: Measured, null: Null) -> bool:
    """Whether the whole interval lies outside the null's own spread."""
    if null.n == 0 or not math.isfinite(null.mean):
        return False
    lo, hi = (found.value if math.isnan(end) else end for end in (found.lo, found.hi))
    spread = SPREAD * (0.0 if math.isnan(null.sd) else null.sd)
    return lo > null.mean + spread or hi < null.mean - spread


def same_side(found: Measured) -> bool:
    """Whether the number lies on the same side of the weight null when every token counts alike."""
    if found.even is None:
        return True
    return (found.even - found.weights.mean) * (found.value - found.weights.mean) > 0


def null_of(draws: Sequence[float]) -> Null:
    """The null that these draws make; draws that are not numbers are left out."""
    kept = [float(value) for value in draws if math.isfinite(value)]
    sd = float(np.std(kept, ddof=1)) if len(kept) > 1 else math.nan
    return Null(float(np.mean(kept)) if kept else math.nan, sd, len(kept))


def bootstrap(
    groups: Float[Tensor, "_group *shape"],
    statistic: Callable[[Tensor], Tensor],
    generator: torch.Generator,
    draws: int = DRAWS,
) -> tuple[Tensor, Tensor]:
    """2.5 and 97.5 % points of a statistic of the sum over groups, groups drawn with replacement.

    With a single group there is no spread to see: both ends are NaN.
    """
    count = len(groups)
    if count < 2:
        nan = torch.full_like(statistic(groups.sum(0)), math.nan)
        return nan, nan
    chosen = torch.randint(count, (draws, count), generator=generator)
    weights = torch.zeros(draws, count, dtype=groups.dtype).scatter_add_(
        1, chosen, torch.ones_like(chosen, dtype=groups.dtype)
    )
    found = torch.stack([statistic(torch.tensordot(one, groups, 1)) for one in weights])
    ends = torch.quantile(found, torch.tensor([0.025, 0.975], dtype=found.dtype), dim=0)
    return ends[0], ends[1]


def jackknife(value: float, without: Sequence[float]) -> tuple[float, float]:
    """95 % interval of a number from what it is without each block of the data (Tukey 1958)."""
    count, left = len(without), np.asarray(without, dtype=float)
    spread = math.sqrt((count - 1) / count * float(np.square(left - left.mean()).sum()))
    return value - NORMAL * spread, value + NORMAL * spread
