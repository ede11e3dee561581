"""The manifest of a memory measurement: both models, an LSTM described by the same fields as a transformer."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from mechview.manifest import Run, manifest
from mechview.models.checkpoint import FolderTensors
from mechview.models.load import Model
from mechview.recurrent.weights import Lstm


def facts(
    sides: Sequence[Model | Lstm], run: Run | None = None, *, hashed: bool = True, **arguments: Any
) -> dict[str, Any]:
    """Manifest of the first model; what stands beside it is under `beside`."""
    first, *others = [manifest(described(one), run, hashed=hashed, **arguments) for one in sides]
    beside = [{key: other[key] for key in ("model", "revision", "weights_sha256", "shape")} for other in others]
    return first | ({"beside": beside[0]} if beside else {})


def described(side: Model | Lstm) -> Any:
    """A transformer as it is; of an LSTM the fields that a manifest reads."""
    if isinstance(side, Model):
        return side
    top = side.layers[-1]
    return SimpleNamespace(
        source=SimpleNamespace(
            name=side.name, kind="lstm", revision=side.revision, folder=side.folder, config_folder=None
        ),
        weights=None if side.folder is None else SimpleNamespace(source=FolderTensors(side.folder)),
        shape=SimpleNamespace(
            family="lstm", layers=len(side.layers), directions=len(top), cells=top[0].cells, width=top[0].width,
            d_vocab=None if side.W_E is None else len(side.W_E),
        ),
    )  # fmt: skip
