"""Comparisons, ablations and patches as frames: what differs between two sides, or between two passes."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mechview.residual.compare_rows import Comparison
from mechview.residual.effects import Effects
from mechview.residual.patching import Patching
from mechview.results import frame_of
from mechview.tables.schemas import SCHEMAS, typed


@frame_of(Comparison)
def compare_frame(comparison: Comparison) -> pd.DataFrame:
    """The `compare` table: one row a component, quantity and aligned pair of positions."""
    return _frame(comparison.records(), "compare", {})


@frame_of(Effects)
def effects_frame(effects: Effects) -> pd.DataFrame:
    """The `effects` table: direct and total effect of each component, and their difference."""
    return _frame(effects.records(), "effects", _about(effects))


@frame_of(Patching)
def patching_frame(patching: Patching) -> pd.DataFrame:
    """The `patching` table: one row a patched pass."""
    return _frame(patching.records(), "patching", _about(patching))


def _about(result: Any) -> dict[str, Any]:
    return {"model": result.model, "revision": result.revision, "error": result.error}


def _frame(records: list[dict[str, Any]], name: str, shared: dict[str, Any]) -> pd.DataFrame:
    columns = {column: [record.get(column) for record in records] for column in SCHEMAS[name] if column not in shared}
    return typed(columns | shared, name)
