"""The verb `export`: every table and every figure of a run, as files in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts, open_model
from mechview.cli.output import note, say, working
from mechview.errors import UsageError

PARTIAL = 4
Folder = Annotated[Path | None, typer.Option("-o", "--out", help="Folder to write into.", metavar="FOLDER")]
Formats = Annotated[
    str, typer.Option("--formats", help="Of parquet, csv, md, tex (tables), png, svg, pdf, json (figures).")
]  # fmt: skip


def export(
    model: o.ModelName = "toy", prompt: o.Prompts = None, prompts: o.PromptFile = None, ids: o.Ids = None,
    chat: o.Chat = False, bos: o.BosChoice = o.Bos.auto, fold: o.Fold = True, formats: Formats = "parquet,csv,svg",
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: Folder = None, quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """Tables and figures of heads, checks, attention, stream and lens, as files in a folder.

    Exit code 4 when the model does not have something; it is then named.
    """
    if out is None:
        raise UsageError("say where to: --out FOLDER")
    with working(f"exporting {model}", quiet):
        from mechview.reporting.exporting import export as write

        opened = open_model(model, revision, offline, device, dtype)
        texts = Texts(prompt, prompts, ids, chat, bos)
        asked = texts.read(opened) if texts.given else None
        kinds = [kind.strip() for kind in formats.split(",") if kind.strip()]
        found = write(opened, asked, out=out, formats=kinds, bos=bos.value, fold=fold, force=force)
    if found.way:
        note(f"pictures: {found.way}", quiet)
    for sentence in found.missing:
        note(f"left out: {sentence}", False)
    say("".join(f"{found.folder / name}\n" for name in (*found.files, "manifest.json")))
    return PARTIAL if found.missing else 0
