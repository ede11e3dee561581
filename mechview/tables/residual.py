"""The residual stream as frames: contributions, lens readings, and a score split over its writers.

`contrib` serves both the ledger (sizes of rows, position by position) and shares (values along one
direction at one position); what a result does not hold is NaN. Position 0 is marked: its norms are often
hundreds of times the others', and no summary should mix them.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from mechview.residual.attend import ScoreLedger
from mechview.residual.ledger import Ledger, cosine
from mechview.residual.lens import Lens
from mechview.residual.shares import Shares
from mechview.results import frame_of
from mechview.tables.schemas import typed

PLACE = re.compile(r"(?:[EX]\.)?L(?P<layer>\d+)(?:H(?P<head>\d+))?")


def places(components: tuple[str, ...]) -> dict[str, list[Any]]:
    """Layer and head of component names; missing for embeddings and biases of the ends."""
    found = [PLACE.match(name) for name in components]
    return {
        part: [None if match is None or match[part] is None else int(match[part]) for match in found]
        for part in ("layer", "head")
    }


@frame_of(Ledger)
def ledger_frame(ledger: Ledger) -> pd.DataFrame:
    """The `contrib` table of a ledger: one row a component and position."""
    components, positions = len(ledger.components), ledger.total.shape[0]
    at = places(ledger.components)

    def spread(values: Any) -> Any:
        return np.repeat(np.asarray(values, dtype=object), positions)

    return typed(
        {
            "component": spread(ledger.components),
            "layer": spread(at["layer"]),
            "head": spread(at["head"]),
            "pos": np.tile(np.arange(positions), components),
            "first": np.tile(np.arange(positions) == 0, components),
            "target": ledger.direction,
            "value": np.nan,
            "norm": ledger.values.double().norm(dim=-1).flatten().numpy(),
            "cos_stream": ledger.cos_stream.double().flatten().numpy(),
            "cos_direction": np.nan
            if ledger.cos_direction is None
            else ledger.cos_direction.double().flatten().numpy(),
            "cos_total": cosine(ledger.values.double(), ledger.total.double()).flatten().numpy(),
            "share_of_update": ledger.share_of_update.double().flatten().numpy(),
            "point": ledger.point,
            "by": ledger.by,
            "neurons": ledger.neurons,
            "freeze": "own",
            "fold": None,
            "total": np.tile(ledger.total.double().norm(dim=-1).numpy(), components),
            "completeness_error": ledger.error,
        }
        | _model(ledger),
        "contrib",
    )


@frame_of(Shares)
def shares_frame(shares: Shares) -> pd.DataFrame:
    """The `contrib` table of shares along a direction: one row a component."""
    at = places(shares.components)
    return typed(
        {
            "component": list(shares.components),
            "layer": at["layer"],
            "head": at["head"],
            "pos": shares.position,
            "first": shares.position == 0,
            "target": shares.direction,
            "value": shares.values.double().numpy(),
            "norm": np.nan,
            "cos_stream": np.nan,
            "cos_direction": np.nan,
            "cos_total": np.nan,
            "share_of_update": np.nan,
            "point": "final",
            "by": shares.by,
            "neurons": shares.neurons,
            "freeze": shares.freeze,
            "fold": shares.fold,
            "total": shares.total,
            "completeness_error": shares.error,
        }
        | _model(shares),
        "contrib",
    )


@frame_of(Lens)
def lens_frame(lens: Lens) -> pd.DataFrame:
    """The `lens` table: one row a point of the stream and position."""
    points, positions = lens.top.shape

    def flat(values: Any) -> Any:
        return np.full(points * positions, np.nan) if values is None else values.double().flatten().numpy()

    return typed(
        {
            "point": np.repeat(np.asarray(lens.points, dtype=object), positions),
            "pos": np.tile(np.arange(positions), points),
            "top_id": lens.top.flatten().numpy(),
            "top_token": [_token(lens, int(i)) for i in lens.top.flatten()],
            "top_prob": flat(lens.top_prob),
            "entropy": flat(lens.entropy),
            "kl_final": flat(lens.kl),
            "target_id": lens.target,
            "logit": flat(lens.target_logit),
            "prob": flat(lens.target_prob),
            "rank": None if lens.target_rank is None else lens.target_rank.flatten().numpy(),
            "completeness_error": lens.error,
        }
        | _model(lens),
        "lens",
    )


@frame_of(ScoreLedger)
def score_frame(found: ScoreLedger) -> pd.DataFrame:
    """The `score_ledger` table: one row a pair of writers, and one for the position's own bias."""
    pairs = list(product(found.components, found.key_components))
    return typed(
        {
            "label": found.label,
            "q_pos": found.query,
            "k_pos": found.key,
            "query_component": [query for query, _ in pairs] + ["position_bias"],
            "key_component": [key for _, key in pairs] + ["position_bias"],
            "value": np.append(found.values.double().flatten().numpy(), found.position_bias),
            "by": found.by,
            "neurons": found.neurons,
            "total": found.total,
            "completeness_error": found.error,
        }
        | _model(found),
        "score_ledger",
    )


def _token(lens: Lens, token_id: int) -> str:
    from mechview.tokens import describe

    return describe([token_id], lens.trace.tokenizer)[0].shown


def _model(result: Any) -> dict[str, Any]:
    trace = getattr(result, "trace", result)
    return {"model": trace.model, "revision": trace.revision}
