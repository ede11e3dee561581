"""Verbs of the residual stream: `resid`, `lens`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts, open_model
from mechview.cli.dry import show_cost
from mechview.cli.output import Answer, emit, output, working
from mechview.cli.stream_text import growth_text, lens_changes_text, lens_text, resid_text
from mechview.errors import UsageError
from mechview.manifest import manifest

Target = Annotated[
    list[str] | None, typer.Option("--target", "-t", help="Token the rows speak for; repeat for a mean of answers.")
]
Against = Annotated[list[str] | None, typer.Option("--against", help="Token it is held against; repeatable.")]
Position = Annotated[int, typer.Option("--position", help="Position read; -1 is the last.")]
Grain = Annotated[str, typer.Option("--by", help="layer, head, source, neuron, expert or bias.")]
Freeze = Annotated[str, typer.Option("--freeze", help="own: each position's own norm scale; none: unscaled.")]
Point = Annotated[str, typer.Option("--point", help="final, or a place such as L1.pre, L1.mid, L1.post.")]
Along = Annotated[
    str | None,
    typer.Option(
        "--direction",
        help="Direction instead of a token: probe.npy, sae.safetensors:W_dec[12], L5H1.message.v0, L5.n12.out, "
        "means:A.txt,B.txt@L1.post.",
    ),
]
Growth = Annotated[bool, typer.Option("--growth", help="Norm and turning of the stream, point by point.")]
Writes = Annotated[
    bool, typer.Option("--writes", help="With a direction: size of every row at every position, and cosine to it.")
]
Read = Annotated[str, typer.Option("--read", help="Where a --direction is read: stream, or 'final norm'.")]
Changes = Annotated[
    bool, typer.Option("--changes", help="Who moved the reading of --target between points, instead of the readings.")
]
Top = Annotated[int, typer.Option("--top", min=1, help="Rows to print.")]


def resid(
    model: o.ModelName = "toy", prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, against: Against = None, position: Position = -1,
    direction: Along = None, read: Read = "stream", growth: Growth = False, writes: Writes = False,
    by: Grain = "head", point: Point = "final", freeze: Freeze = "own", fold: o.Fold = True, top: Top = 20,
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: o.Out = None, format: o.Form = None, json: o.Json = False,
    quiet: o.Quiet = False, force: o.Force = False, dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """What each component added to the residual stream of a prompt, and that it adds up.

    With --target the rows are shares of its logit (minus --against) at one position, with --direction shares along
    that vector; without either, the size of every row at every position. The completeness error stands in every table.
    """
    to = output(out, format, json, quiet, force)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        texts = Texts(prompt, None, ids, chat, bos)
        if dry_run:
            return show_cost("resid", opened, [asked_for(opened, texts)], bos.value, run, to, by=by, target=target)
        seen = traced(opened, texts)
        if growth:
            found = _growth(seen, target or against or direction or writes)
        elif writes:
            found = _writes(opened, seen, target, against, direction, by, point)
        elif direction is not None:
            found = _along(opened, seen, direction, read, position, by, target or against or point != "final")
        else:
            found = _rows(seen, target, against, position, by, point, freeze, fold)
    told: dict[str, Any] = dict(
        verb="resid", target=target, against=against, position=position, by=by, point=point, freeze=freeze, fold=fold,
        bos=bos.value, direction=direction, read=read if direction else None, growth=growth, writes=writes,
    )  # fmt: skip
    text = lambda: growth_text(found) if growth else resid_text(found, top)  # noqa: E731
    emit(Answer("depth" if growth else "contrib", found.frame, text, lambda: manifest(opened, run, **told)), to)
    return 0


def lens(
    model: o.ModelName = "toy", prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, against: Against = None, position: Position = -1,
    changes: Changes = False, by: Grain = "head", top: Top = 20, revision: o.Revision = None,
    dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu", offline: o.Offline = False, out: o.Out = None,
    format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
    dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """What the stream would predict at every point: the logit lens, ending at the model's own output.

    With --changes: what each component does to the reading of --target (minus --against), from point to point.
    """
    if (changes and target is None) or (against is not None and not changes):
        raise UsageError("--changes needs a --target, and --against needs --changes")

    to = output(out, format, json, quiet, force)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        texts = Texts(prompt, None, ids, chat, bos)
        if dry_run:
            return show_cost("lens", opened, [asked_for(opened, texts)], bos.value, run, to)
        seen = traced(opened, texts)
        found = _read(seen, target, against, position, by, changes)
    told: dict[str, Any] = dict(verb="lens", target=target, position=position, bos=bos.value, changes=changes)
    told |= dict(against=against, by=by) if changes else {}
    text = lambda: lens_changes_text(found, top) if changes else lens_text(found, position)  # noqa: E731
    emit(Answer("lens_changes" if changes else "lens", found.frame, text, lambda: manifest(opened, run, **told)), to)
    return 0


def _read(seen: Any, target: Any, against: Any, position: int, by: str, changes: bool) -> Any:
    from mechview.residual.lens import lens as read_lens
    from mechview.residual.lens_changes import lens_changes

    if changes:
        return lens_changes(seen, token_list(target), token_list(against), position, by)
    return read_lens(seen, token_list(target))


def traced(model: Any, texts: Texts) -> Any:
    """The one prompt asked for, or the default one, traced."""
    from mechview.models.tracing import trace

    return trace(model, asked_for(model, texts), bos=texts.bos.value)


def asked_for(model: Any, texts: Texts) -> Any:
    """The one prompt asked for, or the default one."""
    from mechview.models.tracing import default_prompt

    asked = texts.read(model) if texts.given else [default_prompt(model)]
    if len(asked) != 1:
        raise UsageError(f"this verb reads one prompt; {len(asked)} were given")
    return asked[0]


def _rows(seen: Any, target: Any, against: Any, position: int, by: str, point: str, freeze: str, fold: bool) -> Any:
    from mechview.residual.ledger import ledger
    from mechview.residual.shares import shares

    if target is None:
        if against is not None:
            raise UsageError("--against needs a --target")
        return ledger(seen, by, _place(point))
    if point != "final":
        raise UsageError("shares of a logit are taken at the final stream; leave out --point")
    return shares(seen, token_list(target), token_list(against), position, by, freeze=freeze, fold=fold)


def _along(model: Any, seen: Any, direction: str, read: str, position: int, by: str, more: Any) -> Any:
    from mechview.residual.directions import named_direction, shares_along

    if more:
        raise UsageError("--direction stands alone: leave out --target, --against and --point")
    named = _means(model, direction) if direction.startswith("means:") else named_direction(direction, model)
    return shares_along(seen, named, position=position, by=by, read=read)


def _writes(model: Any, seen: Any, target: Any, against: Any, direction: str | None, by: str, point: str) -> Any:
    from mechview.residual.directions import named_direction
    from mechview.residual.ledger import ledger

    if target is None and direction is None:
        raise UsageError(
            "--writes needs a --target or a --direction; without either resid shows the rows' sizes anyway"
        )
    if direction is None:
        return ledger(seen, by, _place(point), target=token_list(target), against=token_list(against))
    named = _means(model, direction) if direction.startswith("means:") else named_direction(direction, model)
    return ledger(seen, by, _place(point), target=token_list(target), direction=named.vector)


def _growth(seen: Any, more: Any) -> Any:
    from mechview.residual.depth import depth

    if more:
        raise UsageError("--growth is of the whole stream: leave out --target, --against and --direction")
    return depth(seen)


def _means(model: Any, text: str) -> Any:
    """`means:A,B@L1.post`: mean stream of the prompts of table or file B minus that of A, at their last position."""
    from mechview.models.prompt_tables import prompt_table
    from mechview.residual.directions import mean_direction

    files, _, place = text.removeprefix("means:").rpartition("@")
    a, comma, b = files.partition(",")
    layer, dot, point = place.removeprefix("L").partition(".")
    if not (comma and dot and layer.isdigit()):
        raise UsageError(f"--direction {text} is no difference of means; write means:A.txt,B.txt@L1.post")
    sides = [prompt_table(file).drawn(model).texts for file in (a, b)]
    return mean_direction(model, *sides, layer=int(layer), point=point)


def token_list(given: list[str] | None) -> list[str | int] | None:
    """Tokens as typed; `#12` is a token id."""
    if given is None:
        return None
    return [int(text[1:]) if text.startswith("#") and text[1:].isdigit() else text for text in given]


def _place(point: str) -> Any:
    if point == "final":
        return point
    layer, _, at = point.removeprefix("L").partition(".")
    if not layer.isdigit():
        raise UsageError(f"--point {point} is not a place; use final, L1.pre, L1.mid or L1.post")
    return int(layer), at
