"""The verb `why`: a head's score at one pair of positions, split over who wrote both sides."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import Texts, open_model, which_head
from mechview.cli.dry import show_cost
from mechview.cli.output import DRAWN, emit, of_result, output, working
from mechview.cli.show import table
from mechview.cli.stream import Grain, Neurons, Top, asked_for, traced
from mechview.cli.stream_text import grain_text
from mechview.errors import UsageError
from mechview.manifest import manifest

Query = Annotated[int, typer.Option("--query", help="Position that looks; -1 is the last.")]
Key = Annotated[int | None, typer.Option("--key", help="Position looked at; the one looked at most unless given.")]


def why(
    first: o.First = None, second: o.Second = None, layer: o.Layer = None, head: o.Head = None,
    query: Query = -1, key: Key = None, prompt: o.Prompts = None, ids: o.Ids = None, chat: o.Chat = False,
    bos: o.BosChoice = o.Bos.auto, by: Grain = "head", neurons: Neurons = None, top: Top = 10,
    revision: o.Revision = None,
    dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu", offline: o.Offline = False, out: o.Out = None,
    format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
    dry_run: o.DryRun = False,
) -> int:  # fmt: skip
    """Why a head looks there: its score split over who wrote the query side and who wrote the key side.

    The rows and the remainder sum to the model's own score, before softmax and any soft-cap.
    """
    from mechview.factors import check_head
    from mechview.residual.attend import score_ledger

    spec, name = which_head(first, second, layer, head)
    to = output(out, format, json, quiet, force, DRAWN)
    with working(f"running {spec}", quiet) as run:
        opened = open_model(spec, revision, offline, device, dtype)
        texts = Texts(prompt, None, ids, chat, bos)
        check_head(opened.shape, name.layer, name.head, name.stack)
        if dry_run:
            one = [asked_for(opened, texts)]
            return show_cost("why", opened, one, bos.value, run, to, by=by, neurons=neurons, layer=name.layer)
        seen = traced(opened, texts)
        weights = pattern_row(seen, name, query)
        at = most_looked_at(weights) if key is None else key
        found = score_ledger(
            seen, layer=name.layer, head=name.head, query=query, key=at, by=by, neurons=neurons, stack=name.stack
        )
    told: dict[str, Any] = dict(
        verb="why", head=str(name), query=query, key=at, by=by, neurons=found.neurons, bos=bos.value
    )
    text = lambda: why_text(found, seen.tokens_of(name.stack or seen.stack)[0], float(weights[found.key]), top)  # noqa: E731
    emit(of_result("score_ledger", found, text, lambda: manifest(opened, run, **told)), to)
    return 0


def pattern_row(seen: Any, name: Any, query: int) -> Any:
    """The attention weights of a query.

    Raises:
        UsageError: a position that does not exist.
    """
    pattern = seen.attention(name.layer, name.stack).pattern
    length = pattern.shape[1]
    if not -length <= query < length:
        raise UsageError(f"query position {query} does not exist: the prompt has positions 0 to {length - 1}")
    return pattern[name.head, query]


def most_looked_at(weights: Any) -> int:
    """The key with the largest weight; position 0, the sink, only where nothing else is looked at."""
    return 1 + int(weights[1:].argmax()) if bool((weights[1:] > 0).any()) else 0


def why_text(found: Any, tokens: Any, weight: float, top: int) -> str:
    """The pairs that matter most, the remainder, and the check."""
    rows = [
        *found.top(top),
        *([("position bias", "position bias", found.position_bias)] if found.position_bias else []),
    ]
    looks, looked = tokens[found.query].shown, tokens[found.key].shown
    title = f"{found.label}: score of {looks} (position {found.query}) on {looked} (position {found.key})"
    title += grain_text(found)
    return table(("query side written by", "key side written by", "score"), rows, title) + (
        f"total {found.total:.6g} (the model's own; attention weight {weight:.4g}); "
        f"rows sum to it within {found.error:.1e} of the largest\n"
    )
