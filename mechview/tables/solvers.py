"""Solved spin systems as frames: every quantity of every site, with how the solver ended beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mechview.results import frame_of
from mechview.spins.fits import SpinFit
from mechview.spins.views import BetaSweep, Landscape, RetrievalMap
from mechview.tables.schemas import typed

SCALARS = ("free_energy", "log_partition", "energy", "entropy", "gain")


@frame_of(SpinFit)
def spin_frame(fit: SpinFit) -> pd.DataFrame:
    """The `spin_fits` table of one fit."""
    m = fit.magnetisation.detach().double()
    batch, count = m.ndim - 2, int(np.prod(m.shape[:-2], dtype=int))
    axes = {"magnetisation": ("site", "component"), "correlation": ("site", "other_site"), "multiplier": ("site",)}
    parts = []
    for quantity in (*axes, *SCALARS):
        values = getattr(fit, quantity)
        if values is not None:
            error = fit.error if quantity == "magnetisation" else None
            parts.append(_rows(quantity, values, axes.get(quantity, ()), batch, count, error))
    columns: dict[str, Any] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    residual = np.broadcast_to(fit.residual.detach().double().cpu().numpy().reshape(-1), (count,))
    return typed(
        columns
        | {"model": fit.model, "beta": _beta(fit), "status": fit.status.value, "steps": fit.steps}
        | {"residual": residual[columns["system"].astype(int)]},
        "spin_fits",
    )


def _rows(quantity: str, values: Any, axes: tuple[str, ...], batch: int, count: int, error: Any) -> dict[str, Any]:
    array = values.detach().double().cpu().numpy()
    array = array.reshape((count, *array.shape[batch:]))
    index = np.indices(array.shape).reshape(array.ndim, -1)
    named = dict(zip(("system", *axes), index, strict=True))
    missing = np.full(array.size, None, dtype=object)
    columns = {
        axis: named[axis].astype(object) if axis in named else missing for axis in ("site", "other_site", "component")
    }
    spread = np.full(array.size, np.nan) if error is None else error.detach().double().cpu().numpy().reshape(-1)
    kind = np.full(array.size, quantity, dtype=object)
    return {"quantity": kind, "system": named["system"], "value": array.reshape(-1), "error": spread} | columns


def _beta(fit: SpinFit) -> float:
    try:
        return float(getattr(fit.settings, "beta", np.nan))
    except (TypeError, ValueError, RuntimeError):
        return np.nan


@frame_of(BetaSweep)
def sweep_frame(sweep: BetaSweep) -> pd.DataFrame:
    """The `spin_fits` table of a sweep, one solved system after the other."""
    parts = [spin_frame(fit) for fit in sweep.fits]
    columns = {name: np.concatenate([part[name].to_numpy(dtype=object) for part in parts]) for name in parts[0]}
    return typed(columns, "spin_fits")


@frame_of(Landscape)
def landscape_frame(found: Landscape) -> pd.DataFrame:
    """The `spin_landscape` table: three surfaces on one grid."""
    axis = found.axis.numpy()
    first, second = (grid.reshape(-1) for grid in np.meshgrid(axis, axis, indexing="ij"))
    names = ("exact", "naive", "tap")
    return typed(
        {
            "method": np.repeat(np.array(names, dtype=object), len(first)),
            "m_1": np.tile(first, 3),
            "m_2": np.tile(second, 3),
            "free_energy": np.concatenate([getattr(found, name).numpy().reshape(-1) for name in names]),
            "J": found.J,
            "beta": found.beta,
        },
        "spin_landscape",
    )


@frame_of(RetrievalMap)
def retrieval_frame(found: RetrievalMap) -> pd.DataFrame:
    """The `retrieval` table: attention of every state to every pattern, update by update."""
    weights = found.weights.detach().double().cpu().numpy()
    steps, query, pattern = np.indices(weights.shape).reshape(3, -1)
    energies = found.energies.detach().double().cpu().numpy()
    return typed(
        {
            "step": steps,
            "query": query,
            "pattern": pattern,
            "weight": weights.reshape(-1),
            "energy": energies[steps, query],
            "beta": found.beta,
        },
        "retrieval",
    )
