"""Schemas of solved spin systems; see `schemas` for what a schema is."""

from __future__ import annotations

from mechview.tables.columns import Column, Schema

SOLVED: Schema = {
    "status": Column("str", "how the solver ended, as a sentence"),
    "steps": Column("int32", "steps it took"),
    "residual": Column("float64", "how far the equations are from holding"),
}

SOLVER_SCHEMAS: dict[str, Schema] = {
    "spin_fits": {
        "model": Column("category", "Exact, MeanField, TAP, AdaptiveTAP, SteepestDescent, KineticMeanField, ..."),
        "system": Column("int32", "member of the batch, from 0"),
        "beta": Column("float64", "inverse temperature; NaN where it is not one number"),
        "quantity": Column("category", "magnetisation, correlation, multiplier, free_energy, energy, entropy, ..."),
        "site": Column("Int32", "spin; missing for quantities of the whole system"),
        "other_site": Column("Int32", "second spin of a correlation"),
        "component": Column("Int32", "component of a vector"),
        "value": Column("float64", "its value; half convention, uniform probability measure"),
        "error": Column("float64", "standard error where it is sampled"),
    }
    | SOLVED,
    "spin_landscape": {
        "method": Column("category", "exact, naive or tap"),
        "m_1": Column("float64", "mean of the first spin"),
        "m_2": Column("float64", "mean of the second spin"),
        "free_energy": Column("float64", "constrained free energy, relative to uniform"),
        "J": Column("float64", "coupling"),
        "beta": Column("float64", "inverse temperature"),
    },
    "retrieval": {
        "step": Column("int32", "updates done"),
        "query": Column("int32", "state that falls"),
        "pattern": Column("int32", "stored pattern"),
        "weight": Column("float64", "attention of the state to the pattern"),
        "energy": Column("float64", "energy of the state; never rises, for any patterns"),
        "beta": Column("float64", "inverse temperature"),
    },
}
