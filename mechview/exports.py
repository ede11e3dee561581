"""Files: each is written whole under a temporary name in its own folder, then renamed.

An interrupted or failed write leaves the old file or the new one, never half of one. An existing file
is replaced only when told so. Tables go to JSON, CSV, Parquet and Markdown; factors, as thin matrices
and never dense ones, to safetensors and npz. JSON, Parquet, safetensors and npz carry the manifest.
NaN is JSON's null, as in a frame; infinities are the strings "inf" and "-inf"; both are counted.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mechview.errors import OutputError

LONGEST_NAME = 200  # of 255 bytes; a temporary name beside it must fit too
TABLES = ("json", "csv", "parquet", "md", "tex")
FACTORS = ("safetensors", "npz")
PICTURES = ("png", "svg", "pdf", "html")


def check_output(path: Path, force: bool = False) -> Path:
    """The path a result will go to, checked before any work is done for it.

    Raises:
        OutputError: a folder, a missing or unwritable parent, or an existing file without `force`.
    """
    target = Path(os.path.realpath(path.expanduser()))
    if len(os.fsencode(target.name)) > LONGEST_NAME:
        raise OutputError(f"the name {path.name[:40]}... is longer than a file system takes")
    if target.is_dir():
        raise OutputError(f"{path} is a folder; give the name of a file")
    if not target.parent.is_dir():
        raise OutputError(f"there is no folder {path.parent} to write {path.name} in")
    if target.is_file() and not force:
        raise OutputError(f"{path} exists already; --force replaces it")
    if not os.access(target if _is_device(target) else target.parent, os.W_OK):
        raise OutputError(f"{path} cannot be written: no permission")
    return target


def write_bytes(path: Path, data: bytes, *, force: bool = False) -> Path:
    """Put `data` at `path`, all of it or nothing.

    Raises:
        OutputError: `path` cannot be written, or the disk is full.
    """
    target = check_output(path, force)
    try:
        if _is_device(target):  # /dev/stdout, a pipe: renaming a file over it would replace the device
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def write_text(path: Path, text: str, *, force: bool = False) -> Path:
    """`write_bytes` in UTF-8; lone surrogates, which no file can hold, become `\\udc80`."""
    return write_bytes(path, text.encode("utf-8", "backslashreplace"), force=force)


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".mechview-", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def format_of(path: Path | None, asked: str | None, allowed: tuple[str, ...]) -> str:
    """The format asked for, else that of the file's suffix.

    Raises:
        OutputError: it is none of `allowed`, or the two contradict each other.
    """
    suffix = path.suffix.removeprefix(".").lower() if path else ""
    if asked and suffix in (*TABLES, *FACTORS, *PICTURES) and suffix != asked:
        raise OutputError(f"{path} is named as {suffix}, but {asked} was asked for")
    found = asked or suffix
    if found not in allowed:
        shown = f"format {asked}" if asked else f"a file name ending in {path.suffix!r}" if path else "no format"
        raise OutputError(f"{shown} does not fit here; formats: {', '.join(allowed)}")
    return found


def table_bytes(
    frame: Any, kind: str, manifest: Mapping[str, Any], table: str, beside: Callable[[], Mapping[str, Any]] = dict
) -> bytes:
    """A pandas frame in one of the formats of `TABLES`; `table` is its name in the schema.

    Args:
        beside: further frames by name, which only JSON has room for.
    """
    if kind == "csv":
        return bytes(frame.to_csv(index=False, na_rep="NaN", lineterminator="\n").encode("utf-8", "backslashreplace"))
    if kind == "md":
        return markdown(frame).encode("utf-8", "backslashreplace")
    if kind == "tex":
        return latex(frame).encode("utf-8", "backslashreplace")
    if kind == "parquet":
        return _parquet(frame, manifest, table)
    more = {name: other.to_dict("records") for name, other in beside().items()}
    return json_text(table_document(frame.to_dict("records"), manifest, table) | more).encode()


def table_document(rows: list[dict[str, Any]], manifest: Mapping[str, Any], table: str) -> dict[str, Any]:
    """What `--json` prints: schema version, manifest, the rows, and how many numbers are not finite."""
    return {
        "schema_version": manifest["schema_version"],
        "table": table,
        "manifest": manifest,
        "not_finite": not_finite(rows),
        "rows": rows,
    }


def not_finite(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Per column, how many values are NaN and how many are infinite; columns with none are left out."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        for column, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                kinds = counts.setdefault(column, {"nan": 0, "inf": 0})
                kinds["nan" if math.isnan(value) else "inf"] += 1
    return counts


def json_text(document: Any) -> str:
    """Strict JSON (no bare NaN), readable by any parser."""
    return json.dumps(plain(document), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """The same value of JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) in (0, None):
        value = value.item()  # a numpy scalar
    if isinstance(value, float):
        return _plain_float(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return None if type(value).__name__ in ("NAType", "NaTType") else str(value)


def _plain_float(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else "inf" if value > 0 else "-inf"


def markdown(frame: Any) -> str:
    """A GitHub table; bars and line breaks inside cells are escaped."""
    lines = ["| " + " | ".join(map(_cell, frame.columns)) + " |", "|" + " --- |" * len(frame.columns)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in frame.itertuples(index=False, name=None)]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    for char, escaped in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("\r", " "), ("\n", " ")):
        text = text.replace(char, escaped)
    return text


def latex(frame: Any) -> str:
    """A `longtable` (for booktabs); text is escaped, numbers have six significant digits."""
    return str(frame.to_latex(index=False, escape=True, longtable=True, na_rep="", float_format="{:.6g}".format))


def _parquet(frame: Any, manifest: Mapping[str, Any], table: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    about = {b"mechview": json_text({"table": table, **manifest}).encode()}
    buffer = io.BytesIO()
    pq.write_table(arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), **about}), buffer)
    return buffer.getvalue()


def matrices_bytes(matrices: Mapping[str, Any], kind: str, about: Mapping[str, Any]) -> bytes:
    """Named matrices in one of the formats of `FACTORS`, with `about` as metadata."""
    if kind == "safetensors":
        from safetensors.torch import save

        texts = {key: value if isinstance(value, str) else json.dumps(plain(value)) for key, value in about.items()}
        return bytes(save({name: matrix.contiguous() for name, matrix in matrices.items()}, texts))
    import numpy as np

    buffer = io.BytesIO()
    arrays = {name: matrix.cpu().numpy() for name, matrix in matrices.items()}
    np.savez(buffer, metadata=np.array(json_text(about)), **arrays)
    return buffer.getvalue()
