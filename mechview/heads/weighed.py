"""Metrics from weights alone that roles rest on; their functions bring nulls of their own.

Copying by eigenvalues, copy suppression and successors are computed by `heads.copying` and `heads.relations`.
Here they enter the registry, so that `head_scores`, role tables and reports find them by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from mechview.heads.copying import copying
from mechview.heads.registry import metric
from mechview.heads.relations import copy_scores, successor_scores
from mechview.heads.weight_scores import WeightScore
from mechview.models.load import Model


@metric(
    "copying_eigenvalue", "model", "own", "Elhage et al. 2021", unit="−1 to 1", title="copying by eigenvalues",
    definition="Σλ / Σ|λ| over the eigenvalues of the full message E M U. Null: random W_V and W_O between the same E "
    "and U.",
    cannot="How much is sent, and whether the head ever attends to what it could copy.",
)  # fmt: skip
def copying_eigenvalue(model: Model, seed: int) -> Sequence[WeightScore]:
    return [head.score for head in copying(model, seed=seed).heads]


@metric(
    "copy_suppression", "model", "own", "McDougall et al. 2023", unit="share of tokens",
    definition="Share of random tokens that are among the 10 that their own full message lowers most, embedding after "
    "the first MLP. Null: other tokens in their place.",
    cannot="Whether the head attends to what the model is about to predict.",
)  # fmt: skip
def copy_suppression(model: Model, seed: int) -> Sequence[WeightScore]:
    return [row for row in copy_scores(model, seed=seed).rows if row.metric == "copy_suppression"]


@metric(
    "successor", "model", "own", "Gould et al. 2023", unit="share of steps", title="successor score",
    definition="Share of words of ordered lists whose successor their full message raises most among the list's words. "
    "Null: the list in random order.",
    cannot="Lists that are not bundled, and words of several tokens.",
)  # fmt: skip
def successor(model: Model, seed: int) -> Sequence[WeightScore]:
    return list(successor_scores(model, seed=seed).rows)
