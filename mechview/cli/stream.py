"""Verbs of the residual stream: `resid`, `lens`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts, open_model
from mechview.cli.output import Answer, emit, output, working
from mechview.cli.stream_text import lens_text, resid_text
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
        help="Direction instead of a token: probe.npy, sae.safetensors:W_dec[12], L5H1.message.v0, L5.n12.out.",
    ),
]
Read = Annotated[str, typer.Option("--read", help="Where a --direction is read: stream, or 'final norm'.")]
Top = Annotated[int, typer.Option("--top", min=1, help="Rows to print.")]


def resid(
    model: o.ModelName = "toy", prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, against: Against = None, position: Position = -1,
    direction: Along = None, read: Read = "stream",
    by: Grain = "head", point: Point = "final", freeze: Freeze = "own", fold: o.Fold = True, top: Top = 20,
    revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: o.Out = None, format: o.Form = None, json: o.Json = False,
    quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """What each component added to the residual stream of a prompt, and that it adds up.

    With --target the rows are shares of its logit (minus --against) at one position, with --direction shares along
    that vector; without either, the size of every row at every position. The completeness error stands in every table.
    """
    to = output(out, format, json, quiet, force)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        seen = traced(opened, Texts(prompt, None, ids, chat, bos))
        if direction is not None:
            found = _along(seen, direction, read, position, by, target or against or point != "final")
        else:
            found = _rows(seen, target, against, position, by, point, freeze, fold)
    told: dict[str, Any] = dict(
        verb="resid", target=target, against=against, position=position, by=by, point=point, freeze=freeze, fold=fold,
        bos=bos.value, direction=direction, read=read if direction else None,
    )  # fmt: skip
    emit(Answer("contrib", found.frame, lambda: resid_text(found, top), lambda: manifest(opened, run, **told)), to)
    return 0


def lens(
    model: o.ModelName = "toy", prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, position: Position = -1, revision: o.Revision = None,
    dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu", offline: o.Offline = False, out: o.Out = None,
    format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """What the stream would predict at every point: the logit lens, ending at the model's own output."""
    from mechview.residual.lens import lens as read_lens

    to = output(out, format, json, quiet, force)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        seen = traced(opened, Texts(prompt, None, ids, chat, bos))
        found = read_lens(seen, token_list(target))
    told: dict[str, Any] = dict(verb="lens", target=target, position=position, bos=bos.value)
    emit(Answer("lens", found.frame, lambda: lens_text(found, position), lambda: manifest(opened, run, **told)), to)
    return 0


def traced(model: Any, texts: Texts) -> Any:
    """The one prompt asked for, or the default one, traced."""
    from mechview.models.tracing import default_prompt, trace

    asked = texts.read(model) if texts.given else [default_prompt(model)]
    if len(asked) != 1:
        raise UsageError(f"this verb reads one prompt; {len(asked)} were given")
    return trace(model, asked[0], bos=texts.bos.value)


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


def _along(seen: Any, direction: str, read: str, position: int, by: str, more: Any) -> Any:
    from mechview.residual.directions import named_direction, shares_along

    if more:
        raise UsageError("--direction stands alone: leave out --target, --against and --point")
    return shares_along(seen, named_direction(direction, seen.weights), position=position, by=by, read=read)  # type: ignore[arg-type]


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
