"""Two sets of numbers per component: the difference of their means, its interval, and whether chance does it.

Intervals are bias-corrected and accelerated bootstrap ones (BCa; Efron 1987) at 95 %; p values come from
permutations (of set membership, or of signs for paired sets), exact where all of them are fewer than the
draws; both from `scipy.stats`. Over components p is corrected by Benjamini and Hochberg (1995), leaving out
those whose values are all one number: nothing can be tested there. One prompt on a side gives no interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from mechview.errors import UsageError

CONFIDENCE = 0.95
LEVEL = 0.05
BATCH_NUMBERS = 2**22  # numbers of one batch of resamples: 32 MB
Array = np.ndarray


@dataclass(frozen=True)
class Tested:
    """Per component: mean of b minus mean of a, bounds, p, corrected p; NaN where there is none."""

    delta: Array
    lo: Array
    hi: Array
    p: Array
    p_adjusted: Array
    method: str
    notes: tuple[str, ...]


def mean_differences(a: Array, b: Array, *, paired: bool, draws: int, seed: int) -> Tested:
    """Difference of the means of b and a, `[component, prompt]` each.

    Args:
        paired: column n of a and column n of b belong together.
        draws: resamples, and permutations.

    Raises:
        UsageError: paired sets of unequal length, an empty set, or no draws.
    """
    _check(a, b, paired, draws)
    samples = (b - a,) if paired else (b, a)
    delta = _difference(*samples)
    nothing = np.full_like(delta, np.nan)
    if min(a.shape[1], b.shape[1]) < 2:
        note = "a set of one prompt has no spread: no intervals and no p values"
        return Tested(delta, nothing, nothing, nothing, nothing, "difference alone", (note,))
    generator = np.random.default_rng(seed)
    lo, hi = _interval(samples, delta, draws, generator)
    p = _p_values(samples, paired, draws, generator)
    movable = p < 2.0
    adjusted = np.ones_like(p)
    adjusted[movable] = stats.false_discovery_control(p[movable], method="bh")
    p = np.minimum(p, 1.0)
    method = (
        f"{CONFIDENCE:.0%} BCa bootstrap intervals; {'paired sign' if paired else 'two-sample'} permutation test; "
        f"Benjamini-Hochberg over {int(movable.sum())} components; {draws} draws, seed {seed}"
    )
    return Tested(delta, lo, hi, p, adjusted, method, _too_few(int(movable.sum()), draws))


def _check(a: Array, b: Array, paired: bool, draws: int) -> None:
    if not a.shape[1] or not b.shape[1]:
        raise UsageError("a set of prompts is empty")
    if paired and a.shape != b.shape:
        raise UsageError(f"paired sets need one length; these have {a.shape[1]} and {b.shape[1]} prompts")
    if draws < 1:
        raise UsageError(f"draws={draws}: at least one is needed")


def _difference(*samples: Array, axis: int = -1) -> Array:
    """Mean of the differences, or difference of the means."""
    first, *rest = (sample.mean(axis) for sample in samples)
    return first - rest[0] if rest else first


def _interval(
    samples: tuple[Array, ...], delta: Array, draws: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Bounds of the difference; where no resample can change it, the difference itself."""
    lo, hi = delta.copy(), delta.copy()
    spread = np.any([np.ptp(sample, axis=-1) > 0 for sample in samples], axis=0)
    if spread.any():
        found = stats.bootstrap(
            tuple(sample[spread] for sample in samples), _difference, n_resamples=draws, vectorized=True, axis=-1,
            batch=_batch(samples, draws), confidence_level=CONFIDENCE, method="BCa", rng=generator,
        ).confidence_interval  # fmt: skip
        lo[spread], hi[spread] = found.low, found.high
    return lo, hi


def _p_values(samples: tuple[Array, ...], paired: bool, draws: int, generator: np.random.Generator) -> Array:
    """Two-sided p; 2 marks components whose values are all one number."""
    together = np.concatenate(samples, axis=-1)
    movable = np.any(together != 0, axis=-1) if paired else np.ptp(together, axis=-1) > 0
    p = np.full(len(together), 2.0)
    if movable.any():
        p[movable] = stats.permutation_test(
            tuple(sample[movable] for sample in samples), _difference, n_resamples=draws, vectorized=True, axis=-1,
            permutation_type="samples" if paired else "independent", batch=_batch(samples, draws), rng=generator,
        ).pvalue  # fmt: skip
    return p


def _batch(samples: tuple[Array, ...], draws: int) -> int:
    return min(draws, max(1, BATCH_NUMBERS // sum(sample.size for sample in samples)))


def _too_few(components: int, draws: int) -> tuple[str, ...]:
    """What the correction makes of the smallest p that so many draws can give, if only one component differs."""
    smallest = components / (draws + 1)
    if smallest <= LEVEL:
        return ()
    return (
        f"{draws} draws give no p below {1 / (draws + 1):.1g}: a single component among {components} cannot fall "
        f"below {LEVEL} after correction; {int(components / LEVEL)} draws could show it",
    )
