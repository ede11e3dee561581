"""Schemas of what heads do: role cards and distance profiles. Scores are rows of the `heads` table."""

from __future__ import annotations

from mechview.tables.columns import HEAD, Column, Schema

ROLE_SCHEMAS: dict[str, Schema] = {
    "roles": HEAD
    | {
        "roles": Column("str", "roles that the head holds, joined by +; mixed or unknown where it holds none"),
        "role": Column("category", "role that this row's test belongs to"),
        "held": Column("bool", "the head holds that role: all of its tests passed"),
        "metric": Column("category", "what the test measures; `mechview.heads.notes.NOTES` defines each"),
        "value": Column("float64", "the measurement, in `unit`; NaN where it does not exist"),
        "side": Column("category", "at_least or at_most: on which side of the threshold the role lies"),
        "threshold": Column("float64", "what the value is compared with, in `unit`"),
        "beyond_null": Column("bool", "the test also asks that the value lies outside the 95 % band of the null"),
        "passed": Column("boolean", "how the test came out; missing where it was not made"),
        "null_mean": Column("float64", "mean of the metric over permuted copies of the model and heads of the layer"),
        "null_sd": Column("float64", "standard deviation of the null over its draws"),
        "z": Column("float64", "(value - null_mean) / null_sd"),
        "n": Column("int32", "draws behind the null"),
        "unit": Column("category", "unit of value, threshold, null_mean and null_sd"),
    },
    "distances": HEAD
    | {
        "distance": Column("int32", "q_pos - k_pos"),
        "value": Column("float64", "mean attention weight over queries that see a key at this distance"),
        "null_mean": Column("float64", "the same over permuted copies of the model and heads of the layer"),
        "null_sd": Column("float64", "standard deviation of the null over its draws"),
        "n": Column("int32", "draws behind the null"),
    },
}
