"""Verbs that run the model: `doctor`, `attend`, `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli import sections
from mechview.cli.asked import Texts, chosen, open_model
from mechview.cli.dry import show_cost
from mechview.cli.findings import attend_text, doctor_document, doctor_text
from mechview.cli.output import Answer, Output, emit, note, output, say, working
from mechview.cli.roles import MetricsFile, Thresholds
from mechview.errors import OutputError, UsageError
from mechview.exports import check_output, json_text
from mechview.manifest import SCHEMA_VERSION, manifest

PARTIAL = 4
Thorough = Annotated[bool, typer.Option("--thorough", help="Also compare bridge and forward hooks.")]
Top = Annotated[int, typer.Option("--top", min=1, help="Pairs to print for each head.")]
Threshold = Annotated[
    float, typer.Option("--threshold", min=0.0, max=1.0, help="Smaller weights are dropped, their sum stated.")
]  # fmt: skip
KeepText = Annotated[
    bool | None,
    typer.Option("--keep-text/--drop-text", help="Whether results hold the prompts' text.", show_default="on for -p, off for files"),
]  # fmt: skip
Cards = Annotated[
    str | None,
    typer.Option("--cards", help="Heads whose cards list tokens, as L5H1,L7H3; unless given, what is affordable."),
]
Effects = Annotated[
    bool,
    typer.Option("--effects/--no-effects", help="Measure what taking each head away does: one pass a head and prompt."),
]
MaxMb = Annotated[float, typer.Option("--max-mb", min=0.1, help="Largest report to write.")]


def doctor(
    model: o.ModelName = "toy", prompt: o.Prompts = None, prompts: o.PromptFile = None, ids: o.Ids = None,
    chat: o.Chat = False, bos: o.BosChoice = o.Bos.auto, fold: o.Fold = True, thorough: Thorough = False,
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: o.Out = None, format: o.Form = None, json: o.Json = False,
    quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """Check a model against itself; say what is out of reach and why.

    Parity of logits with the original library, of patterns, messages and stream with the model's own.

    Exit code 0 when every check passed, 1 when one failed, 3 when the model cannot be read, 4 when its
    forward pass is refused and only its weights were checked.
    """
    to = output(out, format, json, quiet, force)
    texts = Texts(prompt, prompts, ids, chat, bos)
    with working(f"checking {model}", quiet) as run:
        from mechview.doctor import diagnose

        opened = open_model(model, revision, offline, device, dtype)
        asked = texts.read(opened) if texts.given else None
        found = diagnose(opened, asked, bos=bos.value, fold=fold, thorough=thorough, run=run)
    text, document = lambda: doctor_text(opened, found), lambda: doctor_document(found)
    emit(Answer("parity", found.frame, text, lambda: found.manifest, document=document), to)
    return PARTIAL if found.refused else 0 if found.passed else 1


def attend(
    model: o.First = None, name: o.Second = None, layer: o.Layer = None, head: o.Head = None,
    layers: o.Layers = None, heads: o.Heads = None, prompt: o.Prompts = None, prompts: o.PromptFile = None,
    ids: o.Ids = None, chat: o.Chat = False, bos: o.BosChoice = o.Bos.auto, threshold: Threshold = 1e-3, top: Top = 3,
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, keep_text: KeepText = None, out: o.Out = None, format: o.Form = None,
    json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False, dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """What heads attend to on a prompt.

    The strongest pairs of each head; in a file, every pair of at least the threshold.
    """
    from mechview.cli.asked import optional_head

    to = output(out, format, json, quiet, force)
    spec, one = optional_head(model, name, layer, head)
    if one is not None and (heads or layers):
        raise UsageError(f"{one} and --heads or --layers name heads twice")
    texts = Texts(prompt, prompts, ids, chat, bos)
    with working(f"running {spec}", quiet) as run:
        opened = open_model(spec, revision, offline, device, dtype)
        if dry_run:
            return show_cost("attend", opened, asked_prompts(opened, texts), bos.value, run, to)
        found = _attended(opened, texts, layers, str(one) if one else heads, threshold)
    told: dict[str, Any] = dict(
        verb="attend", heads=str(one) if one else heads, layers=layers, threshold=threshold, bos=bos.value
    )
    kept = prompts is None if keep_text is None else keep_text
    about = lambda: manifest(opened, run, text_kept=kept, **told)  # noqa: E731
    emit(
        Answer(
            "attention", lambda: _cells(found), lambda: attend_text(found, top), about,
            (lambda: {"tokens": _tokens(found)}) if kept else dict,
        ),
        to,
    )  # fmt: skip
    return 0


def report(
    model: o.ModelName = "toy", layers: o.Layers = None, heads: o.Heads = None, offset: o.Offset = None,
    fold: o.Fold = True, prompt: o.Prompts = None, prompts: o.PromptFile = None, ids: o.Ids = None,
    chat: o.Chat = False, bos: o.BosChoice = o.Bos.auto, revision: o.Revision = None,
    dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu", offline: o.Offline = False,
    keep_text: KeepText = None, roles: o.RoleFlag = None, thresholds: Thresholds = None,
    metrics_file: MetricsFile = None, compare: sections.Compare = None, compare_model: sections.CompareModel = None,
    compare_revision: sections.CompareRevision = None, spin: sections.Spin = False, spin_from: sections.SpinFrom = None,
    memory: sections.Memory = False, memory_from: sections.MemoryFrom = None, cards: Cards = None,
    effects: Effects = False, max_mb: MaxMb = 20.0, out: o.Out = None,
    json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False, dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """One HTML file: head table, cards, attention, checks.

    It fetches nothing, and every number in it stands beside its check. --thresholds and --metrics-file ask for roles;
    --compare, --compare-model, --spin and --memory add sections.
    """
    target = out or Path("report.html")
    if target.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"a report is an .html file, not {target.name}")
    check_output(target, force)
    if roles is False and (thresholds or metrics_file):
        raise UsageError("--thresholds and --metrics-file ask for roles, which --no-roles leaves out")
    wants = sections.measured_or_read("spin", spin, spin_from), sections.measured_or_read("memory", memory, memory_from)
    sections.check_dry(dry_run, compare, compare_model, compare_revision, *wants)
    texts = Texts(prompt, prompts, ids, chat, bos)
    with working(f"writing a report on {model}", quiet) as run:
        from mechview.heads.registry import load_metrics
        from mechview.reporting.build import write_report

        load_metrics(metrics_file or ())
        opened = open_model(model, revision, offline, device, dtype)
        if dry_run:
            to = Output(None, "json" if json else None, quiet, force)
            return show_cost("report", opened, asked_prompts(opened, texts), bos.value, run, to)
        wanted, names = chosen(opened.weights, layers, heads)
        kept = prompts is None if keep_text is None else keep_text
        choice = {"layers": wanted, "heads": names}
        settings: dict[str, Any] = {"fold": fold, "offset": offset or 0, "bos": bos.value, "keep_text": kept}
        settings |= {
            "cards": None if cards is None else [str(name) for name in chosen(opened.weights, None, cards)[1]],
            "effects": effects,
            "roles": True if thresholds or metrics_file else roles,
            "thresholds": None if thresholds is None else str(thresholds),
        }
        asked = texts.read(opened) if texts.given else None
        extra = sections.asked_sections(opened, offline, compare, compare_model, compare_revision, *wants)
        done = write_report(opened, asked, target, choice, settings, force, max_mb, run, extra)
    size = done.path.stat().st_size
    note(f"wrote {done.path} ({size / 1e6:.1f} MB)", quiet)
    about = {"schema_version": SCHEMA_VERSION, "report": str(done.path), "bytes": size, "passed": done.parity_passed}
    say(json_text(about) if json else f"{done.path}\n")
    if done.parity_passed is False:
        note("parity failed: the report says where", quiet=False)
    return 1 if done.parity_passed is False else 0


def _attended(opened: Any, texts: Texts, layers: str | None, heads: str | None, threshold: float) -> list[Any]:
    """Attention on every prompt, of the heads asked for."""
    from mechview.heads.attention import attend as attend_on
    from mechview.models.tracing import trace

    wanted, names = chosen(opened.weights, layers, heads)
    kept: Any = names
    if names is None and wanted is not None:
        kept = [(layer, head) for layer in wanted for head in range(opened.shape.n_heads)]
    asked = asked_prompts(opened, texts)
    return [attend_on(trace(opened, p, bos=texts.bos.value), heads=kept, threshold=threshold) for p in asked]


def asked_prompts(opened: Any, texts: Texts) -> list[Any]:
    """The prompts asked for, or the default one."""
    from mechview.models.tracing import default_prompt

    return texts.read(opened) if texts.given else [default_prompt(opened)]


def _cells(found: list[Any]) -> Any:
    import pandas as pd

    from mechview.tables import attention_frame

    frame_on: Any = attention_frame  # its registration hides its second argument from type checkers

    return pd.concat([frame_on(seen, n) for n, seen in enumerate(found)], ignore_index=True)


def _tokens(found: list[Any]) -> Any:
    import pandas as pd

    from mechview.tables import tokens_frame

    return pd.concat([tokens_frame(seen.trace, n) for n, seen in enumerate(found)], ignore_index=True)
