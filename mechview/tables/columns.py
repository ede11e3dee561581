"""What a schema is made of: columns with a dtype and a meaning, and the key columns that tables share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column: its dtype, and what a value means (with its unit)."""

    dtype: str
    meaning: str


Schema = dict[str, Column]

MODEL: Schema = {
    "model": Column("category", "name the model was opened by"),
    "revision": Column("category", "commit, checkpoint or package version; missing where there is none"),
}
HEAD: Schema = MODEL | {
    "stack": Column("category", "decoder, encoder or cross"),
    "layer": Column("int16", "block, from 0"),
    "head": Column("int16", "query head, from 0"),
    "kv_head": Column("int16", "key/value head that this query head reads"),
    "label": Column("str", "L5H1; E. and X. before it for encoder and cross-attention heads"),
}
PROMPT: Schema = {"prompt_id": Column("int16", "number of the prompt, from 0")}
