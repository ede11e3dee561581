"""The head table as frames: `heads` (one measurement a row), its wide form, and `svd` (one singular value a row).

Norms and ranks are computed here from the singular values of the table, by the functions that the null
was made with, so that a value and its null cannot differ in definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mechview.heads.notes import NOTES
from mechview.heads.table import MEASURES, NO_NULL, HeadRow, HeadTable, Null
from mechview.results import frame_of
from mechview.tables.schemas import typed

SIDES = ("pattern", "message")
DEGENERATE_GAP = 0.01
KEYS = ["model", "revision", "stack", "layer", "head", "kv_head", "label", "offset"]


@frame_of(HeadTable)
def heads_frame(table: HeadTable) -> pd.DataFrame:
    """The `heads` table: for each head and side, its norms and ranks beside their nulls, and its parity error."""
    facts = [fact for row in table.rows for side in SIDES for fact in _facts(row, side, table.nulls)]
    columns = _columns(facts, _EMPTY_FACT)
    value, mean, sd = (np.asarray(columns[name], dtype=float) for name in ("value", "null_mean", "null_sd"))
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["z"] = (value - mean) / np.where(sd > 0, sd, np.nan)
    metrics = columns["metric"]
    columns |= {"unit": [NOTES[name].unit for name in metrics], "source": [NOTES[name].source for name in metrics]}
    return typed(columns | _model(table) | {"seed_sd": np.nan}, "heads")


def heads_wide(table: HeadTable) -> pd.DataFrame:
    """One row a head, one column a metric: for reading, not for storing."""
    frame = heads_frame(table)
    keys = frame[KEYS].drop_duplicates("label").set_index("label")
    values = frame.pivot(index="label", columns="metric", values="value")
    values = values.reindex(index=keys.index, columns=list(dict.fromkeys(frame["metric"])))
    values.columns = pd.Index(list(values.columns), dtype="str")
    return keys.join(values).reset_index()[KEYS + list(values.columns)]


def svd_frame(table: HeadTable) -> pd.DataFrame:
    """The `svd` table: every singular value of every head's pattern and message."""
    facts = [fact for row in table.rows for side in SIDES for fact in _values(row, side)]
    return typed(_columns(facts, _EMPTY_VALUE) | _model(table), "svd")


def _model(table: HeadTable) -> dict[str, Any]:
    return {"model": table.model, "revision": table.revision}


def _place(row: HeadRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("stack", "layer", "head", "kv_head", "label", "offset")}


def _facts(row: HeadRow, side: str, nulls: dict[str, Null]) -> list[dict[str, Any]]:
    values = row.values(side)
    measured = [(name, measure(values), nulls[name]) for name, measure in MEASURES.items()]
    measured.append(("parity_error", getattr(row, f"{side}_error"), NO_NULL))
    return [
        _place(row)
        | {"metric": f"{side}_{name}", "value": value, "null_mean": null.mean, "null_sd": null.sd, "n": null.n}
        for name, value, null in measured
    ]


def _values(row: HeadRow, side: str) -> list[dict[str, Any]]:
    sigma = row.values(side).double().cpu().numpy()
    top = sigma[0] if len(sigma) and sigma[0] > 0 else np.nan
    close = close_values(sigma)
    return [
        _place(row) | {"side": side, "index": n, "sigma": value, "sigma_rel": value / top, "degenerate": bool(close[n])}
        for n, value in enumerate(sigma)
    ]


def close_values(sigma: np.ndarray, gap: float = DEGENERATE_GAP) -> np.ndarray:
    """Which of descending values have a neighbour within `gap` (relative to the larger); zeros are all alike."""
    near = np.diff(sigma) >= -gap * sigma[:-1]
    edge = np.array([False])
    return np.concatenate([edge, near]) | np.concatenate([near, edge])


_EMPTY_FACT = ("stack", "layer", "head", "kv_head", "label", "offset", "metric", "value", "null_mean", "null_sd", "n")
_EMPTY_VALUE = ("stack", "layer", "head", "kv_head", "label", "offset", "side", "index", "sigma", "sigma_rel", "degenerate")  # fmt: skip


def _columns(facts: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: [fact[name] for fact in facts] for name in names}
