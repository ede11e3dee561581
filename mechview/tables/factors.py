"""One head's factors as a frame: every singular value of its pattern and of its message, as in the `svd` table."""

from __future__ import annotations

import pandas as pd

from mechview.factors import HeadFactors
from mechview.heads.table import HeadTable, layer_rows
from mechview.results import frame_of
from mechview.tables.heads import svd_frame


@frame_of(HeadFactors)
def factors_frame(factors: HeadFactors) -> pd.DataFrame:
    """The `svd` table of one head; a rotary pattern is taken at offset 0, as its column `offset` says."""
    rows = tuple(layer_rows([factors]))
    dtype = str(factors.output.dtype).removeprefix("torch.")
    return svd_frame(HeadTable(factors.model, factors.revision, rows, nulls={}, folded=factors.folded, dtype=dtype))
