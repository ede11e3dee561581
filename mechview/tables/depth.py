"""Growth of the stream as a frame: one row a point and position."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mechview.residual.depth import Depth
from mechview.results import frame_of
from mechview.tables.schemas import typed


@frame_of(Depth)
def depth_frame(found: Depth) -> pd.DataFrame:
    """The `depth` table."""
    points, positions = found.norm.shape
    numbers = ("norm", "added", "cos_before", "cos_final")
    return typed(
        {
            "model": found.model,
            "revision": found.revision,
            "point": np.repeat(np.asarray(found.points, dtype=object), positions),
            "pos": np.tile(np.arange(positions), points),
            "first": np.tile(np.arange(positions) == 0, points),
        }
        | {name: getattr(found, name).cpu().numpy().flatten() for name in numbers},
        "depth",
    )
