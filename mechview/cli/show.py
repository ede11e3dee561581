"""Rows as a terminal table. Never cut: into a pipe a table is as wide as it is; cells are text, not markup."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from mechview.cli.words import one_line

WIDE = 10_000


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> str:
    """A table; numbers to the right, four significant digits, `-` for what was not measured."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    made = Table(box=box.SIMPLE_HEAD)
    for n, column in enumerate(columns):
        numeric = any(_is_number(row[n]) for row in cells)
        made.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        made.add_row(*(Text(one_line(number(cell))) for cell in row))
    return (f"{one_line(title)}\n" if title else "") + drawn(made)


def facts(pairs: Mapping[str, Any], title: str = "") -> str:
    """Names and values, one a line."""
    width = max(map(len, pairs), default=0)
    lines = [f"{name:<{width}}  {one_line(number(value))}" for name, value in pairs.items()]
    return "\n".join([*([title] if title else []), *lines]) + "\n"


def frame_table(frame: Any, columns: Sequence[str] | None = None, title: str = "") -> str:
    """A pandas frame as a table."""
    names = list(columns or frame.columns)
    return table(names, frame[names].itertuples(index=False, name=None), title)


def drawn(renderable: Any) -> str:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=None if terminal else WIDE)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def number(value: Any) -> str:
    """Four significant digits; whole numbers whole; NaN of a frame means not measured."""
    if value is None:
        return "-"
    if not _is_number(value) or isinstance(value, Integral):
        return str(value)
    return "-" if math.isnan(value) else f"{float(value):.4g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
