"""The spin correspondence as frames: fits (`spin_models`), scalars (`thermo`), weights, spectra, claims.

A number that has several controls has one row for each; `decides` marks the one its verdict rests on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mechview.results import frame_of
from mechview.spins.layers import energies, maxwell, order, reaction, relaxation, structure
from mechview.spins.layers.asked import FITS
from mechview.spins.layers.balance import CURL
from mechview.spins.layers.claims import Claims
from mechview.spins.layers.fit import SpinLayers
from mechview.tables.schemas import typed

SHAPES = (reaction.SHARE, reaction.NEGATIVE, reaction.TRACE)
TARGETS = {
    **dict.fromkeys((maxwell.MLP, energies.ERASURE, *SHAPES), "mlp"),
    **dict.fromkeys((maxwell.ATTENTION, energies.DESCENT, energies.INTERACTION, CURL), "attention"),
    **dict.fromkeys(
        (
            maxwell.BLOCK,
            relaxation.HELD,
            relaxation.FROZEN,
            relaxation.RECOMPUTED,
            relaxation.CONTRACTION,
            relaxation.REBUILT,
        ),
        "block",
    ),
    **dict.fromkeys(relaxation.LOSS.values(), "block"),
    **dict.fromkeys(
        (structure.QK, structure.OV, structure.DIRECTION, structure.COPYING, structure.ISOTROPY, structure.ALIGNMENT),
        "weights",
    ),
    **dict.fromkeys((order.MEAN, order.COSINE, order.RATIO, order.E1, order.LENGTH), "stream"),
}
UNITS = {"ln Z": "nats", "energy U": "nats", "entropy S": "nats", "heat capacity C": "nats^2"} | dict.fromkeys(
    relaxation.LOSS.values(), "nats"
)


def target(quantity: str) -> str:
    """What a quantity is about."""
    if quantity in TARGETS:
        return TARGETS[quantity]
    if quantity not in FITS:
        return "rows"
    return {"H": "attention", "M": "mlp"}.get(quantity[0], "block")


@frame_of(SpinLayers)
def spin_layers_frame(found: SpinLayers) -> pd.DataFrame:
    """The `spin_models` table: fits of the ladder, and the shape of the reaction."""
    rows = [row for row in found.rows if row.quantity in FITS or row.quantity in SHAPES]
    return typed(_columns(found, rows), "spin_models")


def thermo_frame(found: SpinLayers) -> pd.DataFrame:
    """The `thermo` table: every other number of the correspondence."""
    rows = [row for row in found.rows if row.quantity not in FITS and row.quantity not in SHAPES]
    units = [UNITS.get(row.quantity, "1") for row in rows]
    return typed(_columns(found, rows) | {"unit": units}, "thermo")


def spin_weights_frame(found: SpinLayers) -> pd.DataFrame:
    """The `spin_weights` table: fitted weights, predictor by predictor."""
    rows = [
        (layer, *_parts(name), n, weight)
        for layer, fits in found.weights.items()
        for name, weights in fits.items()
        for n, weight in enumerate(weights)
    ]
    names = ("layer", "quantity", "metric", "head", "predictor", "weight")
    columns: dict[str, Any] = {name: [row[n] for row in rows] for n, name in enumerate(names)}
    return typed(columns | _model(found), "spin_weights")


def spin_spectra_frame(found: SpinLayers) -> pd.DataFrame:
    """The `spin_spectra` table: eigenvalues of the reaction's symmetric half, with the null's range."""
    rows = []
    for layer, spectra in found.spectra.items():
        for metric in ("raw", "tw"):
            values = spectra.get(metric, [])
            null = np.asarray(spectra.get(f"{metric} null", [[np.nan] * len(values)]), dtype=float)
            rows += [(layer, metric, n, value, null[:, n].min(), null[:, n].max()) for n, value in enumerate(values)]
    names = ("layer", "metric", "index", "eigenvalue", "null_lo", "null_hi")
    columns: dict[str, Any] = {name: [row[n] for row in rows] for n, name in enumerate(names)}
    return typed(columns | _model(found), "spin_spectra")


@frame_of(Claims)
def claims_frame(found: Claims) -> pd.DataFrame:
    """The `claims` table."""
    columns: dict[str, Any] = {
        name: [getattr(one, name) for one in found.claims] for name in ("claim", "source", "test", "finding", "verdict")
    }
    return typed(columns | _model(found), "claims")


def _columns(found: SpinLayers, rows: list[Any]) -> dict[str, Any]:
    names = (
        "layer", "head", "quantity", "metric", "value", "lo", "hi", "null_name", "null", "null_lo", "null_hi", "n_null",
        "verdict", "decides", "reason", "n_sequences",
    )  # fmt: skip
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in names}
    columns["label"] = [f"L{row.layer}" + ("" if row.head is None else f"H{row.head}") for row in rows]
    columns["target"] = [target(row.quantity) for row in rows]
    return columns | _model(found)


def _parts(name: str) -> tuple[str, str, int | None]:
    quantity, metric, *head = name.split("|")
    return quantity, metric, int(head[0]) if head else None


def _model(found: Any) -> dict[str, Any]:
    return {"model": found.model, "revision": found.revision}
