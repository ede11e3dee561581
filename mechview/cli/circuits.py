"""Token views of the verbs `pattern` and `message`, and the verb `compose`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import open_model, optional_head
from mechview.cli.circuits_text import circuit_text, components_text, compose_text, readings_text
from mechview.cli.output import Answer, Output, emit, output, working
from mechview.errors import UsageError
from mechview.manifest import manifest

Tokens = Annotated[bool, typer.Option("--tokens", help="Pairs of tokens over the whole vocabulary.")]
Readings = Annotated[bool, typer.Option("--readings", help="Tokens of each singular component.")]
Asked = Annotated[
    list[str] | None, typer.Option("--token", "-t", help="With --tokens: a query or source token; repeatable.")
]
Space = Annotated[str, typer.Option("--space", help="embed, or mlp0: the embedding after the first MLP.")]
RowKind = Annotated[str, typer.Option("--rows", help="Rows of tokens: raw, unit, or normed as the head reads them.")]
Centre = Annotated[
    bool, typer.Option("--centre", help="Take the mean over tokens out of the rows; --readings always does.")
]
Special = Annotated[bool, typer.Option("--special", help="Let special and unused tokens take part.")]
Top = Annotated[int, typer.Option("--top", min=1, help="Rows to print of each list.")]
Kind = Annotated[str, typer.Option("--kind", help="Q, K, V or all.")]
Definition = Annotated[str, typer.Option("--definition", help="full, or kernel: overlap of spans alone.")]
Components = Annotated[bool, typer.Option("--components", help="One component of each message at a time; needs HEAD.")]
Shuffles = Annotated[int, typer.Option("--shuffles", min=0, help="Draws of the second null.")]


@dataclass(frozen=True)
class TokenView:
    """What the token options of a verb ask for."""

    tokens: bool
    readings: bool
    asked: list[str] | None
    space: str
    rows: str
    centre: bool
    special: bool
    top: int

    @property
    def wanted(self) -> bool:
        if self.tokens and self.readings:
            raise UsageError("--tokens and --readings are two views; ask for one")
        if self.asked and not self.tokens:
            raise UsageError("--token belongs to --tokens")
        return self.tokens or self.readings


def token_side(
    side: str, spec: str, wanted: Any, offset: int | None, fold: bool, revision: str | None, offline: bool,
    view: TokenView, to: Output,
) -> int:  # fmt: skip
    """Pairs or readings of one head's pattern or message."""
    if wanted is None:
        raise UsageError("a view of tokens is of one head; say which: L5H1")
    with working(f"reading {spec}", to.quiet) as run:
        opened = open_model(spec, revision, offline)
        found = _readings(opened, wanted, side, offset, fold, view) if view.readings else _pairs(
            opened, wanted, side, offset, fold, view
        )  # fmt: skip
    told: dict[str, Any] = dict(
        verb=side, head=str(wanted), offset=offset or 0, fold=fold, space=view.space, rows=view.rows, centre=view.centre,
        special=view.special, top=view.top, readings=view.readings,
    )  # fmt: skip
    table = "svd_tokens" if view.readings else "qk_pairs" if side == "pattern" else "ov_tokens"
    text = (lambda: readings_text(found)) if view.readings else (lambda: circuit_text(found))
    emit(Answer(table, found.frame, text, lambda: manifest(opened, run, hashed=False, **told)), to)
    return 0


def _pairs(opened: Any, wanted: Any, side: str, offset: int | None, fold: bool, view: TokenView) -> Any:
    from mechview.cli.stream import token_list
    from mechview.heads.token_circuits import message_tokens, pattern_pairs

    shared: dict[str, Any] = dict(
        layer=wanted.layer, head=wanted.head, stack=wanted.stack or "decoder", k=view.top, space=view.space, rows=view.rows,
        centre=view.centre, special=view.special, fold=fold,
    )  # fmt: skip
    asked = token_list(view.asked)
    if side == "pattern":
        return pattern_pairs(opened, queries=asked, offset=offset or 0, **shared)
    return message_tokens(opened, sources=asked, **shared)


def _readings(opened: Any, wanted: Any, side: str, offset: int | None, fold: bool, view: TokenView) -> Any:
    from mechview.heads.readings import svd_readings

    return svd_readings(
        opened, layer=wanted.layer, head=wanted.head, stack=wanted.stack or "decoder", side=side, components=view.top,
        offset=offset or 0, space=view.space, rows=view.rows, fold=fold,
    )  # fmt: skip


def compose(
    model: o.First = None, name: o.Second = None, layer: o.Layer = None, head: o.Head = None, kind: Kind = "all",
    offset: o.Offset = None, definition: Definition = "full", components: Components = False, fold: o.Fold = True,
    shuffles: Shuffles = 4, seed: o.Seed = 0, top: Top = 10, revision: o.Revision = None, offline: o.Offline = False,
    out: o.Out = None, format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """Which heads read what which earlier heads write: Q-, K- and V-composition beside two nulls.

    With HEAD, its pairs alone; with --components, what it reads of each component of each earlier message.
    """
    to = output(out, format, json, quiet, force)
    spec, wanted = optional_head(model, name, layer, head)
    kinds = ("Q", "K", "V") if kind == "all" else (kind.upper(),)
    if components and (wanted is None or len(kinds) > 1):
        raise UsageError("--components needs a HEAD that reads, and one --kind")
    with working(f"reading {spec}", quiet) as run:
        opened = open_model(spec, revision, offline)
        stack = None if wanted is None else wanted.stack
        answer = _components(opened, wanted, kinds[0], offset or 0, fold, top) if components else _pairs_of_heads(
            opened, wanted, kinds, offset or 0, definition, fold, shuffles, seed, stack, top
        )  # fmt: skip
    told: dict[str, Any] = dict(
        verb="compose", head=None if wanted is None else str(wanted), kind=kind, offset=offset or 0, definition=definition,
        components=components, fold=fold, shuffles=shuffles, seed=seed,
    )  # fmt: skip
    table, frame, text = answer
    emit(Answer(table, frame, text, lambda: manifest(opened, run, hashed=False, **told)), to)
    return 0


def _components(opened: Any, wanted: Any, kind: str, offset: int, fold: bool, top: int) -> tuple[str, Any, Any]:
    from mechview.heads.composition_parts import compose_components

    found = compose_components(
        opened, kind, layer=wanted.layer, head=wanted.head, offset=offset, stack=wanted.stack, fold=fold
    )
    return "composition_components", found.frame, lambda: components_text(found, top)


def _pairs_of_heads(
    opened: Any, wanted: Any, kinds: tuple[str, ...], offset: int, definition: str, fold: bool, shuffles: int, seed: int,
    stack: Any, top: int,
) -> tuple[str, Any, Any]:  # fmt: skip
    from mechview.factors import check_head, head_label
    from mechview.heads.composition import compositions

    label = None
    if wanted is not None:
        place = check_head(opened.shape, wanted.layer, wanted.head, stack)
        label = head_label(wanted.layer, wanted.head, place, len(opened.shape.stacks) > 1)
    found = compositions(
        opened, kinds, offset, definition=definition, stack=stack, fold=fold, shuffles=shuffles, seed=seed
    )

    def frame() -> Any:
        import pandas as pd

        rows = pd.concat([one.frame() for one in found.values()], ignore_index=True)
        rows["kind"] = rows["kind"].astype("category")
        kept = slice(None) if label is None else (rows["src_label"] == label) | (rows["dst_label"] == label)
        return rows[kept].reset_index(drop=True)

    return "composition", frame, lambda: compose_text(found, label, top)
