"""The verb `memory`: what stays of what was written, in a transformer, in an LSTM, or in both side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts
from mechview.cli.memory_text import memory_text
from mechview.cli.output import Answer, emit, note, output, say, working
from mechview.cli.passes import KeepText
from mechview.errors import UsageError
from mechview.exports import TABLES, check_output, write_text

Model = Annotated[
    str,
    typer.Argument(
        metavar="[MODEL]", help="Transformer, or LSTM: twin, package:textgenrnn, a folder.", show_default=False
    ),
]
Beside = Annotated[str | None, typer.Option("--beside", help="Second model of the other kind, on the same prompts.")]
Copies = Annotated[int, typer.Option("--copies", min=0, help="Copies with permuted weights behind the null.")]
Causal = Annotated[bool, typer.Option("--causal/--no-causal", help="Also ablate every write.")]
Behaviour = Annotated[
    bool, typer.Option("--recall", help="Behaviour instead: copying, cues and probes on random tokens.")
]


def memory(
    model: Model = "toy", beside: Beside = None, prompt: o.Prompts = None, prompts: o.PromptFile = None, ids: o.Ids = None,
    bos: o.BosChoice = o.Bos.auto, copies: Copies = 5, causal: Causal = True, recall: Behaviour = False,
    seed: o.Seed = 0, revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, keep_text: KeepText = None, out: o.Out = None, format: o.Form = None, json: o.Json = False,
    quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """What stays of what was written: gates, retention, forgetting, with nulls and verdicts.

    A file ending in .html is one page with charts; other formats hold the table `memory`, and JSON also the
    tables `gates` and `analogies`.
    """
    page = out if out is not None and out.suffix.lower() in (".html", ".htm") else None
    to = None if page else output(out, format, json, quiet, force, TABLES)
    if page:
        check_output(page, force)
    told: dict[str, Any] = dict(verb="memory", beside=beside, copies=copies, causal=causal, bos=bos.value, seed=seed)
    with working(f"measuring {model}", quiet) as run:
        sides = [
            opened(spec, revision if n == 0 else None, dtype, device, offline)
            for n, spec in enumerate(named(model, beside))
        ]
        asked = Texts(prompt, prompts, ids, False, bos)
        found = measured(sides, asked.read(sides[0]) if asked.given else None, told, recall)
    kept = prompts is None if keep_text is None else keep_text
    if to is None:
        return write_page(found, out, about(sides, run, told), kept, force, quiet)  # type: ignore[arg-type]
    checked = {"notes": list(found.notes), "error": found.error} if hasattr(found, "analogies") else {}
    text, facts = lambda: memory_text(found), lambda: about(sides, run, told) | checked
    emit(Answer("memory", found.frame, text, facts, lambda: tables_of(found, kept)), to)
    return 0


def about(sides: list[Any], run: Any, told: dict[str, Any]) -> dict[str, Any]:
    from mechview.recurrent.facts import facts

    return facts(sides, run, **told)


def named(model: str, beside: str | None) -> list[str]:
    return [model] if beside is None else [model, beside]


def opened(spec: str, revision: str | None, dtype: o.Dtype, device: str, offline: bool) -> Any:
    """A transformer or an LSTM, its weights still on disk where that can be."""
    from mechview.cli.asked import open_model
    from mechview.models.devices import checked_device
    from mechview.recurrent.load import is_lstm, load_lstm

    if not is_lstm(spec):
        return open_model(spec, revision, offline, device, dtype)
    checked_device(device)
    return load_lstm(spec)


def measured(sides: list[Any], prompts: list[Any] | None, told: dict[str, Any], behaviour: bool) -> Any:
    second = sides[1] if len(sides) == 2 else None
    if behaviour:
        from mechview.recurrent.recall import recall

        return recall(sides[0], second, seed=told["seed"])
    from mechview.recurrent.memory import memory as measure

    kept = {name: told[name] for name in ("copies", "causal", "bos", "seed")}
    return measure(sides[0], prompts, beside=second, **kept)


def tables_of(found: Any, keep_text: bool) -> dict[str, Any]:
    """Gates (without the tokens' text where it may not be kept) and analogies; of a behaviour neither."""
    from mechview.tables import analogies_frame, gates_frame

    if not hasattr(found, "analogies"):
        return {}
    gates = gates_frame(found)
    return {"gates": gates if keep_text else gates.assign(token="•"), "analogies": analogies_frame(found)}


def write_page(found: Any, page: Path, facts: Any, keep_text: bool, force: bool, quiet: bool) -> int:
    from mechview.reporting.memory_page import render_memory
    from mechview.reporting.memory_section import MemoryTables

    if not hasattr(found, "analogies"):
        raise UsageError("--recall gives a table, not a page; choose another format")
    tables = tables_of(found, keep_text)
    shown = MemoryTables(found.frame(), tables["gates"], tables["analogies"], found.notes, found.error)
    text = render_memory(shown, facts)
    write_text(page, text, force=force)
    note(f"wrote {page} ({len(text) / 1e6:.1f} MB)", quiet)
    say(f"{page}\n")
    return 0
