"""Parity as a frame: every comparison of the factors with the model itself, one a row."""

from __future__ import annotations

import pandas as pd

from mechview.checks import TOLERANCE, Parity
from mechview.results import frame_of
from mechview.tables.schemas import typed

FIELDS = ("quantity", "stack", "layer", "head", "kv_head", "label", "error")


@frame_of(Parity)
def parity_frame(parity: Parity) -> pd.DataFrame:
    """The `parity` table; a NaN error has not passed."""
    columns = {name: [getattr(row, name) for row in parity.rows] for name in FIELDS}
    return typed(
        columns
        | {
            "passed": [bool(row.error < TOLERANCE) for row in parity.rows],
            "tolerance": TOLERANCE,
            "backend": parity.backend,
            "n_tokens": parity.n_tokens,
            "model": parity.manifest.get("model"),
            "revision": parity.manifest.get("revision"),
        },
        "parity",
    )
