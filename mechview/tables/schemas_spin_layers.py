"""Schemas of the spin correspondence's tables; see `schemas` for what a schema is."""

from __future__ import annotations

from mechview.tables.columns import MODEL, Column, Schema

ROW: Schema = MODEL | {
    "layer": Column("int16", "block, from 0"),
    "head": Column("Int16", "query head; missing for the whole layer"),
    "label": Column("str", "L5H1 for a head, L5 for a layer"),
    "target": Column("category", "what it is about: attention, mlp, block, weights, rows, stream"),
    "quantity": Column("category", "what is measured (SPIN, parts C.1 and C.4)"),
    "metric": Column("category", "raw, or tw: each token divided by the norm of its target"),
    "value": Column("float64", "the number on test documents; R2 for fits"),
    "lo": Column("float64", "lower end of the 95 % bootstrap interval over sequences (jackknife for M4, M5 shapes)"),
    "hi": Column("float64", "upper end"),
    "null_name": Column("str", "control the row is set against; empty where there is none"),
    "null": Column("float64", "the same number under the control, mean of its draws"),
    "null_lo": Column("float64", "lower end of 95 % of draws and resamples of the control"),
    "null_hi": Column("float64", "upper end"),
    "n_null": Column("int32", "draws of the control"),
    "verdict": Column("category", "informative, weak, vacuous or not-applicable, by rule"),
    "decides": Column("bool", "the control that the verdict rests on"),
    "reason": Column("str", "why the verdict"),
    "n_sequences": Column("int32", "sequences measured on"),
}
SPIN_LAYER_SCHEMAS: dict[str, Schema] = {
    "spin_models": ROW,
    "thermo": ROW | {"unit": Column("category", "unit of value, interval and null")},
    "spin_weights": MODEL
    | {
        "layer": Column("int16", "block, from 0"),
        "head": Column("Int16", "query head, for fits of one head"),
        "quantity": Column("category", "rung of the ladder"),
        "metric": Column("category", "raw or tw"),
        "predictor": Column("int16", "number of the predictor field, from 0"),
        "weight": Column("float64", "its fitted weight"),
    },
    "spin_spectra": MODEL
    | {
        "layer": Column("int16", "block, from 0"),
        "metric": Column("category", "raw or tw"),
        "index": Column("int32", "place of the eigenvalue, ascending"),
        "eigenvalue": Column("float64", "of the symmetric half of the reaction matrix M4"),
        "null_lo": Column("float64", "smallest at this place over draws with permuted hidden units; NaN without"),
        "null_hi": Column("float64", "largest"),
    },
    "claims": MODEL
    | {
        "claim": Column("str", "what is claimed"),
        "source": Column("str", "where"),
        "test": Column("str", "how it is tested"),
        "finding": Column("str", "what this model shows"),
        "verdict": Column("category", "informative, weak, vacuous or not-applicable"),
    },
}
