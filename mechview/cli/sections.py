"""Options of `report` for sections that are measured only when they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechview.cli.asked import open_model
from mechview.cli.options import _option
from mechview.errors import UsageError

Compare = Annotated[
    list[str] | None,
    _option("--compare", "Compare the first -p with this prompt; repeatable, each with its -p, for intervals.", "TEXT"),
]
CompareModel = Annotated[
    str | None, _option("--compare-model", "Compare the model with this one, head by head.", "MODEL")
]
CompareRevision = Annotated[
    str | None, _option("--compare-revision", "Revision of that model; alone, of the same model.", "REVISION")
]
Spin = Annotated[bool, typer.Option("--spin", help="Add the spin correspondence, fitted quickly.")]
SpinFrom = Annotated[
    Path | None, _option("--spin-from", "Add the spin correspondence of a saved spin --claims FILE.json.", "FILE")
]
Memory = Annotated[bool, typer.Option("--memory", help="Add what stays of what was written.")]
MemoryFrom = Annotated[Path | None, _option("--memory-from", "Add memory from a saved memory FILE.json.", "FILE")]


def asked_sections(
    opened: Any, offline: bool, compare: list[str] | None, model: str | None, revision: str | None,
    spin: bool | Path, memory: bool | Path,
) -> Any:  # fmt: skip
    """The sections asked for; a second model is opened here."""
    from mechview.reporting.sections import extras

    other = None
    if model is not None or revision is not None:
        other = open_model(model or opened.source.name, revision, offline)
    return extras(compare, other, spin, memory)


def measured_or_read(name: str, measure: bool, saved: Path | None) -> bool | Path:
    """One of the two ways to get a section.

    Raises:
        UsageError: both were asked for.
    """
    if measure and saved is not None:
        raise UsageError(f"--{name} measures and --{name}-from reads: choose one")
    return saved if saved is not None else measure


def check_dry(dry_run: bool, *asked: Any) -> None:
    """Raises UsageError: a dry run does not count sections."""
    if dry_run and any(asked):
        raise UsageError(
            "--dry-run counts heads and stream alone: leave out --compare, --compare-model, --spin, --memory"
        )
