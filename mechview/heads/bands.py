"""The band that a null leaves: where its next draw would fall.

Draws are taken as normal and their spread as estimated, so Student's t widens the band where few draws were
made. Frames hold mean, sd and number of draws; whoever prints or draws a band computes it here.
"""

from __future__ import annotations

import math

from scipy.stats import t as student

COVERED = 0.95


def null_band(mean: float, sd: float, n: int) -> tuple[float, float]:
    """Where the next draw of the null falls with 95 %: `mean ± t(n − 1) sd √(1 + 1/n)`; NaN below two draws."""
    if n < 2:
        return math.nan, math.nan
    half = float(student.ppf(0.5 + COVERED / 2, n - 1)) * sd * math.sqrt(1 + 1 / n)
    slack = 1e-12 + 1e-9 * abs(mean)  # rounding, where every draw of a null is the same
    return mean - half - slack, mean + half + slack
