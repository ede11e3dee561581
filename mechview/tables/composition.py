"""Composition and similarity of heads as frames: one pair of heads a row, each beside its nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mechview.factors import head_label
from mechview.heads.composition import Composition
from mechview.heads.composition_parts import ComponentComposition
from mechview.heads.similarity import Similarity
from mechview.results import frame_of
from mechview.tables.schemas import typed


@frame_of(Composition)
def composition_frame(found: Composition) -> pd.DataFrame:
    """The `composition` table: pairs in which the sender comes first."""
    low, high = found.band()
    arrays = {
        "value": found.values, "null": found.null, "excess": found.excess, "shuffled": found.shuffled,
        "shuffled_excess": found.values - found.shuffled, "z": found.z, "low": low, "high": high,
    }  # fmt: skip
    reached = ~found.null.isnan().numpy()  # a value that came out as NaN keeps its row
    src_layer, src_head, dst_layer, dst_head = reached.nonzero()
    columns: dict[str, Any] = {name: array.numpy()[reached] for name, array in arrays.items()}
    columns |= _end("src", found.source, src_layer, src_head, found.source_kv.numpy(), found.several)
    columns |= _end("dst", found.stack, dst_layer, dst_head, found.kv.numpy(), found.several)
    same = ("model", "revision", "kind", "definition", "offset")
    return typed(columns | {name: getattr(found, name) for name in same} | {"n": found.shuffles}, "composition")


def _end(side: str, stack: Any, layers: Any, heads: Any, groups: Any, several: bool) -> dict[str, Any]:
    labels = [head_label(int(n), int(h), stack, several) for n, h in zip(layers, heads, strict=True)]
    return {
        f"{side}_stack": stack, f"{side}_layer": layers, f"{side}_head": heads, f"{side}_kv_head": groups[heads],
        f"{side}_label": labels,
    }  # fmt: skip


@frame_of(ComponentComposition)
def components_frame(found: ComponentComposition) -> pd.DataFrame:
    """The `composition_components` table: components that exist, of senders that come first."""
    there = ~found.values.isnan().numpy()
    layers, heads, index = there.nonzero()
    columns: dict[str, Any] = {
        name: getattr(found, name).numpy()[there] for name in ("sigma", "degenerate", "values", "z")
    }
    columns["value"] = columns.pop("values")
    columns |= _end("src", found.source, layers, heads, found.source_kv.numpy(), found.several)
    columns |= {
        "dst_stack": found.stack, "dst_layer": found.layer, "dst_head": found.head, "dst_kv_head": found.kv_head,
        "dst_label": found.label, "index": index, "null": found.null,
    }  # fmt: skip
    return typed(
        columns | {name: getattr(found, name) for name in ("model", "revision", "kind", "offset")},
        "composition_components",
    )


@frame_of(Similarity)
def similarity_frame(found: Similarity) -> pd.DataFrame:
    """The `similarity` table: every pair of heads, a head with itself left out."""
    values = found.values.numpy()
    kept = np.ones_like(values, dtype=bool)
    if found.same_model:
        np.fill_diagonal(kept, False)
    a, b = kept.nonzero()
    same = ("model", "revision", "model_b", "revision_b", "side", "space", "null_sd", "offset")
    columns: dict[str, Any] = {name: getattr(found, name) for name in same}
    columns |= {"label_a": [found.labels_a[n] for n in a], "label_b": [found.labels_b[n] for n in b]}
    return typed(columns | {"cosine": values[kept], "z": values[kept] / found.null_sd}, "similarity")
