"""Metrics from weights alone that roles rest on; their functions bring nulls of their own.

Copying by eigenvalues, copy suppression and successors are computed by `heads.copying` and `heads.relations`
and described in `heads.notes_weights`. Here they enter the registry as metrics, so that `head_scores`, tables
of roles and reports find them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mechview.heads.copying import copying
from mechview.heads.notes_weights import WEIGHT_NOTES
from mechview.heads.registry import Measure, metric
from mechview.heads.relations import copy_scores, successor_scores
from mechview.heads.weight_scores import WeightScore
from mechview.models.load import Model


def described(name: str) -> Callable[[Measure], Measure]:
    """The decorator of a metric whose note stands in `WEIGHT_NOTES`."""
    note = WEIGHT_NOTES[name]
    about = {"definition": note.definition, "unit": note.unit, "cannot": note.cannot, "title": note.title}
    return metric(name, "model", "own", note.source, **about)


@described("copying_eigenvalue")
def copying_eigenvalue(model: Model, seed: int) -> Sequence[WeightScore]:
    return [head.score for head in copying(model, seed=seed).heads]


@described("copy_suppression")
def copy_suppression(model: Model, seed: int) -> Sequence[WeightScore]:
    return [row for row in copy_scores(model, seed=seed).rows if row.metric == "copy_suppression"]


@described("successor")
def successor(model: Model, seed: int) -> Sequence[WeightScore]:
    return list(successor_scores(model, seed=seed).rows)
