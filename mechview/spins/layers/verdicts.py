"""From per-sequence numbers to a row with an interval, its nulls, and a verdict by rule.

Intervals are percentile bootstraps over sequences. A quantity *beats* a control when the 95 % interval of the
difference from its draws (paired over sequences, draws taken in turn) leaves out 0, and the difference is larger
than luck gives any row of the quantity, over all layers and heads, in 1 of 100 models. *Informative*: beats the
structure-destroying control N3 (where there is none, the permuted model N4) and, where couplings are shuffled, N1,
with the same sign in the token-weighted metric. *Weak*: beats some control only, or explains little. *Vacuous*:
beats none. *Not applicable*: no admissible structure-destroying null. Significance is not size: an excess of R^2
below 0.05 is at most weak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor

from mechview.spins.layers import controls as c
from mechview.spins.layers.balance import CURL
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.ladder_mlp import WITH_M1, WITH_M2, WITH_M3
from mechview.spins.layers.relaxation import FROZEN, HELD, RECOMPUTED

DRAWS = 400
SMALL = 0.05
LEVEL = 0.01  # chance that some row of a quantity beats a control by luck, all layers and heads together
DECISIVE: dict[str, tuple[str, ...]] = {
    CURL: (c.KEYS,),  # its other nulls are partly of activations
    **dict.fromkeys((WITH_M1, WITH_M2, WITH_M3), (c.WITHOUT,)),
}
LOWER = (FROZEN, HELD, RECOMPUTED)
Side = Literal["higher", "lower", "either"]
Series = list[tuple[float, float]]  # numerator and denominator of each sequence


class Verdict(StrEnum):
    """What a number says beyond its controls."""

    informative = "informative"
    weak = "weak"
    vacuous = "vacuous"
    not_applicable = "not-applicable"


@dataclass(frozen=True)
class SpinRow:
    """One number against one control. `decides` marks the control that the verdict rests on."""

    layer: int
    head: int | None
    quantity: str
    metric: str
    value: float
    lo: float
    hi: float
    null_name: str
    null: float
    null_lo: float
    null_hi: float
    n_null: int
    verdict: str
    decides: bool
    reason: str
    n_sequences: int


@dataclass(frozen=True)
class Against:
    """The comparison with one control: its draws, their mean, and the variance between them."""

    name: str
    values: Float[Tensor, "_draw _resample"]
    mean: float
    between: float
    difference: Float[Tensor, "_resample"]

    def beats(self, side: Side, rows: int) -> bool:
        lo, hi = _interval(self.difference)
        clear = abs(float(self.difference.mean())) > max(self.bar(rows), 1e-12)
        return clear and {"higher": lo > 0, "lower": hi < 0, "either": lo > 0 or hi < 0}[side]

    def bar(self, rows: int) -> float:
        """How far apart a number and its null must be where this many rows are judged.

        The spread of few draws is itself uncertain: Student's law, with the freedom of Welch and Satterthwaite.
        """
        draws, total = len(self.values), float(self.difference.var())
        if draws < 2:
            return _quantile(rows, 1e9) * total**0.5
        within, own = max(total - self.between, 0.0), self.between * (1 + 1 / draws)
        share = own / max(within + own, 1e-300)
        return _quantile(rows, (draws - 1) / max(share**2, 1e-9)) * (within + own) ** 0.5


@dataclass(frozen=True)
class Measured:
    """One real series with its resamples and every control."""

    value: float
    resamples: Float[Tensor, "_resample"]
    controls: tuple[Against, ...]
    count: int

    def named(self, prefix: str) -> list[Against]:
        return [one for one in self.controls if one.name.startswith(prefix)]


@dataclass(frozen=True)
class Judge:
    """The rule with its settings: resamples, layers of the model (for the correction), jackknife spreads."""

    generator: torch.Generator
    layers: int = 1
    draws: int = DRAWS
    spreads: dict[tuple[str, str], float] = field(default_factory=dict)

    def rows(self, layer: int, samples: Samples, fits: frozenset[str]) -> list[SpinRow]:
        """All rows of a layer."""
        controls = _controls(samples)
        measured = {
            key: self._measured(key, series, controls.get(key[:3], {}))
            for key, series in samples.series.items()
            if key.control == c.REAL
        }
        heads = max((key.head or 0 for key in measured), default=0) + 1
        found = []
        for key, one in measured.items():
            tw = measured.get(key._replace(metric="tw"), one)
            raw = measured.get(key._replace(metric="raw"), one)
            rows = self.layers * (heads if key.head is not None else 1)
            verdict, decides, reason = judge(key.quantity, raw, tw, key.quantity in fits, rows)
            found += _rows(layer, key, one, verdict, decides, reason)
        return found

    def _measured(self, key: Key, series: Series, nulls: dict[str, list[Series]]) -> Measured:
        own = _pairs(series)
        counts = self._counts(len(own))
        value = _ratio(own.sum(0))
        resamples = _ratio(counts @ own)
        if len(own) == 1:
            spread = self.spreads.get((key.quantity, key.metric), 0.0)
            resamples = resamples + spread * torch.randn(self.draws, generator=self.generator, dtype=torch.float64)
        controls = [_against(name, [*map(_pairs, nulls[name])], counts, resamples) for name in sorted(nulls)]
        return Measured(float(value), resamples, tuple(controls), len(own))

    def _counts(self, sequences: int) -> Float[Tensor, "_resample _sequence"]:
        chosen = torch.randint(0, sequences, (self.draws, sequences), generator=self.generator)
        return torch.zeros(self.draws, sequences, dtype=torch.float64).scatter_add_(
            1, chosen, torch.ones(chosen.shape, dtype=torch.float64)
        )


def judge(quantity: str, raw: Measured, tw: Measured, is_fit: bool, rows: int) -> tuple[Verdict, str, str]:
    """Verdict, the control it rests on, and the reason."""
    side: Side = "higher" if is_fit else "lower" if quantity in LOWER else "either"
    wanted = DECISIVE.get(quantity)
    decisive = [one for one in raw.controls if one.name in wanted] if wanted else raw.named("N3") or raw.named("N4")
    if not decisive:
        return Verdict.not_applicable, "", "there is no admissible null that destroys what it claims"
    shuffles, cheap = raw.named("N1"), [*raw.named("N1"), *raw.named("N2")]
    lost = [one for one in [*decisive, *shuffles] if not one.beats(side, rows)]
    nearest = min([*decisive, *shuffles], key=lambda one: abs(raw.value - one.mean))
    if not lost and not _stable(raw, tw, nearest):
        return Verdict.weak, nearest.name, "its sign against the null changes when tokens weigh alike"
    if not lost:
        return _sized(raw, nearest, is_fit)
    won = [one for one in [*cheap, *decisive] if one.beats(side, rows)]
    if not won:
        return Verdict.vacuous, lost[0].name, f"no more than {lost[0].name} gives"
    return Verdict.weak, lost[0].name, f"beats {won[0].name}, but not {lost[0].name}"


def _sized(raw: Measured, nearest: Against, is_fit: bool) -> tuple[Verdict, str, str]:
    excess = raw.value - nearest.mean
    if is_fit and excess < SMALL:
        return Verdict.weak, nearest.name, f"significant, but explains {excess:.3f} more than {nearest.name}"
    return Verdict.informative, nearest.name, f"differs from every control; the nearest is {nearest.name}"


def _stable(raw: Measured, tw: Measured, nearest: Against) -> bool:
    """The difference from the nearest control has one sign in both metrics."""
    same = [one for one in tw.controls if one.name == nearest.name]
    return not same or (raw.value - nearest.mean) * (tw.value - same[0].mean) > 0


def _controls(samples: Samples) -> dict[tuple[Any, ...], dict[str, list[Series]]]:
    """Draws of every control, by quantity, head and metric."""
    found: dict[tuple[Any, ...], dict[str, list[Series]]] = {}
    for key, series in samples.series.items():
        if key.control != c.REAL:
            found.setdefault(key[:3], {}).setdefault(key.control, []).append(series)
    return found


def _against(name: str, series: Sequence[Tensor], counts: Tensor, resamples: Tensor) -> Against:
    fits = [len(own) == counts.shape[1] for own in series]
    values = torch.stack([
        _ratio(counts @ own) if same else _ratio(own.sum(0)).expand(len(counts))
        for own, same in zip(series, fits, strict=True)
    ])  # fmt: skip
    turn = torch.arange(len(counts)) % len(values)
    means = torch.stack([_ratio(own.sum(0)) for own in series])
    between = float(means.var()) if len(means) > 1 else 0.0
    return Against(name, values, float(means.mean()), between, resamples - values[turn, torch.arange(len(counts))])


def _rows(layer: int, key: Key, one: Measured, verdict: Verdict, decides: str, reason: str) -> list[SpinRow]:
    lo, hi = _interval(one.resamples)
    none = (("", math.nan, math.nan, math.nan, 0),)
    nulls = tuple((a.name, a.mean, *_interval(a.values.flatten()), len(a.values)) for a in one.controls) or none
    return [
        SpinRow(
            layer=layer, head=key.head, quantity=key.quantity, metric=key.metric, value=one.value, lo=lo, hi=hi,
            null_name=name, null=mean, null_lo=low, null_hi=high, n_null=draws, verdict=verdict.value,
            decides=name == decides, reason=reason, n_sequences=one.count,
        )
        for name, mean, low, high, draws in nulls
    ]  # fmt: skip


def _pairs(pairs: Sequence[tuple[float, float]]) -> Float[Tensor, "_sequence 2"]:
    return torch.tensor(pairs, dtype=torch.float64)


def _ratio(sums: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch"]:
    den = sums[..., 1]
    return torch.where(den != 0, sums[..., 0] / torch.where(den != 0, den, torch.ones_like(den)), torch.zeros_like(den))


def _quantile(rows: int, freedom: float) -> float:
    return float(student.ppf(1 - LEVEL / 2 / max(rows, 1), freedom))


def _interval(values: Tensor) -> tuple[float, float]:
    ends = torch.quantile(values, torch.tensor([0.025, 0.975], dtype=values.dtype))
    return float(ends[0]), float(ends[1])
