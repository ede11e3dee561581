"""Effects over a set of prompts as a frame: one row a component and quantity, with its interval."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd

from mechview.residual.effect_sets import EffectSet
from mechview.results import frame_of
from mechview.tables.schemas import SCHEMAS, typed


@frame_of(EffectSet)
def effect_set_frame(found: EffectSet) -> pd.DataFrame:
    """The `effect_sets` table."""
    shared = {
        "model": found.model, "revision": found.revision, "kind": found.kind, "n": found.n, "error": found.error,
    }  # fmt: skip
    records = [asdict(row) for row in found.rows]
    columns = {name: [r[name] for r in records] for name in SCHEMAS["effect_sets"] if name not in shared}
    return typed(columns | shared, "effect_sets")
