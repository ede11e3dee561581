"""A frame as an xarray dataset: key columns become axes, everything else variables along them.

Axes are the keys that tell rows apart. A column that others determine (the label of a layer and head) stays a
variable, or the dataset would be mostly empty. Where no keys tell rows apart, or where they would leave most of it
empty (sparse attention), the one axis is the row.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

KEYS = (
    "stack", "layer", "head", "label", "component", "query_component", "key_component", "point", "quantity", "metric", "side", "kind", "prompt_id", "index",
    "q_pos", "k_pos", "pos", "position",
)  # fmt: skip
EMPTIEST = 4  # cells for each row of the frame


def dataset(frame: pd.DataFrame) -> Any:
    """The frame with named axes; NaN where a combination of keys has no row."""
    plain = frame.assign(**{name: _plain(frame[name]) for name in frame.columns})
    keys = _keys(plain)
    cells = 1
    for key in keys:
        cells *= plain[key].nunique()
    if not keys or plain.duplicated(keys).any() or cells > EMPTIEST * max(len(plain), 1):
        return plain.rename_axis("row").to_xarray()
    return plain.set_index(keys).to_xarray()


def _plain(column: pd.Series) -> pd.Series:
    """Without pandas' own types: whole numbers with gaps become floats, categories and texts objects."""
    if isinstance(column.dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(column.dtype):
        return column.astype(object)
    if pd.api.types.is_extension_array_dtype(column.dtype):
        return column.astype("float64") if column.isna().any() else column.astype(column.dtype.type)
    return column


def _keys(frame: pd.DataFrame) -> list[str]:
    found: list[str] = []
    for key in KEYS:
        if key not in frame.columns or frame[key].isna().any():
            continue
        told = len(frame[found].drop_duplicates()) if found else 1
        if frame[key].nunique() == 1 or len(frame[[*found, key]].drop_duplicates()) > told:
            found.append(key)
    return found
