"""Verbs that open no model: `models`, which loads no torch, and `schema`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mechview.cli.options import Force, Form, Json, Out, Quiet
from mechview.cli.output import Answer, emit, output
from mechview.cli.show import table
from mechview.exports import table_document
from mechview.manifest import SCHEMA_VERSION
from mechview.version import __version__

COLUMNS = ("name", "kind", "size_mb", "licence", "revision", "checkpoints")
PROMPT_COLUMNS = ("prompt", "target", "against", "corrupted")
SCHEMA = ("table", "column", "dtype", "meaning")


def models(out: Out = None, format: Form = None, json: Json = False, quiet: Quiet = False, force: Force = False) -> int:
    """Models that need no download: bundled, in packages, in caches."""
    from mechview.models.found import found_models

    to = output(out, format, json, quiet, force)
    rows = [
        (m.name, m.kind, round(m.size / 1e6, 2), m.licence, m.revision, " ".join(m.checkpoints) or None)
        for m in found_models()
    ]
    document = lambda: table_document([dict(zip(COLUMNS, row, strict=True)) for row in rows], ABOUT, "models")  # noqa: E731
    emit(Answer("models", lambda: _frame(COLUMNS, rows), lambda: _listed(rows), lambda: ABOUT, document=document), to)
    return 0


def _listed(rows: list[tuple[Any, ...]]) -> str:
    from mechview.models.found import LSTM_KINDS

    said = [f"{row[0]} has checkpoints (--revision): {row[-1]}\n" for row in rows if row[-1]]
    said += [f"{row[0]} is an LSTM: mechview memory {row[0]} opens it\n" for row in rows if row[1] in LSTM_KINDS]
    return table(COLUMNS[:-1], [row[:-1] for row in rows]) + "".join(said)


def prompts(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A table, or a file of the same form.")] = None,
    out: Out = None, format: Form = None, json: Json = False, quiet: Quiet = False, force: Force = False,
) -> int:  # fmt: skip
    """Bundled tables of prompts and what each is for, or the rows of one; verbs read them with --prompts NAME."""
    from mechview.models.prompt_tables import prompt_table, prompt_tables

    to = output(out, format, json, quiet, force)
    if name is None:
        columns: tuple[str, ...] = ("name", "prompts", "purpose")
        rows: list[tuple[Any, ...]] = [(n, len(prompt_table(n)), purpose) for n, purpose in prompt_tables().items()]
        said = ""
    else:
        found = prompt_table(name)
        columns = PROMPT_COLUMNS
        rows = [(str(c.prompt), c.target, c.against, c.corrupted) for c in found]
        said = f"{found.purpose}\n" + "".join(f"{column}: {meaning}\n" for column, meaning in found.columns.items())
    text = lambda: said + table(columns, rows)  # noqa: E731
    document = lambda: table_document([dict(zip(columns, row, strict=True)) for row in rows], ABOUT, "prompts")  # noqa: E731
    emit(Answer("prompts", lambda: _frame(columns, rows), text, lambda: ABOUT, document=document), to)
    return 0


def schema(out: Out = None, format: Form = None, json: Json = False, quiet: Quiet = False, force: Force = False) -> int:
    """Columns, types and meanings of every table."""
    from mechview import tables

    to = output(out, format, json, quiet, force)
    rows = [(name, c, s.dtype, s.meaning) for name, columns in tables.SCHEMAS.items() for c, s in columns.items()]
    title = f"Schema version {SCHEMA_VERSION}"
    text = lambda: table(SCHEMA, rows, title)  # noqa: E731
    emit(Answer("schema", lambda: _frame(SCHEMA, rows), text, lambda: ABOUT, document=tables.schema), to)
    return 0


def _frame(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))


ABOUT = {"schema_version": SCHEMA_VERSION, "mechview": __version__}
