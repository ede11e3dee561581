"""The registry of table schemas: per table, its columns in order, their dtypes and what they mean.

`str` is pandas' own string dtype; `Int16` (capital) is an integer that may be missing; `category` is
text with few values. `typed` builds a frame of a schema, `check_schema` refuses one that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mechview.errors import CheckError
from mechview.manifest import SCHEMA_VERSION
from mechview.tables.columns import HEAD, MODEL, PROMPT, Column, Schema
from mechview.tables.schemas_cost import COST_SCHEMAS
from mechview.tables.schemas_effects import EFFECT_SCHEMAS
from mechview.tables.schemas_heads import HEADS_SCHEMAS
from mechview.tables.schemas_memory import MEMORY_SCHEMAS
from mechview.tables.schemas_residual import RESIDUAL_SCHEMAS
from mechview.tables.schemas_roles import ROLE_SCHEMAS
from mechview.tables.schemas_solvers import SOLVER_SCHEMAS
from mechview.tables.schemas_spin_layers import SPIN_LAYER_SCHEMAS

SCHEMAS: dict[str, Schema] = (
    {
        "heads": HEAD
        | {
            "offset": Column("Int32", "q_pos - k_pos at which a rotary pattern is taken; missing for other positions"),
            "metric": Column("category", "what is measured; `mechview.heads.notes.NOTES` defines each"),
            "value": Column("float64", "the measurement, in `unit`"),
            "null_mean": Column(
                "float64", "the same without structure, as the metric's note says; NaN where no null exists"
            ),
            "null_sd": Column("float64", "standard deviation of the null over its draws"),
            "z": Column("float64", "(value - null_mean) / null_sd"),
            "n": Column("int32", "draws behind the null"),
            "seed_sd": Column(
                "float64", "spread over seeds of a measurement that is random itself; NaN for exact ones"
            ),
            "unit": Column("category", "unit of value, null_mean and null_sd"),
            "source": Column("category", "where the definition comes from"),
        },
        "svd": HEAD
        | {
            "offset": Column("Int32", "q_pos - k_pos at which a rotary pattern is taken; missing for other positions"),
            "side": Column("category", "pattern or message"),
            "index": Column("int32", "place of the singular value, from 0, descending"),
            "sigma": Column("float64", "singular value, weight units"),
            "sigma_rel": Column("float64", "singular value / the head's largest"),
            "degenerate": Column(
                "bool", "a neighbour lies within 1 % (relative): the single direction is not determined"
            ),
        },
        "parity": MODEL
        | {
            "quantity": Column("category", "pattern, message, attention, stream or logits"),
            "stack": Column("category", "decoder, encoder or cross; missing for the logits"),
            "layer": Column("Int16", "block, from 0; missing for the logits"),
            "head": Column("Int16", "query head; missing for whole layers"),
            "kv_head": Column("Int16", "key/value head; missing for whole layers"),
            "label": Column("str", "L5H1 for a head, L5 for a layer, empty for the logits"),
            "error": Column("float64", "max|ours - model's| / max|model's|"),
            "passed": Column("bool", "error below tolerance (a NaN error is not)"),
            "tolerance": Column("float64", "largest error that passes"),
            "backend": Column("category", "where the model's own values were captured"),
            "n_tokens": Column("int32", "tokens of the prompt compared on"),
        },
        "attention": PROMPT
        | HEAD
        | {
            "q_pos": Column("int32", "position of the token that looks"),
            "k_pos": Column("int32", "position of the token that is looked at"),
            "weight": Column("float64", "attention weight, 0 to 1"),
            "score": Column("float64", "score before softmax, as the model scales and caps it"),
            "value_norm": Column("float64", "norm of what the key's token would send, stream units"),
            "dropped_mass": Column(
                "float64", "weight of this head at this q_pos in rows left out as below the threshold"
            ),
        },
        "prompt_heads": PROMPT
        | HEAD
        | {
            "metric": Column("category", "what is measured; `mechview.heads.notes.NOTES` defines each"),
            "value": Column("float64", "mean over the queries counted, in `unit`"),
            "null_mean": Column("float64", "the same for attention spread evenly over the visible keys"),
            "n": Column("int32", "queries counted"),
            "unit": Column("category", "unit of value and null_mean"),
        },
        "tokens": PROMPT
        | {
            "stack": Column("category", "whose input it is: decoder or encoder"),
            "pos": Column("int32", "position, from 0"),
            "id": Column("int32", "token id"),
            "text": Column("str", "text of the token"),
            "shown": Column("str", "the text with every character visible, shortened"),
            "special": Column("bool", "beginning of sequence and the like"),
        },
    }
    | RESIDUAL_SCHEMAS
    | COST_SCHEMAS
    | EFFECT_SCHEMAS
    | SOLVER_SCHEMAS
    | HEADS_SCHEMAS
    | ROLE_SCHEMAS
    | SPIN_LAYER_SCHEMAS
    | MEMORY_SCHEMAS
)


def schema() -> dict[str, Any]:
    """All schemas as plain values, with their version; what `mechview schema` prints."""
    tables = {
        name: {column: {"dtype": spec.dtype, "meaning": spec.meaning} for column, spec in columns.items()}
        for name, columns in SCHEMAS.items()
    }
    return {"schema_version": SCHEMA_VERSION, "tables": tables}


def typed(columns: Mapping[str, Any], name: str) -> pd.DataFrame:
    """A frame of the schema `name`; scalars are spread over all rows.

    Raises:
        CheckError: the columns are not those of the schema.
    """
    specs = SCHEMAS[name]
    if set(columns) != set(specs):
        raise CheckError(f"table {name} has other columns: {', '.join(sorted(set(columns) ^ set(specs)))}")
    length = max(
        len(values) for values in columns.values() if not isinstance(values, str) and hasattr(values, "__len__")
    )
    index = pd.RangeIndex(length)
    series = {column: _series(columns[column], spec.dtype, index) for column, spec in specs.items()}
    return pd.DataFrame(series, index=index)


def _series(values: Any, dtype: str, index: pd.RangeIndex) -> pd.Series:
    spread = values if hasattr(values, "__len__") and not isinstance(values, str) else [values] * len(index)
    return pd.Series(pd.array(spread, dtype=dtype) if len(index) else [], dtype=dtype, index=index)


def check_schema(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The same frame, after its columns, their order and their dtypes were found right.

    Raises:
        CheckError: the first thing that is wrong.
    """
    if name not in SCHEMAS:
        raise CheckError(f"there is no table {name}; tables: {', '.join(SCHEMAS)}")
    specs = SCHEMAS[name]
    if list(frame.columns) != list(specs):
        raise CheckError(f"table {name} has columns {list(frame.columns)}, not {list(specs)}")
    for column, spec in specs.items():
        if str(frame[column].dtype) != spec.dtype:
            raise CheckError(f"column {column} of table {name} is {frame[column].dtype}, not {spec.dtype}")
    return frame
