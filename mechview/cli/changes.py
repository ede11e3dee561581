"""Verbs about change: `compare` two sides, `ablate` components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts, open_model
from mechview.cli.change_text import compare_text, effects_text
from mechview.cli.dry import show_cost, show_set_cost
from mechview.cli.output import DRAWN, Output, emit, of_result, output, working
from mechview.cli.sets import effect_set_text, told_left_out
from mechview.cli.stream import Against, Grain, Position, Target, Top, token_list
from mechview.errors import UsageError
from mechview.manifest import manifest

SideA = Annotated[str, typer.Argument(metavar="A", help="First model, or first prompt with --model.")]
SideB = Annotated[
    str | None,
    typer.Argument(
        metavar="[B]", help="Second model, or second prompt with --model; A with its --adapter if left out."
    ),
]
Adapter = Annotated[Path | None, typer.Option("--adapter", help="Folder of a peft adapter to put on the second model.")]
OnModel = Annotated[str | None, typer.Option("--model", help="Model that both prompts run in: A and B are texts.")]
RevisionA = Annotated[str | None, typer.Option("--revision-a", help="Revision of model A.")]
RevisionB = Annotated[str | None, typer.Option("--revision-b", help="Revision of model B.")]
Method = Annotated[str, typer.Option("--method", help="What replaces a component: zero, mean, resample.")]
Stream = Annotated[str | None, typer.Option("--stack", help="encoder or decoder of encoder-decoder models.")]
Sets = Annotated[bool, typer.Option("--sets", help="With --model: A and B are tables or files of prompts.")]
Paired = Annotated[bool, typer.Option("--paired", help="Prompt n of one set belongs to prompt n of the other.")]
Two = Annotated[
    str | None, typer.Option("--positions", help="With --model and A alone: two positions of one prompt, such as 2,-1.")
]
Draws = Annotated[int, typer.Option("--draws", min=1, help="Resamples of intervals and tests.")]


def compare(
    a: SideA, b: SideB = None, model: OnModel = None, positions: Two = None, adapter: Adapter = None, sets: Sets = False, paired: Paired = False, stack: Stream = None,
    revision_a: RevisionA = None, revision_b: RevisionB = None,
    prompt: o.Prompts = None, prompts: o.PromptFile = None, target: Target = None, against: Against = None,
    position: Position = -1, by: Grain = "head", offset: o.Offset = None, fold: o.Fold = True,
    bos: o.BosChoice = o.Bos.auto, seed: o.Seed = 0, draws: Draws = 1000, top: Top = 20, offline: o.Offline = False,
    out: o.Out = None, format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
    dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """Two models (weights, and contributions on prompts), or with --model two prompts, positions, or --sets of prompts.

    A table of prompts with answers (--prompts ioi) gives each prompt its own target, unless --target is given.
    """
    from mechview.residual.compare import compare as compare_sides

    to = output(out, format, json, quiet, force, DRAWN)
    asked: dict[str, Any] = dict(
        by=by, target=token_list(target), against=token_list(against), position=position, bos=bos.value, stack=stack
    )
    chance: dict[str, Any] = {"seed": seed, "draws": draws}
    _check_sides(a, b, model, positions, adapter, sets, paired)
    if model is not None and (prompt or prompts is not None or revision_b is not None):
        raise UsageError("with --model A and B are the prompts: leave out -p, --prompts and --revision-b")
    b = a if b is None else b  # an empty prompt is not a missing one
    with working(f"comparing {a} and {b}", quiet) as run:
        if model is not None:
            opened = open_model(model, revision_a, offline)
            read = [Texts(None, Path(side), None, False, bos).table(opened) for side in (a, b) if sets]
            texts: list[Any] = _texts(read) or ([a, b] if positions is None else [a])
            sides: list[Any] = [_items(one, target) for one in read] or [a, b]
            kept = {"model": opened} | asked | (chance | {"paired": paired} if sets else {})
        else:
            opened, other = open_model(a, revision_a, offline), open_model(b, revision_b, offline, adapter=adapter)
            texts = Texts(prompt, None, None, False, bos).read(opened)
            read = [Texts(None, prompts, None, False, bos).table(opened, other)] if prompts else []
            items = texts + [item for one in read for item in _items(one, target)]
            if stack is not None and not items:
                raise UsageError("weights are compared in every stack; --stack chooses one for passes over prompts")
            texts, sides = texts + _texts(read), [opened, other]
            kept = {"prompts": items or None, "offset": offset or 0, "fold": fold} | chance | (asked if items else {})
        if dry_run:
            return show_cost("compare", opened, texts, bos.value, run, to, by=by, models=1 if model is not None else 2)
        found = compare_sides(*sides, **kept) if positions is None else _positions(opened, a, positions, asked)
    told: dict[str, Any] = asked | dict(
        verb="compare", a=a, b=b, on_model=model, sets=sets, paired=paired, revision_a=revision_a, revision_b=revision_b,
        offset=offset, fold=fold, positions=positions, adapter=adapter and str(adapter), prompts=prompts and str(prompts),
        **chance,
    )  # fmt: skip
    emit(
        of_result("compare", found, lambda: compare_text(found, top), lambda: manifest(opened, run, **told)),
        to,
    )
    return max((told_left_out(one, quiet) for one in read), default=0)


def _check_sides(
    a: str, b: str | None, model: str | None, positions: str | None, adapter: Path | None, sets: bool, paired: bool
) -> None:
    """Raises UsageError: sides that are missing, or that belong to another kind of comparison."""
    if (sets or paired) and (model is None or not sets):
        raise UsageError("--sets needs --model, and --paired needs --sets")
    if adapter is not None and model is not None:
        raise UsageError("--adapter is put on the second of two models: leave out --model")
    if positions is not None and (model is None or b is not None or sets):
        raise UsageError("--positions are of one prompt: give A alone and the --model that reads it")
    if b is None and adapter is None and positions is None:
        raise UsageError("say what to compare with: A and B, A with its --adapter FOLDER, or two --positions of A")


def _positions(model: Any, prompt: str, positions: str, asked: dict[str, Any]) -> Any:
    from mechview.models.tracing import trace
    from mechview.residual.compare import compare_positions

    try:
        first, second = (int(part) for part in positions.split(","))
    except ValueError:
        raise UsageError(f"--positions {positions} are not two positions; write --positions 2,-1") from None
    wanted = {name: asked[name] for name in ("by", "target", "against", "stack")}
    return compare_positions(trace(model, prompt, bos=asked["bos"]), first, second, **wanted)


def _texts(tables: list[Any]) -> list[str]:
    return [text for table in tables for text in table.texts]


def _items(table: Any, target: Any) -> list[Any]:
    """The rows with their own answers, or the texts alone where one target is asked of all."""
    return table.texts if target is not None else list(table.cases)


def ablate(
    model: o.ModelName = "toy", prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, against: Against = None, position: Position = -1,
    method: Method = "zero", prompts: o.PromptFile = None, by: Grain = "head", seed: o.Seed = 0, draws: Draws = 1000,
    top: Top = 20,
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: o.Out = None, format: o.Form = None, json: o.Json = False,
    quiet: o.Quiet = False, force: o.Force = False, dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """Direct beside total effect of each component on a logit, and their difference (self-repair).

    With -p, --prompts gives those that mean and resample take their replacements from. Without, effects are means
    over --prompts with intervals; a table such as ioi gives each prompt its target, and resamples its corrupted one.
    """
    from mechview.residual.effect_sets import effects_over
    from mechview.residual.effects import effects

    to = output(out, format, json, quiet, force, DRAWN)
    if prompts is not None and not (prompt or ids):
        asked = dict(method=method, by=by, position=position, bos=bos.value, draws=draws, seed=seed)
        opening = Opening(model, revision, offline, device, dtype, chat, bos)
        return over_a_set("ablate", effects_over, opening, prompts, target, against, asked, top, to, dry_run)
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
    emit(
        of_result("effects", found, lambda: effects_text(found, top), lambda: manifest(opened, run, **told)),
        to,
    )
    return 0


@dataclass(frozen=True)
class Opening:
    """How the model and its prompts are to be read."""

    model: str
    revision: str | None
    offline: bool
    device: str
    dtype: o.Dtype
    chat: bool
    bos: o.Bos


def over_a_set(
    verb: str, measure: Callable[..., Any], how: Opening, prompts: Path, target: Any, against: Any,
    asked: dict[str, Any], top: int, to: Output, dry_run: bool,
) -> int:  # fmt: skip
    with working(f"running {how.model} on {prompts}", to.quiet) as run:
        opened = open_model(how.model, how.revision, how.offline, how.device, how.dtype)
        read = Texts(None, prompts, None, how.chat, how.bos).table(opened)
        if dry_run:
            wanted = {name: asked[name] for name in ("what", "by", "method") if name in asked}
            return show_set_cost(verb, opened, read.cases, how.bos.value, run, to, **wanted)
        found = measure(opened, read.cases, token_list(target), token_list(against), **asked)
    told: dict[str, Any] = dict(verb=verb, prompts=str(prompts), target=target, against=against) | asked
    text = lambda: effect_set_text(found, top)  # noqa: E731
    emit(of_result("effect_sets", found, text, lambda: manifest(opened, run, **told)), to)
    return told_left_out(read, to.quiet)


def needed(target: list[str] | None) -> Any:
    if target is None:
        raise UsageError("say which token's logit: --target ' Paris' (a leading space often matters)")
    return token_list(target)


def one_prompt(model: Any, texts: Texts) -> Any:
    asked = texts.read(model)
    if len(asked) != 1:
        raise UsageError(f"this verb reads one prompt (-p TEXT); {len(asked)} were given")
    return asked[0]
