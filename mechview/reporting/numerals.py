"""How numbers are written on a page: four digits, NaN and infinities by name, a true minus sign."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd


def written(value: Any) -> str:
    """Four significant digits; NaN and infinities by name, missing as a dash."""
    if value is None or value is pd.NA:
        return "–"
    value = float(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    small = abs(value) < 1e-3 or abs(value) >= 1e5
    return (f"{value:.1e}" if small else f"{value:.4g}").replace("-", "−")


def column_texts(values: np.ndarray, digits: int = 4) -> list[str]:
    """Values of one column with the same number of decimals, so that they align."""
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if len(finite) else 1.0
    decimals = min(max(digits - 1 - math.floor(math.log10(largest)), 0), 3) if largest > 0 else 0
    return [f"{value:.{decimals}f}".replace("-", "−") if math.isfinite(value) else written(value) for value in values]
