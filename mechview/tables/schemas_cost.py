"""Schemas of estimates and of attribution at all positions; see `schemas` for what a schema is."""

from __future__ import annotations

from mechview.tables.columns import MODEL, Column, Schema
from mechview.tables.schemas_residual import CHECK, COMPONENT

COST_SCHEMAS: dict[str, Schema] = {
    "cost": MODEL
    | {
        "verb": Column("str", "what would be run"),
        "prompts": Column("int32", "prompts"),
        "tokens": Column("int64", "tokens of all prompts"),
        "longest": Column("int32", "tokens of the longest"),
        "passes": Column("int64", "forward passes"),
        "flops": Column("float64", "operations in matrix products, two a multiply-add"),
        "weight_bytes": Column("int64", "weights in the dtype of the pass"),
        "trace_bytes": Column("int64", "traces alive at once"),
        "transient_bytes": Column("int64", "held for a moment inside a pass"),
        "answer_bytes": Column("int64", "the answer, with what its sums hold"),
        "peak_bytes": Column("int64", "weights, traces, and the larger of moment and answer"),
    },
    "attribution": MODEL
    | COMPONENT
    | {
        "target": Column("str", "direction the values are along"),
        "position": Column("int32", "position of each prompt that was read"),
        "mean": Column("float64", "mean share over prompts, in logits for a token"),
        "sd": Column("float64", "standard deviation over prompts; NaN for one"),
        "n": Column("int32", "prompts"),
        "total": Column("float64", "mean of the model's own value"),
    }
    | CHECK,
}
