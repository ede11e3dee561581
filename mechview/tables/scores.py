"""Scores, roles and profiles of heads as frames. Scores and ablations are rows of the `heads` table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from mechview.heads.causal import CausalCheck
from mechview.heads.notes import NOTES
from mechview.heads.profile import DistanceProfile
from mechview.heads.roles import RoleCard, Roles
from mechview.heads.scores import HeadScores, Score
from mechview.results import frame_of
from mechview.tables.schemas import SCHEMAS, typed

PLACE = ("stack", "layer", "head", "kv_head", "label")


@frame_of(HeadScores)
def scores_frame(scores: HeadScores) -> pd.DataFrame:
    """The `heads` table: each metric of each head beside its null and its spread over seeds."""
    return _heads(scores.rows, scores.model, scores.revision)


@frame_of(CausalCheck)
def causal_frame(check: CausalCheck) -> pd.DataFrame:
    """The `heads` table: changes of loss beside those of other heads."""
    return _heads(check.rows, check.model, check.revision)


@frame_of(Roles)
def roles_frame(roles: Roles) -> pd.DataFrame:
    """The `roles` table: every test of every head, whether it speaks for a role or not."""
    records = [record for card in roles.cards for record in _tests(card)]
    columns = {
        name: [record[name] for record in records] for name in SCHEMAS["roles"] if name not in ("model", "revision")
    }
    return typed(columns | {"model": roles.model, "revision": roles.revision}, "roles")


@frame_of(DistanceProfile)
def distances_frame(profile: DistanceProfile) -> pd.DataFrame:
    """The `distances` table; distances that no query sees have no row."""
    parts = []
    for head in profile.heads:
        cells = {name: getattr(head, name).cpu().numpy() for name in ("distance", "value", "null_mean", "null_sd", "n")}
        seen = ~np.isnan(cells["value"])
        here = {name: values[seen] for name, values in cells.items()}
        parts.append(here | {name: np.full(int(seen.sum()), getattr(head, name)) for name in PLACE})
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return typed(columns | {"model": profile.model, "revision": profile.revision}, "distances")


def _heads(rows: Sequence[Score], model: str, revision: str | None) -> pd.DataFrame:
    names = (*PLACE, "metric", "value", "null_mean", "null_sd", "z", "n", "seed_sd")
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in names}
    columns |= {part: [getattr(NOTES[row.metric], part) for row in rows] for part in ("unit", "source")}
    return typed(columns | {"offset": [None] * len(rows), "model": model, "revision": revision}, "heads")


def _tests(card: RoleCard) -> list[dict[str, Any]]:
    place = {name: getattr(card, name) for name in PLACE} | {"roles": "+".join(card.roles)}
    return [
        place
        | {name: getattr(e.score, name) for name in ("metric", "value", "null_mean", "null_sd", "z", "n")}
        | {
            "role": e.role,
            "held": e.role in card.roles,
            "side": "at_least" if e.test.above else "at_most",
            "threshold": e.test.threshold,
            "beyond_null": e.test.beyond_null,
            "passed": e.passed,
            "unit": NOTES[e.test.metric].unit,
        }
        for e in card.evidence
    ]
