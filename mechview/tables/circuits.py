"""Token circuits, readings, spectra and offsets of heads as frames, one fact a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mechview.heads.copying import Copying
from mechview.heads.geometry import Geometry
from mechview.heads.notes import NOTES
from mechview.heads.offsets import OffsetCurves
from mechview.heads.readings import Readings
from mechview.heads.token_circuits import TokenCircuit
from mechview.heads.weight_scores import WeightScores
from mechview.results import frame_of
from mechview.tables.schemas import typed

PLACE = ("model", "revision", "stack", "layer", "head", "kv_head", "label")
SIDES = {"pattern": ("q", "k", "score", "qk_pairs"), "message": ("src", "dst", "logit", "ov_tokens")}


@frame_of(TokenCircuit)
def circuit_frame(circuit: TokenCircuit) -> pd.DataFrame:
    """The `qk_pairs` table of a pattern, the `ov_tokens` table of a message."""
    row, column, value, table = SIDES[circuit.side]
    parts = [_pairs(circuit, pairs, sign) for pairs, sign in ((circuit.high, 1), (circuit.low, -1))]
    facts = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    tokens = {
        f"{side}_{what}": [getattr(circuit.tokens[i], how) for i in facts[end].tolist()]
        for side, end in ((row, "row"), (column, "column"))
        for what, how in (("id", "id"), ("token", "shown"))
    }
    columns = _about(circuit) | tokens | {value: facts["score"], "rank": facts["rank"], "sign": facts["sign"]}
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["z"] = (facts["score"] - circuit.mean) / (circuit.sd if circuit.sd > 0 else np.nan)
    columns |= {"completeness_error": circuit.completeness, "error": circuit.error}
    if circuit.side == "pattern":
        columns["offset"] = circuit.offset
    return typed(columns, table)


def _pairs(circuit: TokenCircuit, pairs: Any, sign: int) -> dict[str, np.ndarray]:
    ids, count = circuit.ids.numpy(), len(pairs.row)
    per_row = pairs.row.numpy()
    place = np.arange(count)
    if circuit.asked:  # each asked token has a list of its own
        place = place - np.maximum.accumulate(np.where(np.r_[True, per_row[1:] != per_row[:-1]], place, 0))
    score = pairs.score.double().numpy()
    sides = {"row": ids[per_row], "column": ids[pairs.column.numpy()]}
    return sides | {"score": score, "rank": place, "sign": np.full(count, sign)}


def _about(result: Any) -> dict[str, Any]:
    found = {name: getattr(result, name) for name in PLACE}
    return found | {"space": result.reading.space, "rows": result.reading.rows, "centred": result.reading.centre}


def diagonal_frame(circuit: TokenCircuit) -> pd.DataFrame:
    """The `diagonal` table: how often a token's own column is at an end of its row."""
    facts = [("highest", one) for one in circuit.accuracy] + [("lowest", one) for one in circuit.suppression]
    names = ("top", "value", "null_mean", "null_sd", "n", "chance")
    columns: dict[str, Any] = {name: [getattr(one, name) for _, one in facts] for name in names}
    columns |= {"among": [among for among, _ in facts], "side": circuit.side, "tokens": len(circuit.ids)}
    return typed(columns | _about(circuit) | {"excluded": circuit.excluded, "offset": circuit.offset}, "diagonal")


@frame_of(Readings)
def readings_frame(readings: Readings) -> pd.DataFrame:
    """The `svd_tokens` table."""
    rows = [(part, n) for part in readings.lists for n in range(len(part.ids))]
    same = ("index", "sigma", "share", "degenerate", "end", "sign", "coherence", "shuffled_mean", "shuffled_sd",
            "random_mean", "random_sd")  # fmt: skip
    columns: dict[str, Any] = {name: [getattr(part, name) for part, _ in rows] for name in same}
    ids = [int(part.ids[n]) for part, n in rows]
    columns |= {"token_id": ids, "token": [readings.tokens[i].shown for i in ids], "rank": [n for _, n in rows]}
    columns["value"] = [float(part.values[n]) for part, n in rows]
    return typed(columns | _about(readings) | {"side": readings.side, "offset": readings.offset}, "svd_tokens")


@frame_of(Copying)
def eig_frame(copying: Copying) -> pd.DataFrame:
    """The `eig` table: spectra of heads and of the random heads of their layers, each of norm 1."""
    parts = []
    for head in copying.heads:
        size = float(head.eigenvalues.abs().square().sum().sqrt()) or 1.0
        parts.append(_spectrum(head, None, (head.eigenvalues / size).numpy()))
        parts += [_spectrum(head, n, draw.numpy()) for n, draw in enumerate(copying.null[head.score.layer])]
    columns = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    return typed(columns | {"model": copying.model, "revision": copying.revision}, "eig")


def _spectrum(head: Any, draw: int | None, values: np.ndarray) -> dict[str, list[Any]]:
    count, total = len(values), float(np.abs(values).sum())
    score = float(values.sum().real) / total if total else 0.0
    shared = {name: [getattr(head.score, name)] * count for name in ("stack", "layer", "head", "kv_head", "label")}
    return shared | {
        "draw": [draw] * count, "index": list(range(count)), "re": values.real.tolist(), "im": values.imag.tolist(),
        "score": [score] * count,
    }  # fmt: skip


@frame_of(OffsetCurves)
def offsets_frame(curves: OffsetCurves) -> pd.DataFrame:
    """The `offsets` table."""
    names = ("norm", "cosine", "cosine_null", "symmetry", "kernel", "same")
    columns: dict[str, Any] = {name: getattr(curves, name).numpy() for name in names}
    columns |= {name: getattr(curves, name) for name in PLACE}
    return typed(columns | {"position": curves.position, "offset": list(curves.offsets)}, "offsets")


@frame_of(WeightScores)
def weight_scores_frame(scores: WeightScores | Geometry) -> pd.DataFrame:
    """The `heads` table of scores from weights alone."""
    names = (
        "stack",
        "layer",
        "head",
        "kv_head",
        "label",
        "offset",
        "metric",
        "value",
        "null_mean",
        "null_sd",
        "z",
        "n",
    )
    columns: dict[str, Any] = {name: [getattr(row, name) for row in scores.rows] for name in names}
    notes = [NOTES[row.metric] for row in scores.rows]
    columns |= {"unit": [note.unit for note in notes], "source": [note.source for note in notes]}
    return typed(columns | {"model": scores.model, "revision": scores.revision, "seed_sd": np.nan}, "heads")


@frame_of(Geometry)
def geometry_frame(found: Geometry) -> pd.DataFrame:
    """The `heads` table of symmetry and directionality."""
    return weight_scores_frame(found)


def copying_scores_frame(copying: Copying) -> pd.DataFrame:
    """The `heads` table of copying scores."""
    rows = tuple(head.score for head in copying.heads)
    return weight_scores_frame(WeightScores(rows=rows, about="", model=copying.model, revision=copying.revision))
