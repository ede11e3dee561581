"""Changes of the logit lens as a frame: one row a component and step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mechview.residual.lens_changes import LensChanges
from mechview.results import frame_of
from mechview.tables.residual import places
from mechview.tables.schemas import typed


@frame_of(LensChanges)
def lens_changes_frame(found: LensChanges) -> pd.DataFrame:
    """The `lens_changes` table."""
    readings = found.readings.double().cpu().numpy()
    number = {point: n for n, point in enumerate(found.points)}
    at = [number[row.point] for row in found.rows]
    columns = {name: [getattr(row, name) for row in found.rows] for name in ("since", "point", "component", "value")}
    return typed(
        columns
        | places(tuple(row.component for row in found.rows))
        | {
            "model": found.model,
            "revision": found.revision,
            "pos": found.position,
            "target": found.direction,
            "change": np.diff(readings, prepend=0.0)[at],
            "logit": readings[at],
            "by": found.by,
            "neurons": found.neurons,
            "completeness_error": found.error,
        },
        "lens_changes",
    )
