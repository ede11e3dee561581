"""What heads did on a prompt, as frames: `attention` (sparse), `prompt_heads` (summaries) and `tokens`.

A masked cell is one whose score is minus infinity: it has no row. A visible cell below the threshold
has no row either, and its weight is in `dropped_mass`. NaN is never below a threshold: it stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from mechview.heads.attention import Attention, HeadAttention
from mechview.models.trace import Trace
from mechview.results import frame_of
from mechview.tables.schemas import typed
from mechview.tables.summaries import summaries
from mechview.tokens import Token

CELLS = ("stack", "layer", "head", "kv_head", "label", "q_pos", "k_pos", "weight", "score", "value_norm", "dropped_mass")  # fmt: skip


@frame_of(Attention)
def attention_frame(attention: Attention, prompt_id: int = 0) -> pd.DataFrame:
    """The `attention` table: every visible cell of at least the threshold."""
    parts = [_cells(head, attention.threshold) for head in attention.heads]
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) if parts else [] for name in CELLS}
    return typed(columns | _origin(attention, prompt_id), "attention")


def prompt_heads_frame(attention: Attention, prompt_id: int = 0) -> pd.DataFrame:
    """The `prompt_heads` table: a few numbers that say how each head attended, beside even attention."""
    facts = [(head, fact) for head in attention.heads for fact in _summaries(head, attention.trace)]
    columns: dict[str, Any] = {name: [getattr(fact, name) for _, fact in facts] for name in SUMMARY}
    columns |= {name: [getattr(head, name) for head, _ in facts] for name in PLACE}
    return typed(columns | _origin(attention, prompt_id), "prompt_heads")


def tokens_frame(trace: Trace, prompt_id: int = 0) -> pd.DataFrame:
    """The `tokens` table: what the model read; both inputs of an encoder-decoder model."""
    several = bool(trace.source_tokens)
    inputs: list[tuple[str, Iterable[Token]]] = [(trace.stack, trace.tokens)]
    inputs += [("encoder", trace.source_tokens)] if several else []
    rows = [(stack, token) for stack, tokens in inputs for token in tokens]
    columns: dict[str, Any] = {
        name: [getattr(token, name) for _, token in rows] for name in ("pos", "id", "text", "shown", "special")
    }
    return typed(columns | {"stack": [stack for stack, _ in rows], "prompt_id": prompt_id}, "tokens")


PLACE = ("stack", "layer", "head", "kv_head", "label")
SUMMARY = ("metric", "value", "null_mean", "n", "unit")


def _origin(attention: Attention, prompt_id: int) -> dict[str, Any]:
    trace = attention.trace
    return {"prompt_id": prompt_id, "model": trace.model, "revision": trace.revision}


def _summaries(head: HeadAttention, trace: Trace) -> Any:
    queries, _ = trace.tokens_of(head.stack)
    ids = None if head.stack == "cross" else np.array([token.id for token in queries])
    return summaries(dense(head.pattern), visible(head), ids)


def dense(tensor: Any) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def visible(head: HeadAttention) -> np.ndarray:
    """Cells that the mask leaves: everything but a score of minus infinity."""
    return ~np.isneginf(dense(head.scores))


def _cells(head: HeadAttention, threshold: float) -> dict[str, Any]:
    weight, score, seen = dense(head.pattern), dense(head.scores), visible(head)
    kept = seen & ~(weight < threshold)
    dropped = np.where(seen & ~kept, weight, 0.0).sum(axis=1)
    q_pos, k_pos = np.nonzero(kept)
    cells = {name: np.full(len(q_pos), getattr(head, name)) for name in PLACE}
    return cells | {
        "q_pos": q_pos,
        "k_pos": k_pos,
        "weight": weight[kept],
        "score": score[kept],
        "value_norm": dense(head.value_norm)[k_pos],
        "dropped_mass": dropped[q_pos],
    }
