"""Finished layers on disk, so that an interrupted run goes on where it stopped.

One JSON file a layer in a folder, written under a temporary name and renamed; each carries a fingerprint of
the model, the sequences and the plan, and a file with another fingerprint is not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mechview.errors import OutputError
from mechview.exports import write_text
from mechview.spins.layers.verdicts import SpinRow

SPELLED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class LayerResult:
    """One finished layer: rows, weights of its fits by quantity and metric, and reaction spectra."""

    layer: int
    rows: tuple[SpinRow, ...]
    weights: dict[str, list[float]]
    spectra: dict[str, list[Any]]


@dataclass(frozen=True)
class Shelf:
    """The folder of a run."""

    folder: Path
    fingerprint: str

    def read(self, layer: int) -> LayerResult | None:
        """The layer, if it was finished by the same run; a damaged file counts as none."""
        try:
            found = json.loads(self._path(layer).read_text(encoding="utf-8"))
            if found["fingerprint"] != self.fingerprint:
                return None
            rows = tuple(SpinRow(**{key: _number(value) for key, value in row.items()}) for row in found["rows"])
            return LayerResult(layer, rows, found["weights"], found["spectra"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, result: LayerResult) -> None:
        rows = [{key: _text(value) for key, value in asdict(row).items()} for row in result.rows]
        document = {
            "fingerprint": self.fingerprint,
            "rows": rows,
            "weights": result.weights,
            "spectra": result.spectra,
        }
        write_text(self._path(result.layer), json.dumps(document), force=True)

    def _path(self, layer: int) -> Path:
        return self.folder / f"spin-layer-{layer:03d}.json"


def shelf(folder: str | Path | None, about: dict[str, Any]) -> Shelf | None:
    """A folder for finished layers, made if it is not there.

    Raises:
        OutputError: it cannot be made or written to.
    """
    if folder is None:
        return None
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the folder {path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise OutputError(f"the folder {path} cannot be written to")
    text = json.dumps(about, sort_keys=True, default=str)
    return Shelf(path, hashlib.sha256(text.encode()).hexdigest())


def _text(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return SPELLED.get(value, value) if isinstance(value, str) else value
