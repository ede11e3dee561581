"""Verbs about change: `compare` two sides, `ablate` components, `patch` from a second prompt."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts, open_model
from mechview.cli.change_text import compare_text, effects_text, patching_text
from mechview.cli.dry import show_cost
from mechview.cli.output import Answer, emit, output, working
from mechview.cli.stream import Against, Grain, Position, Target, Top, token_list
from mechview.errors import UsageError
from mechview.manifest import manifest

SideA = Annotated[str, typer.Argument(metavar="A", help="First model, or first prompt with --model.")]
SideB = Annotated[str, typer.Argument(metavar="B", help="Second model, or second prompt with --model.")]
OnModel = Annotated[str | None, typer.Option("--model", help="Model that both prompts run in: A and B are texts.")]
RevisionA = Annotated[str | None, typer.Option("--revision-a", help="Revision of model A.")]
RevisionB = Annotated[str | None, typer.Option("--revision-b", help="Revision of model B.")]
Method = Annotated[str, typer.Option("--method", help="What replaces a component: zero, mean, resample.")]
What = Annotated[str, typer.Option("--what", help="heads, attention, mlp or stream.")]
Corrupted = Annotated[str, typer.Option("--corrupted", help="Second prompt, of the same number of tokens.")]


def compare(
    a: SideA, b: SideB, model: OnModel = None, revision_a: RevisionA = None, revision_b: RevisionB = None,
    prompt: o.Prompts = None, prompts: o.PromptFile = None, target: Target = None, against: Against = None,
    position: Position = -1, by: Grain = "head", offset: o.Offset = None, fold: o.Fold = True,
    bos: o.BosChoice = o.Bos.auto, seed: o.Seed = 0, top: Top = 20, offline: o.Offline = False, out: o.Out = None,
    format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
    dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """Two models (weights, and contributions on -p prompts), or with --model two prompts aligned by tokens."""
    from mechview.residual.compare import compare as compare_sides

    to = output(out, format, json, quiet, force)
    asked = dict(by=by, target=token_list(target), against=token_list(against), position=position, bos=bos.value)
    with working(f"comparing {a} and {b}", quiet) as run:
        if model is not None:
            opened = open_model(model, revision_a, offline)
            if dry_run:
                return show_cost("compare", opened, [a, b], bos.value, run, to, by=by)
            found = compare_sides(a, b, model=opened, **asked)  # type: ignore[arg-type]
        else:
            opened = open_model(a, revision_a, offline)
            texts = Texts(prompt, prompts, None, False, bos).read(opened) or None
            other = open_model(b, revision_b, offline)
            if dry_run:
                return show_cost("compare", opened, texts or [], bos.value, run, to, by=by, models=2)
            kept = {"offset": offset or 0, "fold": fold, "seed": seed}
            found = compare_sides(opened, other, prompts=texts, **kept, **(asked if texts else {}))  # type: ignore[arg-type]
    told: dict[str, Any] = asked | dict(
        verb="compare", a=a, b=b, revision_a=revision_a, revision_b=revision_b, seed=seed
    )
    emit(Answer("compare", found.frame, lambda: compare_text(found, top), lambda: manifest(opened, run, **told)), to)
    return 0


def ablate(
    model: o.ModelName = "toy", prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, against: Against = None, position: Position = -1,
    method: Method = "zero", prompts: o.PromptFile = None, by: Grain = "head", top: Top = 20,
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: o.Out = None, format: o.Form = None, json: o.Json = False,
    quiet: o.Quiet = False, force: o.Force = False, dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """Direct beside total effect of each component on a logit, and their difference (self-repair).

    --prompts FILE gives the prompts that mean and resample take their replacements from.
    """
    from mechview.residual.effects import effects

    to = output(out, format, json, quiet, force)
    wanted = needed(target)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        one = one_prompt(opened, Texts(prompt, None, ids, chat, bos))
        donors = Texts(None, prompts, None, chat, bos).read(opened) or None
        if dry_run:
            return show_cost("ablate", opened, [one], bos.value, run, to, donors=donors, by=by, method=method)
        found = effects(
            opened, one, wanted, token_list(against), position=position, method=method, prompts=donors, by=by,
            bos=bos.value,
        )  # fmt: skip
    told: dict[str, Any] = dict(verb="ablate", target=target, against=against, position=position, method=method, by=by)
    emit(Answer("effects", found.frame, lambda: effects_text(found, top), lambda: manifest(opened, run, **told)), to)
    return 0


def patch(
    corrupted: Corrupted, model: o.ModelName = "toy", prompt: o.Prompts = None, bos: o.BosChoice = o.Bos.auto,
    target: Target = None, against: Against = None, position: Position = -1, what: What = "heads", top: Top = 20,
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: o.Out = None, format: o.Form = None, json: o.Json = False,
    quiet: o.Quiet = False, force: o.Force = False, dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """Put values of the clean prompt (-p) into a run over the --corrupted one, a component at a time."""
    from mechview.residual.patching import patch as patch_in

    to = output(out, format, json, quiet, force)
    wanted = needed(target)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        clean = one_prompt(opened, Texts(prompt, None, None, False, bos))
        if dry_run:
            return show_cost("patch", opened, [clean, corrupted], bos.value, run, to, what=what)
        found = patch_in(
            opened, clean, corrupted, wanted, token_list(against), what, position=position, bos=bos.value
        )  # fmt: skip
    told: dict[str, Any] = dict(verb="patch", target=target, against=against, position=position, what=what)
    emit(Answer("patching", found.frame, lambda: patching_text(found, top), lambda: manifest(opened, run, **told)), to)
    return 0


def needed(target: list[str] | None) -> Any:
    if target is None:
        raise UsageError("say which token's logit: --target ' Paris' (a leading space often matters)")
    return token_list(target)


def one_prompt(model: Any, texts: Texts) -> Any:
    asked = texts.read(model)
    if len(asked) != 1:
        raise UsageError(f"this verb reads one prompt (-p TEXT); {len(asked)} were given")
    return asked[0]
