"""Everything a run found, as files in one folder: tables for programs and papers, figures for slides.

Tables follow the schemas that `mechview schema` prints. Figures of each result go beside its table, drawn
by a browser where one is found and by matplotlib otherwise; the manifest says which. A result that a model
does not have (no unembedding, say) is left out and named, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechview.errors import MechviewError, OutputError
from mechview.exports import json_text, table_bytes, write_bytes
from mechview.figures.static import PICTURES, WAYS, available, picture

TABLE_FORMATS = ("parquet", "csv", "md", "tex")
DEFAULT_FORMATS = ("parquet", "csv", "svg")


@dataclass(frozen=True)
class Exported:
    """Files written, the way pictures were drawn (a sentence, empty without pictures), and what was left out."""

    folder: Path
    files: tuple[str, ...]
    way: str
    missing: tuple[str, ...]


def export(
    model: Any,
    prompts: Sequence[Any] | str | None = None,
    *,
    out: str | Path,
    formats: Sequence[str] = DEFAULT_FORMATS,
    bos: str = "auto",
    fold: bool = True,
    way: str | None = None,
    force: bool = False,
) -> Exported:
    """Write tables and figures of heads, checks, attention, stream and lens into a folder.

    Args:
        formats: any of parquet, csv, md, tex for tables and png, svg, pdf, json for figures.
        way: `kaleido` or `matplotlib` for pictures; what is installed, unless given.
        force: replace files of an earlier export.

    Raises:
        OutputError: an unknown format, no library that draws, or a folder that cannot be written.
    """
    folder, chosen = _folder(Path(out), force), _checked(formats)
    drawn = [kind for kind in chosen if kind in PICTURES]
    how = (way or available()) if set(drawn) - {"json"} else "plotly"
    missing: list[str] = []
    files: list[str] = []
    for name, table, result in _results(model, prompts, bos, fold, missing):
        for kind in chosen:
            data = picture(result.figure(), kind, way=how).data if kind in PICTURES else _table(result, kind, table)
            files.append(f"{name}.{kind}")
            write_bytes(folder / files[-1], data, force=force)
    found = Exported(folder, tuple(files), WAYS[how] if drawn else "", tuple(missing))
    write_bytes(folder / "manifest.json", _manifest(model, found, bos, fold), force=force)
    return found


def _checked(formats: Sequence[str]) -> list[str]:
    for kind in formats:
        if kind not in (*TABLE_FORMATS, *PICTURES):
            raise OutputError(f"{kind} is not a format; choose from {', '.join((*TABLE_FORMATS, *PICTURES))}")
    if not formats:
        raise OutputError("no format was asked for")
    return list(dict.fromkeys(formats))


def _folder(out: Path, force: bool) -> Path:
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file; give the name of a folder")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise OutputError(f"{out} is not empty; --force replaces what an earlier export wrote there")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out} cannot be made: {error.strerror}") from None
    return out


def _results(
    model: Any, prompts: Sequence[Any] | str | None, bos: str, fold: bool, missing: list[str]
) -> Iterator[tuple[str, str, Any]]:
    """File name, table name and result, one at a time, so that only one is in memory."""
    from mechview.checks import parity
    from mechview.heads.table import head_table
    from mechview.models.tracing import default_prompt, trace

    yield "heads", "heads", head_table(model, fold=fold)
    asked = [prompts] if isinstance(prompts, str) else prompts
    for number, prompt in enumerate([default_prompt(model)] if asked is None else asked):
        seen = _tried(lambda prompt=prompt: trace(model, prompt, bos=bos), f"prompt {number}", missing)
        if seen is None:
            continue
        yield f"prompt-{number}-parity", "parity", parity(model, seen, fold=fold)
        for name, table, make in _of_prompt(seen):
            result = _tried(make, f"{name} of prompt {number}", missing)
            if result is not None:
                yield f"prompt-{number}-{name}", table, result


def _of_prompt(seen: Any) -> list[tuple[str, str, Callable[[], Any]]]:
    from mechview.heads.attention import attend
    from mechview.residual.ledger import ledger
    from mechview.residual.lens import lens
    from mechview.residual.shares import shares

    def likeliest() -> int:
        if seen.logits is None:
            raise OutputError("this model has no unembedding, so no token to speak for")
        return int(seen.logits[-1].argmax())

    return [
        ("attention", "attention", lambda: attend(seen)),
        ("stream", "contrib", lambda: ledger(seen)),
        ("shares", "contrib", lambda: shares(seen, likeliest())),
        ("lens", "lens", lambda: lens(seen)),
    ]


def _tried(make: Callable[[], Any], what: str, missing: list[str]) -> Any:
    try:
        return make()
    except MechviewError as error:
        missing.append(f"{what}: {error}")
        return None


def _table(result: Any, kind: str, table: str) -> bytes:
    from mechview.manifest import SCHEMA_VERSION

    return table_bytes(result.frame(), kind, {"schema_version": SCHEMA_VERSION, **result.manifest}, table)


def _manifest(model: Any, found: Exported, bos: str, fold: bool) -> bytes:
    from mechview.manifest import manifest

    about = manifest(model, None, verb="export", bos=bos, fold=fold)
    more = {"files": found.files, "pictures": found.way, "missing": found.missing}
    return json_text({**about, **more}).encode()
