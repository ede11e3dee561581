"""Verbs that need weights alone: `heads`, `head`, `pattern`, `message`. One head costs one layer's read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mechview.cli import circuits as c
from mechview.cli import options as o
from mechview.cli.asked import Texts, chosen, open_model, optional_head, which_head
from mechview.cli.cards import head_card, heads_text, spectrum_text
from mechview.cli.circuit_card import long_card
from mechview.cli.output import Answer, Output, emit, note, output, working
from mechview.cli.role_text import scores_text
from mechview.cli.roles import Copies, MetricsFile, Seeds, kept, role_part, scores_asked
from mechview.exports import FACTORS, TABLES, matrices_bytes, write_bytes
from mechview.manifest import manifest

ParityFlag = Annotated[
    bool | None,
    typer.Option("--parity/--no-parity", help="Run the model and put parity errors beside the heads.", show_default="on with a prompt"),
]  # fmt: skip
Scores = Annotated[
    str | None, typer.Option("--scores", help="Metrics to measure by running the model: induction,previous_token or all.", metavar="METRICS")
]  # fmt: skip
Dense = Annotated[
    bool, typer.Option("--dense", help="Also the d_model x d_model matrix, in a .safetensors or .npz file.")
]  # fmt: skip
Full = Annotated[
    bool, typer.Option("--full", help="Also tokens, copying, symmetry and partners; reads every layer.")
]  # fmt: skip
SHORT = "--full adds the tokens it joins, copying, symmetry and which heads compose with it\n"


def heads(
    model: o.ModelName = "toy", layers: o.Layers = None, heads: o.Heads = None, scores: Scores = None,
    seeds: Seeds = 3, copies: Copies = 5, metrics_file: MetricsFile = None, offset: o.Offset = None,
    fold: o.Fold = True, seed: o.Seed = 0, prompt: o.Prompts = None, prompts: o.PromptFile = None, ids: o.Ids = None,
    chat: o.Chat = False, bos: o.BosChoice = o.Bos.auto, parity: ParityFlag = None, revision: o.Revision = None,
    dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu", offline: o.Offline = False, out: o.Out = None,
    format: o.Form = None, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """Table of heads: norms and ranks of pattern and message, or with --scores what heads do.

    Parity with the model's own attention needs a forward pass: it is measured with a prompt or --parity.
    """
    to = output(out, format, json, quiet, force)
    texts = Texts(prompt, prompts, ids, chat, bos)
    with working(f"reading {model}", quiet) as run:
        opened = open_model(model, revision, offline, device, dtype)
        if scores is not None or metrics_file:
            asked: dict[str, Any] = dict(
                seed=seed, seeds=seeds, copies=copies, bos=bos.value, text=texts.read(opened) or None
            )
            return _scores(opened, scores or "all", metrics_file, asked | kept(opened, layers, heads), run, to)
        measured = _parity(opened, texts, fold) if (texts.given if parity is None else parity) else None
        table = _table(opened, layers, heads, fold, _offset(opened, offset), seed, measured)
    told: dict[str, Any] = dict(verb="heads", layers=layers, heads=heads, offset=offset or 0, fold=fold, seed=seed)
    emit(Answer("heads", table.frame, lambda: heads_text(table, measured), lambda: manifest(opened, run, **told)), to)
    return 0 if measured is None or measured.passed else 1


def _scores(opened: Any, names: str, files: Any, asked: dict[str, Any], run: Any, to: Output) -> int:
    found = scores_asked(opened, names, files, asked)
    told: dict[str, Any] = dict(
        verb="heads", scores=names, seed=asked["seed"], seeds=asked["seeds"], copies=asked["copies"]
    )
    emit(Answer("heads", found.frame, lambda: scores_text(found), lambda: manifest(opened, run, **told)), to)
    return 0


def head(
    model: o.First = None, name: o.Second = None, layer: o.Layer = None, head: o.Head = None,
    offset: o.Offset = None, fold: o.Fold = True, full: Full = False, roles: o.RoleFlag = None, seed: o.Seed = 0,
    revision: o.Revision = None, offline: o.Offline = False, out: o.Out = None, format: o.Form = None,
    json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """Card of one head, `mechview head MODEL L5H1`: its weights, its role with the evidence, with --full its circuits."""
    to = output(out, format, json, quiet, force)
    spec, wanted = which_head(model, name, layer, head)
    with working(f"reading {wanted} of {spec}", quiet) as run:
        opened = open_model(spec, revision, offline)
        at = _offset(opened, offset)
        table, factors = _table(opened, None, str(wanted), fold, at, seed), _factors(opened, wanted, fold)
        found, said = role_part(opened, wanted, roles, seed)
    told: dict[str, Any] = dict(verb="head", head=str(wanted), offset=at, fold=fold, seed=seed)
    circuits = lambda: long_card(opened, wanted, at, fold) if full else SHORT  # noqa: E731
    text = lambda: head_card(opened, table, factors) + said + circuits()  # noqa: E731
    beside = (lambda: {"roles": found.frame()}) if found is not None else dict
    emit(Answer("heads", table.frame, text, lambda: manifest(opened, run, hashed=False, **told), beside), to)
    return 0


def pattern(
    model: o.First = None, name: o.Second = None, layer: o.Layer = None, head: o.Head = None,
    offset: o.Offset = None, fold: o.Fold = True, tokens: c.Tokens = False, readings: c.Readings = False,
    token: c.Asked = None, space: c.Space = "embed", rows: c.RowKind = "raw", centre: c.Centre = False,
    special: c.Special = False, top: c.Top = 8, revision: o.Revision = None, offline: o.Offline = False,
    out: o.Out = None, format: o.Form = None, dense: Dense = False, json: o.Json = False, quiet: o.Quiet = False,
    force: o.Force = False,
) -> int:  # fmt: skip
    """Where a head looks: singular values or factors of its pattern, or with --tokens what it joins.

    Without HEAD, all heads. `--out x.safetensors` or `x.npz` writes left and right factors of one head.
    """
    to = output(out, format, json, quiet, force, (*TABLES, *FACTORS))
    spec, wanted = optional_head(model, name, layer, head)
    view = c.TokenView(tokens, readings, token, space, rows, centre, special, top)
    if view.wanted:
        return c.token_side("pattern", spec, wanted, offset, fold, revision, offline, view, to)
    return _side("pattern", spec, wanted, offset, fold, revision, offline, dense, to)


def message(
    model: o.First = None, name: o.Second = None, layer: o.Layer = None, head: o.Head = None,
    fold: o.Fold = True, tokens: c.Tokens = False, readings: c.Readings = False, token: c.Asked = None,
    space: c.Space = "embed", rows: c.RowKind = "raw", centre: c.Centre = False, special: c.Special = False,
    top: c.Top = 8, revision: o.Revision = None, offline: o.Offline = False, out: o.Out = None,
    format: o.Form = None, dense: Dense = False, json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """What a head sends: singular values or factors of its message, or with --tokens what it promotes.

    Without HEAD, all heads. `--out x.safetensors` or `x.npz` writes left and right factors of one head.
    """
    to = output(out, format, json, quiet, force, (*TABLES, *FACTORS))
    spec, wanted = optional_head(model, name, layer, head)
    view = c.TokenView(tokens, readings, token, space, rows, centre, special, top)
    if view.wanted:
        return c.token_side("message", spec, wanted, None, fold, revision, offline, view, to)
    return _side("message", spec, wanted, None, fold, revision, offline, dense, to)


def _side(
    side: str, spec: str, wanted: Any, offset: int | None, fold: bool, revision: str | None, offline: bool,
    dense: bool, to: Output,
) -> int:  # fmt: skip
    from mechview.errors import UsageError

    if to.kind in FACTORS and wanted is None:
        raise UsageError("a file of factors holds one head; say which: L5H1")
    if dense and to.kind not in FACTORS:
        raise UsageError("--dense needs a .safetensors or .npz file to put the matrix in")
    with working(f"reading {spec}", to.quiet) as run:
        opened = open_model(spec, revision, offline)
        at = _offset(opened, offset)
        if to.kind in FACTORS:
            return _write_factors(side, opened, wanted, fold, at, dense, to)
        table = _table(opened, None, None if wanted is None else str(wanted), fold, at)
    told: dict[str, Any] = dict(verb=side, head=None if wanted is None else str(wanted), offset=at, fold=fold)
    text = lambda: spectrum_text(side, table)  # noqa: E731
    emit(Answer("svd", lambda: _one_side(table, side), text, lambda: manifest(opened, run, hashed=False, **told)), to)
    return 0


def _write_factors(side: str, opened: Any, wanted: Any, fold: bool, offset: int, dense: bool, to: Output) -> int:
    from mechview.heads.files import about_factors, factor_matrices

    factors = _factors(opened, wanted, fold)
    matrices = factor_matrices(factors, side, offset, dense)
    data = matrices_bytes(matrices, str(to.kind), about_factors(opened, factors, side, offset))
    if to.path is not None:
        write_bytes(to.path, data, force=to.force)
        note(f"wrote {', '.join(matrices)} of {factors.label} to {to.path}", to.quiet)
    return 0


def _one_side(table: Any, side: str) -> Any:
    from mechview.tables import svd_frame

    frame = svd_frame(table)
    return frame[frame["side"] == side].reset_index(drop=True)


def _table(
    opened: Any, layers: str | None, heads: str | None, fold: bool, offset: int, seed: int = 0, parity: Any = None
) -> Any:
    """The head table of the layers and heads asked for; layers without one of these are not read."""
    from mechview.heads.table import head_table

    wanted, names = chosen(opened.weights, layers, heads)
    return head_table(opened, layers=wanted, heads=names, fold=fold, offset=offset, parity=parity, seed=seed)


def _factors(opened: Any, wanted: Any, fold: bool) -> Any:
    from mechview.factors import head_factors

    return head_factors(
        opened.weights, layer=wanted.layer, head=wanted.head, fold=fold, stack=wanted.stack or "decoder"
    )


def _parity(opened: Any, texts: Texts, fold: bool) -> Any:
    """Parity on the prompts given, the worst error of each head, or on the default prompt."""
    from mechview.checks import parity, worst_of
    from mechview.models.tracing import default_prompt, trace

    prompts = texts.read(opened) if texts.given else [default_prompt(opened)]
    return worst_of([parity(opened, trace(opened, prompt, bos=texts.bos.value), fold=fold) for prompt in prompts])


def _offset(opened: Any, offset: int | None) -> int:
    import warnings

    if offset and opened.shape.position != "rotary":
        warnings.warn(f"--offset has no effect: {opened.name} has no rotary positions", stacklevel=2)
    return offset or 0


VERBS = (heads, head, pattern, message, c.compose)
