"""The spin correspondence as a section of a page: claims with their verdicts first, figures below.

Reads the tables of `mechview spin`. Every number stands over the band of the control that decides about it; a
marker is filled where the verdict is informative.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mechview.reporting.drawings import Drawing
from mechview.reporting.svg_bars import Point, panel

VERDICTS = ("informative", "weak", "vacuous", "not-applicable")


@dataclass(frozen=True)
class SpinTables:
    """The tables `claims` (None where they were not judged), `spin_models` and `thermo`, and how they were made."""

    claims: pd.DataFrame | None
    models: pd.DataFrame
    thermo: pd.DataFrame
    made: str = ""


@dataclass(frozen=True)
class Group:
    """Panels that belong together."""

    heading: str
    about: str
    panels: tuple[Drawing, ...]


@dataclass(frozen=True)
class SpinSection:
    """What a template needs."""

    claims: list[dict[str, str]]
    counts: str
    groups: list[Group]
    made: str


def spin_section(found: SpinTables) -> SpinSection:
    """All that is shown of the spin correspondence."""
    from mechview.figures.spin_layers import DEPTH, RUNGS, STEPS

    wanted = [
        ("The ladder", "R² of spin models of each layer's writes on other documents, rung by rung.", found.models, RUNGS, "R²"),
        ("Energy by depth", "Thermodynamics of attention rows, each row a Boltzmann law of its own; mean over heads.", found.thermo, DEPTH, "nats"),
        ("Balance and relaxation", "How far logits are from detailed balance, and what a block's second step does.", found.thermo, ("curl index", *STEPS), ""),
    ]  # fmt: skip
    groups = [_group(*one) for one in wanted]
    claims = [] if found.claims is None else claim_rows(found.claims)
    return SpinSection(claims, _counts(claims), [group for group in groups if group.panels], found.made)


def claim_rows(frame: pd.DataFrame) -> list[dict[str, str]]:
    """The claims, those that say something first."""
    rows = [
        {name: str(row[name]) for name in ("claim", "source", "test", "finding", "verdict")}
        for row in frame.to_dict("records")
    ]
    return sorted(rows, key=lambda row: VERDICTS.index(row["verdict"]))


def _counts(claims: list[dict[str, str]]) -> str:
    counted = Counter(row["verdict"] for row in claims)
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict])


def _group(heading: str, about: str, frame: pd.DataFrame, names: tuple[str, ...], unit: str) -> Group:
    from mechview.figures.spin_layers import deciding

    rows = deciding(frame, "raw")
    found = [_panel(name, rows[rows["quantity"] == name].sort_values("layer"), unit) for name in names]
    return Group(heading, about, tuple(one for one in found if one is not None))


def _panel(name: str, rows: pd.DataFrame, unit: str) -> Drawing | None:
    if rows.empty:
        return None
    points = [
        Point(
            int(row.layer), float(row.value), float(row.lo), float(row.hi), float(row.null), float(row.null_lo),
            float(row.null_hi), row.verdict == "informative",
            f"layer {row.layer}: {row.value:.4g}, {row.verdict}" + (f"; null {row.null:.4g} ({row.null_name})" if row.null_name else ""),
        )
        for row in rows.itertuples()
    ]  # fmt: skip
    said = dict.fromkeys(str(null) for null in rows["null_name"] if isinstance(null, str) and null)
    controls = f"null: {', '.join(said)}" if said else "no control"
    verdicts = Counter(str(verdict) for verdict in rows["verdict"])
    counts = ", ".join(f"{verdicts[one]} {one}" for one in VERDICTS if verdicts[one])
    wrong = int((~np.isfinite(rows["value"].to_numpy(dtype=float))).sum())
    about = f"{counts}; {controls}" + (f"; {wrong} NaN or infinite" if wrong else "")
    return Drawing(f"{name}{f' ({unit})' if unit else ''}", about, panel(points, name, "layer"))
