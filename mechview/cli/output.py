"""Where a result goes: a table on the terminal, a format on stdout, or a file written whole.

A verb hands over functions, so that a frame is made only when something shows it and the manifest,
which hashes the whole checkpoint, only when something carries it.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechview.cli.options import Format
from mechview.cli.words import one_line
from mechview.errors import OutputError
from mechview.exports import FACTORS, PICTURES, TABLES, check_output, format_of, json_text, table_bytes, write_bytes
from mechview.manifest import Run, recorded


class Closed(Exception):
    """Whoever read stdout has stopped reading."""


@dataclass(frozen=True)
class Output:
    """What the options ask for. `kind` is None for a table on the terminal."""

    path: Path | None
    kind: str | None
    quiet: bool
    force: bool


def output(
    path: Path | None, form: Format | None, json: bool, quiet: bool, force: bool, allowed: tuple[str, ...] = TABLES
) -> Output:
    """Options checked before any work: a file that cannot be written stops the run at its start."""
    if json and form not in (None, Format.json):
        raise OutputError(f"--json and --format {form} contradict each other")
    asked = Format.json if json else form
    if path is None and asked is None:
        return Output(None, None, quiet, force)
    if path is None and asked in ("parquet", *FACTORS, *PICTURES):
        raise OutputError(f"{asked} is not for a terminal; give a file with --out")
    kind = format_of(path, asked, allowed)
    if path is not None:
        check_output(path, force)
    return Output(path, kind, quiet, force)


DRAWN = (*TABLES, *PICTURES)  # what a verb with a figure may write


@dataclass(frozen=True)
class Answer:
    """A result ready to be shown: the name of its table, its frame, its text, its manifest, on demand.

    `beside` gives further frames by name, which JSON holds next to the rows; `document` replaces the whole
    JSON where rows of one table would not say enough; `figure` is what pictures are drawn of.
    """

    table: str
    frame: Callable[[], Any]
    text: Callable[[], str]
    manifest: Callable[[], Mapping[str, Any]]
    beside: Callable[[], Mapping[str, Any]] = dict
    document: Callable[[], Mapping[str, Any]] | None = None
    figure: Callable[[], Any] | None = None


def of_result(table: str, found: Any, text: Callable[[], str], about: Callable[[], Mapping[str, Any]]) -> Answer:
    """A result with a frame and a figure, ready to be shown."""
    return Answer(table, found.frame, text, about, figure=found.figure)


def emit(answer: Answer, to: Output) -> None:
    if to.kind is None:
        return say(answer.text())
    if to.kind == "json" and answer.document:
        data = json_text(answer.document()).encode()
    elif to.kind in PICTURES and answer.figure:
        data = drawn(answer.figure(), to.kind)
    else:
        data = table_bytes(answer.frame(), to.kind, answer.manifest(), answer.table, answer.beside)
    if to.path is None:
        return say(data.decode())
    write_bytes(to.path, data, force=to.force)
    note(f"wrote {to.path}", to.quiet)


def drawn(figure: Any, kind: str) -> bytes:
    """A figure as a file: a picture, or a page of its own that works offline.

    Raises:
        OutputError: no library that draws pictures is installed.
    """
    if kind == "html":
        return str(figure.to_html(include_plotlyjs=True, full_html=True)).encode("utf-8", "backslashreplace")
    from mechview.figures.static import picture

    return picture(figure, kind).data


def say(text: str) -> None:
    """Data, on stdout.

    Raises:
        Closed: its reader went away. OutputError: it cannot be written (a full disk behind a redirect).
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise Closed from None
    except OSError as error:
        reason = "no space left" if error.errno == errno.ENOSPC else error.strerror
        raise OutputError(f"stdout cannot be written: {reason}") from None


def note(text: str, quiet: bool) -> None:
    """Progress, on stderr."""
    if not quiet:
        print(one_line(text), file=sys.stderr)


@contextmanager
def working(what: str, quiet: bool) -> Iterator[Run]:
    """A run whose warnings are gathered and shown at its end; on a terminal, a sign that it goes on."""
    with recorded() as run, _sign(what, quiet):
        yield run
    for warning in run.warnings:
        note(f"mechview: {warning}", quiet)


@contextmanager
def _sign(what: str, quiet: bool) -> Iterator[None]:
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(one_line(what)):
        yield
