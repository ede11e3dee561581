"""The verb `roles`, and what `heads --scores` and `head --roles` add: metrics on text, with their nulls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import chosen, open_model, optional_head
from mechview.cli.output import Answer, emit, output, working
from mechview.cli.role_text import card_text, causal_text, roles_text
from mechview.errors import MechviewError, UsageError
from mechview.manifest import manifest

Copies = Annotated[int, typer.Option("--copies", min=0, help="Copies with permuted weights behind each null.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Draws of the prompts behind each value.")]
Thresholds = Annotated[
    Path | None, typer.Option("--thresholds", help="TOML file of roles that replace the built-in ones.", metavar="FILE")
]  # fmt: skip
MetricsFile = Annotated[
    list[Path] | None,
    typer.Option("--metrics-file", help="Python file that registers metrics. It is RUN, with all your rights: name only files you trust. Repeatable.", metavar="FILE"),
]  # fmt: skip
Causal = Annotated[bool, typer.Option("--causal", help="Ablate the heads and show what the loss of their task does.")]
Method = Annotated[str, typer.Option("--method", help="What the ablation puts in the head's place: mean or zero.")]
Task = Annotated[str | None, typer.Option("--task", help="Loss of the causal check: repeats or text.", show_default="by role")]  # fmt: skip


def roles(
    model: o.First = None, name: o.Second = None, layers: o.Layers = None, heads: o.Heads = None,
    thresholds: Thresholds = None, metrics_file: MetricsFile = None, causal: Causal = False, method: Method = "mean",
    task: Task = None, seed: o.Seed = 0, seeds: Seeds = 3, copies: Copies = 5, bos: o.BosChoice = o.Bos.auto,
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: o.Out = None, format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False,
    force: o.Force = False,
) -> int:  # fmt: skip
    """What each head does, with the evidence: roles, the tests that fired, nulls and thresholds.

    Tests run on random repeated tokens and on bundled text; nulls are the same tests on copies of the model with
    permuted weights. --causal ablates each head that holds a role, beside other heads.
    """
    from mechview.heads.causal import causal_check
    from mechview.heads.registry import load_metrics
    from mechview.heads.roles import roles as find_roles

    to = output(out, format, json, quiet, force)
    spec, one = optional_head(model, name, None, None)
    if one is not None and (layers or heads):
        raise UsageError(f"{one} and --heads or --layers name heads twice")
    if task is not None and not causal:
        raise UsageError("--task belongs to --causal")
    with working(f"testing the heads of {spec}", quiet) as run:
        load_metrics(metrics_file or ())
        opened = open_model(spec, revision, offline, device, dtype)
        which = kept(opened, layers, str(one) if one else heads)
        found = find_roles(opened, thresholds=thresholds, seed=seed, seeds=seeds, copies=copies, bos=bos.value, **which)
        asked = [(one.layer, one.head)] if one is not None else None
        drawn: dict[str, Any] = dict(task=task, method=method, seed=seed, bos=bos.value)
        checked = causal_check(opened, asked, roles=found, **drawn) if causal else None
    told: dict[str, Any] = dict(
        verb="roles",
        seed=seed,
        seeds=seeds,
        copies=copies,
        causal=causal,
        thresholds=None if thresholds is None else str(thresholds),
    )
    beside = (lambda: {"causal": checked.frame()}) if checked is not None else dict
    emit(
        Answer("roles", found.frame, lambda: roles_text(found) + causal_text(checked), lambda: manifest(opened, run, **told), beside),
        to,
    )  # fmt: skip
    return 0


def kept(opened: Any, layers: str | None, heads: str | None) -> dict[str, Any]:
    """`layers` and `heads` of scores, as the options name them."""
    wanted, names = chosen(opened.weights, layers, heads)
    return {"layers": wanted, "heads": names}


def scores_asked(opened: Any, asked: str, files: list[Path] | None, settings: dict[str, Any]) -> Any:
    """Scores of `heads --scores a,b`; `all` for every metric of the registry."""
    from mechview.heads.registry import load_metrics
    from mechview.heads.scores import head_scores

    load_metrics(files or ())
    names = None if asked.strip() == "all" else [name.strip() for name in asked.split(",")]
    return head_scores(opened, names, **settings)


def role_part(opened: Any, wanted: Any, asked: bool | None, seed: int) -> tuple[Any, str]:
    """The roles of one head and their text, or the sentence why they were not looked for."""
    from mechview.heads.roles import affordable
    from mechview.heads.roles import roles as find_roles

    if asked is False or (asked is None and not affordable(opened.shape)):
        return None, "role: not looked for (--roles runs the model and five permuted copies of it)\n"
    try:
        found = find_roles(opened, seed=seed, heads=[wanted])
    except MechviewError as error:
        if asked:
            raise
        return None, f"role: not looked for: {error}\n"
    return found, card_text(found.card(str(wanted)), found.notes)
