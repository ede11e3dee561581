"""The verb `patch`: values of one prompt put into a run over another, whole or along one path."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts, open_model
from mechview.cli.change_text import patching_text
from mechview.cli.changes import Draws, Opening, needed, one_prompt, over_a_set
from mechview.cli.dry import show_cost
from mechview.cli.output import DRAWN, emit, of_result, output, working
from mechview.cli.stream import Against, Position, Target, Top, token_list
from mechview.errors import UsageError
from mechview.manifest import manifest

What = Annotated[str | None, typer.Option("--what", help="heads, attention, mlp or stream.", show_default="heads")]
Corrupted = Annotated[str | None, typer.Option("--corrupted", help="Second prompt, of the same number of tokens.")]
Positions = Annotated[
    str | None,
    typer.Option("--positions", help="all together, each, or 2,-1, each in a pass.", show_default="all; stream: each"),
]
Receiver = Annotated[
    str | None,
    typer.Option("--receiver", help="A head's input, L1H0.q, .k or .v: patch the direct paths that lead to it."),
]
Sender = Annotated[
    list[str] | None, typer.Option("--sender", help="With --receiver: head a path starts from; repeatable.")
]


def patch(
    corrupted: Corrupted = None, model: o.ModelName = "toy", prompt: o.Prompts = None, prompts: o.PromptFile = None,
    bos: o.BosChoice = o.Bos.auto, target: Target = None, against: Against = None, position: Position = -1,
    what: What = None, positions: Positions = None, receiver: Receiver = None, sender: Sender = None,
    seed: o.Seed = 0, draws: Draws = 1000, top: Top = 20, revision: o.Revision = None,
    dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu", offline: o.Offline = False, out: o.Out = None,
    format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
    dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """Put values of the clean prompt (-p) into a run over the --corrupted one, a component at a time.

    With --receiver L1H0.k: what of the metric goes straight from each head (or --sender) to that input. With
    --prompts, a table that has corrupted prompts (ioi): means over its pairs, with intervals.
    """
    from mechview.residual.effect_sets import patch_over

    to = output(out, format, json, quiet, force, DRAWN)
    path = path_of(receiver, sender, what, positions)
    if prompts is not None:
        if prompt or corrupted is not None or path or positions is not None:
            raise UsageError(
                "--prompts brings its own pairs, patched whole: leave out -p, --corrupted, --receiver and --positions"
            )
        asked = dict(what=what or "heads", position=position, bos=bos.value, draws=draws, seed=seed)
        opening = Opening(model, revision, offline, device, dtype, False, bos)
        return over_a_set("patch", patch_over, opening, prompts, target, against, asked, top, to, dry_run)
    if corrupted is None:
        raise UsageError("say what to patch into: --corrupted TEXT, or --prompts ioi for a table of pairs")
    wanted = needed(target)
    with working(f"running {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        clean = one_prompt(opened, Texts(prompt, None, None, False, bos))
        if dry_run:
            cost = {"what": what or "heads", "positions": positions_of(positions)} | path
            return show_cost("patch", opened, [clean, corrupted], bos.value, run, to, **cost)
        given: dict[str, Any] = dict(position=position, bos=bos.value)
        pair = opened, clean, corrupted, wanted, token_list(against)
        found = _along(pair, path, given) if path else _whole(pair, what or "heads", positions_of(positions), given)
    told: dict[str, Any] = dict(
        verb="patch", target=target, against=against, position=position, what=found.what, positions=positions, receiver=receiver,
        sender=sender,
    )  # fmt: skip
    emit(
        of_result("patching", found, lambda: patching_text(found, top), lambda: manifest(opened, run, **told)),
        to,
    )
    return 0


def _whole(pair: Any, what: str, positions: Any, given: dict[str, Any]) -> Any:
    from mechview.residual.patching import patch as patch_in

    return patch_in(*pair, what=what, positions=positions, **given)


def _along(pair: Any, path: dict[str, Any], given: dict[str, Any]) -> Any:
    from mechview.residual.paths import path_patch

    return path_patch(*pair, **path, **given)


def path_of(receiver: str | None, sender: list[str] | None, what: str | None, positions: str | None) -> dict[str, Any]:
    """The ends of a path as `path_patch` takes them; nothing where no path was asked for.

    Raises:
        UsageError: no input of a head, or options of the other kind of patching.
    """
    from mechview.heads.labels import parse_head

    if receiver is None:
        if sender:
            raise UsageError("--sender needs a --receiver: the input that its path leads to, as L1H0.k")
        return {}
    if what is not None or positions is not None:
        raise UsageError("a path carries a head's write at all positions: leave out --what and --positions")
    name, dot, side = receiver.strip().rpartition(".")
    if not dot or side.lower() not in ("q", "k", "v"):
        raise UsageError(f"--receiver {receiver} is no input of a head; write L1H0.q, L1H0.k or L1H0.v")
    senders = [str(parse_head(one)) for one in sender or ()]
    return {"receiver": (str(parse_head(name)), side.lower()), "sender": senders or None}


def positions_of(text: str | None) -> Any:
    """`all`, `each` or numbers, as `mv.patch` takes them.

    Raises:
        UsageError: none of these.
    """
    if text is None or text in ("all", "each"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--positions {text} are no positions; write all, each, or numbers such as 2,-1") from None
