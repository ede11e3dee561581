"""Verbs of the residual stream: `resid`, `lens`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts, open_model
from mechview.cli.dry import show_cost
from mechview.cli.output import DRAWN, emit, of_result, output, working
from mechview.cli.resid import Asked, found_by
from mechview.cli.stream_text import growth_text, lens_changes_text, lens_text, resid_text
from mechview.errors import UsageError
from mechview.manifest import manifest

Target = Annotated[
    list[str] | None, typer.Option("--target", "-t", help="Token the rows speak for; repeat for a mean of answers.")
]
Against = Annotated[list[str] | None, typer.Option("--against", help="Token it is held against; repeatable.")]
Position = Annotated[int, typer.Option("--position", help="Position read; -1 is the last.")]
Grain = Annotated[str, typer.Option("--by", help="layer, head, source, neuron, expert or bias.")]
Split = Annotated[
    str | None, typer.Option("--by", help="layer, head, source, neuron, expert or bias.", show_default="head")
]
Neurons = Annotated[
    int | None,
    typer.Option("--neurons", min=0, help="With --by neuron: rows of each MLP, the others in one.", show_default="10"),
]
At = Annotated[int | None, typer.Option("--position", help="Position read; -1 is the last.", show_default="-1")]
Freeze = Annotated[
    str | None,
    typer.Option("--freeze", help="own: each position's own norm scale; none: unscaled.", show_default="own"),
]
Folded = Annotated[
    bool | None,
    typer.Option("--fold/--raw", help="Final norm's gain and centring in the direction.", show_default="fold"),
]
Point = Annotated[
    str | None, typer.Option("--point", help="final, or a place such as L1.pre, L1.mid, L1.post.", show_default="final")
]
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
Read = Annotated[
    str | None,
    typer.Option("--read", help="Where a --direction is read: stream, or 'final norm'.", show_default="stream"),
]
Changes = Annotated[
    bool, typer.Option("--changes", help="Who moved the reading of --target between points, instead of the readings.")
]
Top = Annotated[int, typer.Option("--top", min=1, help="Rows to print.")]


def resid(
    model: o.ModelName = "toy", prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, against: Against = None, position: At = None,
    direction: Along = None, read: Read = None, growth: Growth = False, writes: Writes = False,
    by: Split = None, neurons: Neurons = None, point: Point = None, freeze: Freeze = None, fold: Folded = None,
    top: Top = 20, revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, out: o.Out = None, format: o.Form = None, json: o.Json = False,
    quiet: o.Quiet = False, force: o.Force = False, dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """What each component added to the residual stream of a prompt, and that it adds up.

    With --target the rows are shares of its logit (minus --against) at one position, with --direction shares along
    that vector; without either, the size of every row at every position. The completeness error stands in every table.
    """
    asked = Asked(target, against, position, direction, read, by, neurons, point, freeze, fold, growth, writes)
    asked.check()
    to = output(out, format, json, quiet, force, DRAWN)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        texts = Texts(prompt, None, ids, chat, bos)
        if dry_run:
            one = bool(target or direction) and not writes
            return show_cost(
                "resid",
                opened,
                [asked_for(opened, texts)],
                bos.value,
                run,
                to,
                target=one or None,
                growth=growth,
                **asked.grain,
            )
        found = found_by(asked, opened, traced(opened, texts), token_list(target), token_list(against))
    told = {"verb": "resid", "bos": bos.value} | vars(asked) | _done(found)
    text = lambda: growth_text(found) if growth else resid_text(found, top)  # noqa: E731
    emit(
        of_result("depth" if growth else "contrib", found, text, lambda: manifest(opened, run, **told)),
        to,
    )
    return 0


def _done(found: Any) -> dict[str, Any]:
    """The choices as they were made, where nothing was asked for."""
    names = ("position", "by", "neurons", "point", "freeze", "fold")
    return {name: getattr(found, name) for name in names if hasattr(found, name)}


def lens(
    model: o.ModelName = "toy", prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, against: Against = None, position: Position = -1,
    changes: Changes = False, by: Split = None, neurons: Neurons = None, top: Top = 20, revision: o.Revision = None,
    dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu", offline: o.Offline = False, out: o.Out = None,
    format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
    dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """What the stream would predict at every point: the logit lens, ending at the model's own output.

    With --changes: what each component does to the reading of --target (minus --against), from point to point.
    """
    if changes and target is None:
        raise UsageError("--changes needs a --target")
    unused = {"--against": against, "--by": by, "--neurons": neurons}
    if not changes and (name := next((name for name, value in unused.items() if value is not None), None)):
        raise UsageError(f"{name} needs --changes: a reading of the lens is of the whole stream")
    to = output(out, format, json, quiet, force, DRAWN)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        texts = Texts(prompt, None, ids, chat, bos)
        if dry_run:
            return show_cost("lens", opened, [asked_for(opened, texts)], bos.value, run, to)
        seen = traced(opened, texts)
        found = _read(seen, target, against, position, by or "head", neurons, changes)
    told: dict[str, Any] = dict(verb="lens", target=target, position=position, bos=bos.value, changes=changes)
    told |= dict(against=against, by=found.by, neurons=found.neurons) if changes else {}
    text = lambda: lens_changes_text(found, top) if changes else lens_text(found, position)  # noqa: E731
    emit(
        of_result("lens_changes" if changes else "lens", found, text, lambda: manifest(opened, run, **told)),
        to,
    )
    return 0


def _read(
    seen: Any, target: Any, against: Any, position: int, by: str, neurons: int | None, changes: bool
) -> Any:  # fmt: skip
    from mechview.residual.lens import lens as read_lens
    from mechview.residual.lens_changes import lens_changes

    if changes:
        return lens_changes(seen, token_list(target), token_list(against), position, by, neurons=neurons)
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


def token_list(given: list[str] | None) -> list[str | int] | None:
    """Tokens as typed; `#12` is a token id."""
    if given is None:
        return None
    return [int(text[1:]) if text.startswith("#") and text[1:].isdecimal() else text for text in given]
