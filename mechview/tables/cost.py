"""Estimates, and attribution at all positions or over many prompts, as frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mechview.residual.accumulated import MeanAttribution
from mechview.residual.cost import Cost
from mechview.residual.direct import Attribution
from mechview.results import frame_of
from mechview.tables.residual import places
from mechview.tables.schemas import typed


@frame_of(Cost)
def cost_frame(cost: Cost) -> pd.DataFrame:
    """The `cost` table: one row."""
    tokens = {"prompts": len(cost.tokens), "tokens": sum(cost.tokens), "longest": max(cost.tokens, default=0)}
    return typed({name: [value] for name, value in (vars(cost) | tokens).items() if name != "manifest"}, "cost")


@frame_of(Attribution)
def attribution_frame(found: Attribution) -> pd.DataFrame:
    """The `contrib` table of one direction: one row a component and position."""
    components, positions = found.values.shape
    at = places(found.components)

    def spread(values: Any) -> Any:
        return np.repeat(np.asarray(values, dtype=object), positions)

    return typed(
        {
            "component": spread(found.components), "layer": spread(at["layer"]), "head": spread(at["head"]),
            "pos": np.tile(np.arange(positions), components), "first": np.tile(np.arange(positions) == 0, components),
            "target": found.direction, "value": found.values.double().cpu().flatten().numpy(), "norm": np.nan,
            "cos_stream": np.nan, "cos_direction": np.nan, "cos_total": np.nan, "share_of_update": np.nan, "point": "final", "by": "head", "neurons": None,
            "freeze": found.freeze, "fold": found.fold,
            "total": np.tile(found.total.double().cpu().numpy(), components), "completeness_error": found.error,
            "model": found.model, "revision": found.revision,
        },
        "contrib",
    )  # fmt: skip


@frame_of(MeanAttribution)
def mean_attribution_frame(found: MeanAttribution) -> pd.DataFrame:
    """The `attribution` table: one row a component."""
    return typed(
        {
            "component": list(found.components), **places(found.components), "target": found.direction,
            "position": found.position, "mean": found.mean.cpu().numpy(), "sd": found.sd.cpu().numpy(), "n": found.n,
            "total": found.total, "completeness_error": found.error, "model": found.model, "revision": found.revision,
        },
        "attribution",
    )  # fmt: skip
