"""Results of earlier runs, read back from the JSON that `mechview spin` and `mechview memory` write.

A report then shows them without measuring again. They must be of the same model: weights are compared by their
hash where both are known, by name and revision otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from mechview.errors import UsageError
from mechview.reporting.memory_section import MemoryTables
from mechview.reporting.spin_section import SpinTables


def saved_spin(path: Path, about: Mapping[str, Any], keep_text: bool) -> SpinTables:
    """The tables of a saved `mechview spin`, with or without `--claims`.

    Raises:
        UsageError: the file cannot be read, is another table, or is of another model.
    """
    found = _document(path, "spin", ("spin_models", "claims"), about)
    if found["table"] == "claims" and "spin_models" not in found:
        raise UsageError(
            f"{path} holds claims without their numbers: write it again with this version of mechview spin"
        )
    claims = found["rows"] if found["table"] == "claims" else None
    models = found["spin_models"] if found["table"] == "claims" else found["rows"]
    return SpinTables(
        None if claims is None else _frame(claims, "claims"), _frame(models, "spin_models"),
        _frame(found["thermo"], "thermo"), _made(path, found["manifest"], keep_text),
    )  # fmt: skip


def saved_memory(path: Path, about: Mapping[str, Any], keep_text: bool) -> MemoryTables:
    """The tables of a saved `mechview memory`.

    Raises:
        UsageError: the file cannot be read, is another table, or is of another model.
    """
    found = _document(path, "memory", ("memory",), about)
    if "analogies" not in found:
        raise UsageError(f"{path} holds a behaviour (--recall), which has no analogies: write it without --recall")
    gates = _frame(found["gates"], "gates")
    made = f"Numbers were {_made(path, found['manifest'], keep_text)}."
    return MemoryTables(
        _frame(found["rows"], "memory"), gates if keep_text else gates.assign(token="•"),
        _frame(found["analogies"], "analogies"), (made, *found["manifest"].get("notes", ())), float(found["manifest"].get("error") or "nan"),
    )  # fmt: skip


def _made(path: Path, manifest: Mapping[str, Any], keep_text: bool) -> str:
    """Where numbers come from; the command may hold prompts, so it is kept only where their text is."""
    return f"read from {path.name}" + (
        f", made by {manifest.get('command', 'an unknown command')}" if keep_text else ""
    )


def _document(path: Path, verb: str, tables: tuple[str, ...], about: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not JSON; write it with mechview {verb} --out FILE.json") from None
    if not isinstance(found, dict) or found.get("table") not in tables or "manifest" not in found:
        raise UsageError(f"{path} is not a result of mechview {verb}; write one with mechview {verb} --out FILE.json")
    _same_model(path, found["manifest"], about)
    return found


def _same_model(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    sides = [side for side in (theirs, theirs.get("beside")) if isinstance(side, Mapping)]
    if not any(_fits(side, ours) for side in sides):
        names = ", ".join(f"{side.get('model')} ({side.get('revision')})" for side in sides)
        raise UsageError(f"{path} is of {names or 'another model'}, not of {ours['model']} ({ours['revision']})")


def _fits(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    if theirs.get("weights_sha256") and ours["weights_sha256"]:
        return bool(theirs["weights_sha256"] == ours["weights_sha256"])
    return (theirs.get("model"), theirs.get("revision")) == (ours["model"], ours["revision"])


def _frame(rows: list[dict[str, Any]], table: str) -> pd.DataFrame:
    """Rows of JSON as the table of its schema: null is NaN, "inf" is infinite."""
    from mechview.tables.schemas import SCHEMAS, typed

    spelled = {"inf": float("inf"), "-inf": float("-inf")}
    columns = {name: [row.get(name) for row in rows] for name in SCHEMAS[table]}
    numeric = {name for name, column in SCHEMAS[table].items() if column.dtype == "float64"}
    for name in numeric:
        columns[name] = [
            float("nan") if v is None else spelled.get(v, v) if isinstance(v, str) else v for v in columns[name]
        ]
    return typed(columns, table)
