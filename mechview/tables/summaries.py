"""A few numbers that say how a head attended on one prompt, each beside what even attention would give.

Even attention spreads its weight over the keys that the mask leaves: that is the null printed beside
every number. One prompt shows what a head did there, not what it is for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """One number: the mean over `n` queries, and the same for even attention."""

    metric: str
    value: float
    null_mean: float
    n: int
    unit: str


def summaries(weight: np.ndarray, seen: np.ndarray, ids: np.ndarray | None) -> list[Summary]:
    """Numbers of one head.

    Args:
        weight: attention `[q_pos, k_pos]`.
        seen: cells that the mask leaves.
        ids: token ids where queries and keys are the same tokens; None for cross-attention.
    """
    even = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1)
    found = [_mass("first_key_mass", weight, even, _first(seen)), _entropy(weight, even, seen)]
    if ids is None:
        return found
    found.append(_mass("previous_token_mass", weight, even, seen & np.eye(len(ids), k=-1, dtype=bool)))
    found.append(_mass("same_token_mass", weight, even, seen & _same(ids)))
    found.append(_mass("induction_mass", weight, even, seen & _after_same(ids)))
    return found


def _first(seen: np.ndarray) -> np.ndarray:
    """The first key, for queries that see more than one."""
    cells = np.zeros_like(seen)
    cells[:, 0] = seen[:, 0] & (seen.sum(axis=1) > 1)
    return cells


def _same(ids: np.ndarray) -> np.ndarray:
    """Earlier keys that are the query's own token."""
    return np.tril(ids[:, None] == ids[None, :], k=-1)


def _after_same(ids: np.ndarray) -> np.ndarray:
    """Keys right after an earlier occurrence of the query's token: where an induction head looks."""
    cells = np.zeros((len(ids), len(ids)), dtype=bool)
    cells[:, 1:] = _same(ids)[:, :-1]
    return cells & np.tri(len(ids), dtype=bool)


def _mass(metric: str, weight: np.ndarray, even: np.ndarray, cells: np.ndarray) -> Summary:
    """Weight on the chosen cells, mean over the queries that have one; NaN if none has."""
    rows = cells.any(axis=1)
    count = int(rows.sum())
    if not count:
        return Summary(metric, np.nan, np.nan, 0, "weight")
    mass, null = (float(np.where(cells, values, 0.0)[rows].sum(axis=1).mean()) for values in (weight, even))
    return Summary(metric, mass, null, count, "weight")


def _entropy(weight: np.ndarray, even: np.ndarray, seen: np.ndarray) -> Summary:
    rows = seen.sum(axis=1) > 1
    count = int(rows.sum())
    if not count:
        return Summary("entropy", np.nan, np.nan, 0, "nat")
    mean, null = (float(_row_entropy(values)[rows].mean()) for values in (weight, even))
    return Summary("entropy", mean, null, count, "nat")


def _row_entropy(weight: np.ndarray) -> np.ndarray:
    logs = np.log(weight, out=np.zeros_like(weight), where=~(weight <= 0))
    return -(weight * logs).sum(axis=1)
