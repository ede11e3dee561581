"""Numbers made small: attention as 16-bit codes, bytes split into planes, deflated, base64.

A code is `round(steps * (value - low) / (high - low))`; two codes are kept for NaN and for masked cells,
which are never shown alike. Where a page would be too large, codes have one byte and COARSE steps. The
browser inflates them itself when a head is looked at.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import numpy as np

STEPS = 65_000
COARSE = 250
ESCAPED = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def _kept_codes(steps: int) -> tuple[type, int, int]:
    """The type of a code, and the codes of NaN and of masked cells: the two largest."""
    kind: type = np.uint8 if steps < 254 else np.uint16
    last = int(np.iinfo(kind).max)
    return kind, last - 1, last


def coded(values: np.ndarray, seen: np.ndarray, low: float, high: float, steps: int = STEPS) -> str:
    """A matrix as text; cells that are not `seen` are masked, values that are not finite are NaN."""
    kind, nan, masked = _kept_codes(steps)
    span = high - low if high > low else 1.0
    finite = np.isfinite(values)
    scaled = np.rint(np.where(finite, (values - low) / span, 0.0).clip(0, 1) * steps)
    codes: np.ndarray = np.where(seen, np.where(finite, scaled, nan), masked).astype(kind).ravel()
    planes = codes if steps < 254 else np.concatenate([codes >> 8, codes & 255]).astype(np.uint8)
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def decoded(text: str, shape: tuple[int, int], low: float, high: float, steps: int = STEPS) -> np.ndarray:
    """What a reader gets back from `coded`: masked cells are -inf."""
    _, nan, masked = _kept_codes(steps)
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).astype(np.uint16)
    half = len(planes) // 2
    codes = (planes if steps < 254 else (planes[:half] << 8) | planes[half:]).reshape(shape)
    values = low + (high - low if high > low else 1.0) * codes / steps
    return np.select([codes == masked, codes == nan], [-np.inf, np.nan], values)


def number(value: Any, digits: int = 5) -> float | str | None:
    """A JSON value: rounded to significant digits; NaN and infinities by name, missing as null."""
    if value is None:
        return None
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{digits}g}")


def numbers(values: Any, digits: int = 5) -> list[float | str | None]:
    return [number(value, digits) for value in values]


def script_json(data: Any) -> str:
    """JSON that may stand in a script block: nothing in it can end the block or start a tag."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(ESCAPED)
