"""Memory as frames: numbers with nulls, gates over text, analogies with verdicts; one schema for both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from mechview.recurrent.cells import LstmTrace
from mechview.recurrent.lstm_side import gate_rows
from mechview.recurrent.memory import Memory
from mechview.recurrent.recall import Recall
from mechview.recurrent.rows import GateRow, MemoryRow
from mechview.recurrent.verdicts import Measured
from mechview.results import frame_of
from mechview.tables.schemas import typed


@frame_of(Memory)
def memory_frame(found: Memory) -> pd.DataFrame:
    """The `memory` table: one row a number."""
    return _memory(found.rows, *_named(found))


@frame_of(Recall)
def recall_frame(found: Recall) -> pd.DataFrame:
    """The `memory` table of a behavioural comparison."""
    return _memory(found.rows, {row.side: found.models[row.side] for row in found.rows}, {})


def _memory(rows: Sequence[MemoryRow], models: dict[str, str], revisions: dict[str, str | None]) -> pd.DataFrame:
    return typed(
        {
            "model": [models[row.side] for row in rows],
            "revision": [revisions.get(row.side) for row in rows],
            "side": [row.side for row in rows],
            "over": [row.over for row in rows],
            "place": [row.place for row in rows],
            "layer": [row.layer for row in rows],
            "head": [row.head for row in rows],
            "quantity": [row.quantity for row in rows],
            "later": [row.later for row in rows],
            "lag": [row.lag for row in rows],
            "index": [row.index for row in rows],
            "value": [row.found.value for row in rows],
            **_nulls([row.found for row in rows]),
            "n": [row.n for row in rows],
            "verdict": [None if row.verdict is None else row.verdict.value for row in rows],
        },
        "memory",
    )


def _nulls(found: Sequence[Measured]) -> dict[str, Any]:
    return {
        "lo": [one.lo for one in found],
        "hi": [one.hi for one in found],
        "even": [float("nan") if one.even is None else one.even for one in found],
        "null_tokens": [one.tokens.mean for one in found],
        "null_tokens_sd": [one.tokens.sd for one in found],
        "null_weights": [one.weights.mean for one in found],
        "null_weights_sd": [one.weights.sd for one in found],
    }


def gates_frame(found: Memory) -> pd.DataFrame:
    """The `gates` table: every gate at every token."""
    return _gates(found.gates, *_named(found))


def _gates(rows: Sequence[GateRow], models: dict[str, str], revisions: dict[str, str | None]) -> pd.DataFrame:
    return typed(
        {
            "model": [models[row.side] for row in rows],
            "revision": [revisions[row.side] for row in rows],
            "side": [row.side for row in rows],
            "prompt_id": [row.prompt for row in rows],
            "pos": [row.pos for row in rows],
            "token": [row.token for row in rows],
            "place": [row.place for row in rows],
            "layer": [_layer(row.place) for row in rows],
            "gate": [row.gate for row in rows],
            "value": [row.value for row in rows],
            "q25": [row.q25 for row in rows],
            "q75": [row.q75 for row in rows],
            "n": [row.n for row in rows],
        },
        "gates",
    )


@frame_of(LstmTrace)
def lstm_gates_frame(trace: LstmTrace) -> pd.DataFrame:
    """The `gates` table of one prompt through an LSTM."""
    return _gates(gate_rows(trace, 0), {"lstm": trace.model}, {"lstm": trace.revision})


def analogies_frame(found: Memory) -> pd.DataFrame:
    """The `analogies` table: each claim under each mapping; nulls and interval are of the number judged."""
    rows = found.analogies
    name = found.model if found.beside is None else f"{found.model} beside {found.beside}"
    return typed(
        {
            "model": [name] * len(rows),
            "claim": [row.claim for row in rows],
            "mapping": [row.mapping for row in rows],
            "statistic": [row.statistic for row in rows],
            "lstm": [_value(row.left) for row in rows],
            "transformer": [_value(row.right) for row in rows],
            "apart": [row.apart for row in rows],
            **_nulls([row.right or row.left for row in rows]),  # type: ignore[misc]
            "verdict": [row.verdict.value for row in rows],
            "meaning": [row.meaning for row in rows],
        },
        "analogies",
    )


def _value(found: Measured | None) -> float:
    return float("nan") if found is None else found.value


def _layer(place: str) -> int | None:
    return MemoryRow("", "", place, "", Measured(0.0)).layer


def _named(found: Memory) -> tuple[dict[str, str], dict[str, str | None]]:
    """Name and revision of each side."""
    first = "lstm" if found.traces and isinstance(found.traces[0], LstmTrace) and found.beside is None else None
    if found.beside is None:
        side = first or "transformer"
        return {side: found.model}, {side: found.revision}
    names = {found.model: found.revision, found.beside: found.revision_beside}
    lstm = next(trace.model for trace in found.traces if isinstance(trace, LstmTrace))
    other = next(name for name in names if name != lstm)
    return {"lstm": lstm, "transformer": other}, {"lstm": names[lstm], "transformer": names[other]}
