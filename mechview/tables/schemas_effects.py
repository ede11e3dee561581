"""Schemas of effects over a set of prompts, and of the growth of the stream; see `schemas` for what a schema is."""

from __future__ import annotations

from mechview.tables.columns import MODEL, Column, Schema
from mechview.tables.schemas_residual import COMPONENT

EFFECT_SCHEMAS: dict[str, Schema] = {
    "effect_sets": MODEL
    | COMPONENT
    | {
        "stack": Column("category", "decoder, encoder or cross"),
        "kind": Column("category", "ablation by zero, mean or resample, or patching of heads, attention, mlp"),
        "quantity": Column("category", "direct, total, difference (of an ablation), change (of a patch)"),
        "mean": Column("float64", "mean over the prompts, logits"),
        "lo": Column("float64", "lower end of its 95 % BCa bootstrap interval over the prompts"),
        "hi": Column("float64", "upper end"),
        "rel": Column("float64", "mean over the mean clean metric, or over the mean gap of clean and corrupted"),
        "p": Column("float64", "sign-flip test of a mean of 0"),
        "p_adjusted": Column("float64", "the same, corrected for all components (Benjamini-Hochberg)"),
        "n": Column("int32", "prompts"),
        "error": Column("float64", "largest change of the metric in a pass with all values put back as they were"),
    },
    "depth": MODEL
    | {
        "point": Column("category", "where in the stream: L5.pre, L5.mid, final"),
        "pos": Column("int32", "position"),
        "first": Column("bool", "position 0, whose norms stand apart (attention sink)"),
        "norm": Column("float64", "norm of the stream there"),
        "added": Column("float64", "norm of what was added since the point before; NaN at the first"),
        "cos_before": Column("float64", "cosine to the stream at the point before; NaN at the first"),
        "cos_final": Column("float64", "cosine to the final stream"),
    },
}
