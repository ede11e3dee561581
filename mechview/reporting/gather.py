"""Everything a report holds, as plain frames and arrays: the only file here that reaches models.

The numeric modules are imported when a report is asked for, so `import mechview.reporting` stays light.
A model that cannot be run, or has no way to read a prompt, is reported from its weights alone, and the
page says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from mechview.errors import PromptError, UnsupportedError
from mechview.reporting.details import Details, details, with_effects
from mechview.reporting.sections import Extras, Sections, gather_sections
from mechview.reporting.streams import StreamView, stream_view

SEED = 0


@dataclass(frozen=True)
class HeadView:
    """One head on one prompt. Weights and scores are `[q_pos, k_pos]`, masked scores -inf."""

    label: str
    stack: str
    weight: np.ndarray
    score: np.ndarray
    value_norm: np.ndarray
    write_norm: np.ndarray
    share: float


@dataclass(frozen=True)
class PromptView:
    """One prompt: its tokens, its heads, and their summaries."""

    tokens: pd.DataFrame
    heads: tuple[HeadView, ...]
    summaries: pd.DataFrame
    bias_shares: dict[str, float]
    scores_from: str
    bos: bool
    stream: StreamView


@dataclass(frozen=True)
class Gathered:
    """What a report is made of. `parity` and `scores` are None where the model was not run; `roles` are lines by
    label; `remarks` say what is missing; `details` fill the cards, None in a page made small."""

    manifest: dict[str, Any]
    heads: pd.DataFrame
    svd: pd.DataFrame
    parity: pd.DataFrame | None
    scores: pd.DataFrame | None
    roles: dict[str, str]
    prompts: tuple[PromptView, ...]
    limits: tuple[str, ...]
    remarks: tuple[str, ...]
    sections: Sections = field(default_factory=Sections)
    details: Details | None = None


@dataclass(frozen=True)
class Known:
    """What no prompt changes: the head table, scores, lines of roles by label, what is said of
    them, and details of cards."""

    table: Any
    scores: pd.DataFrame | None
    roles: dict[str, str]
    said: tuple[str, ...]
    details: Details


def gather(
    model: Any, prompts: Sequence[Any] | None, choice: dict[str, Any], settings: dict[str, Any], run: Any,
    asked: Extras | None = None,
    known: Known | None = None,
) -> Gathered:  # fmt: skip
    """Run the model on the prompts and collect frames.

    Args:
        prompts: one default sentence if None; weights alone if empty.
        choice: `layers` and `heads`, None for all.
        settings: `fold`, `offset`, `bos`, `keep_text`, and `roles`: whether to look for roles (None: if affordable), and
            `thresholds`: a table of roles of the user's; `cards` and `effects`, see `details`.
        known: what `know` found with the same choice and settings, for who shows one prompt after another.
        asked: sections beyond heads and stream.
    """
    from mechview.checks import parity, worst_of
    from mechview.models.limits import limits
    from mechview.models.tracing import default_prompt
    from mechview.tables import heads_frame, svd_frame

    prompts = [prompts] if isinstance(prompts, str) else prompts
    asked = asked or Extras()
    traces, remarks = _traces(model, prompts, settings["bos"])
    sections = gather_sections(
        model, prompts or [default_prompt(model)] if traces else [], traces, asked, settings, SEED
    )
    found = worst_of([parity(model, seen, fold=settings["fold"]) for seen in traces]) if traces else None
    known = known or know(model, choice, settings, bool(traces))
    table = known.table if found is None else known.table.with_parity(found)
    views = tuple(_prompt(trace, table, number, settings["keep_text"]) for number, trace in enumerate(traces))
    return Gathered(
        manifest=_manifest(model, prompts, choice, settings | asked.told(), table, run),
        heads=heads_frame(table),
        svd=svd_frame(table),
        parity=None if found is None else found.frame(),
        scores=known.scores,
        roles=known.roles,
        prompts=views,
        limits=limits(model.weights),
        remarks=(*remarks, *known.said, *sections.remarks, *_left_out(model.shape, table)),
        sections=sections,
        details=with_effects(known.details, model, traces, settings),
    )


def know(model: Any, choice: dict[str, Any], settings: dict[str, Any], run: bool) -> Known:
    """What no prompt changes; roles only where the model can be run."""
    from mechview.heads.table import head_table

    table = head_table(
        model,
        layers=choice["layers"],
        heads=choice["heads"],
        fold=settings["fold"],
        offset=settings["offset"],
        seed=SEED,
    )
    scores, lines, said = _roles(model, run, {row.label for row in table.rows}, settings)
    return Known(table, scores, lines, tuple(said), details(model, table, lines, settings))


def _traces(model: Any, prompts: Sequence[Any] | None, bos: str) -> tuple[list[Any], list[str]]:
    """Traces of the prompts asked for; a default prompt that the model cannot read is a remark instead."""
    from mechview.models.tracing import default_prompt, trace

    if prompts is not None:
        return [trace(model, prompt, bos=bos) for prompt in prompts], [] if prompts else ["No prompt was asked for."]
    try:
        return [trace(model, default_prompt(model), bos=bos)], []
    except (PromptError, UnsupportedError) as error:
        return [], [f"No prompt was run: {error}."]


def _roles(
    model: Any, run: bool, labels: set[str], settings: dict[str, Any]
) -> tuple[pd.DataFrame | None, dict[str, str], list[str]]:
    """Scores and role lines of the heads shown, and what is to be said about them."""
    from mechview.heads.registry import added_metrics
    from mechview.heads.roles import affordable, role_table, roles
    from mechview.heads.scores import head_scores

    table, added = role_table(settings.get("thresholds")), added_metrics()
    asked = settings.get("roles")
    if asked is False or not run:
        return None, {}, []
    if asked is None and not affordable(model.shape):
        return None, {}, ["Roles were not looked for: the model is large (--roles looks for them)."]
    try:
        measured = head_scores(model, [*table.metrics, *added], seed=SEED, bos=settings["bos"])
        found = roles(model, thresholds=settings.get("thresholds"), scores=measured)
    except UnsupportedError as error:
        return None, {}, [f"Roles were not looked for: {error}."]
    frame = found.scores.frame()
    kept = frame[frame["label"].isin(labels)].reset_index(drop=True)
    return kept, {card.label: card.line for card in found.cards if card.label in labels}, list(found.notes)


def _prompt(trace: Any, table: Any, number: int, keep_text: bool) -> PromptView:
    from mechview.heads.attention import attend
    from mechview.tables import prompt_heads_frame, tokens_frame

    labels = {row.label for row in table.rows}
    asked = attend(trace, heads=sorted({(row.layer, row.head) for row in table.rows}), threshold=0.0)
    heads = tuple(head for head in asked.heads if head.label in labels)
    shares, bias = _shares(trace, {(head.stack, head.layer) for head in heads})
    tokens = tokens_frame(trace, number)
    return PromptView(
        tokens=tokens if keep_text else without_text(tokens),
        heads=tuple(_view(head, shares[head.stack, head.layer][head.head]) for head in heads),
        summaries=prompt_heads_frame(asked, number).query("label in @labels"),
        bias_shares=bias,
        scores_from=trace.scores_from,
        bos=trace.bos,
        stream=stream_view(trace, keep_text),
    )


def without_text(tokens: pd.DataFrame) -> pd.DataFrame:
    """Positions only: neither text nor ids, from which the text could be had back."""
    return tokens.assign(text="", shown="•", id=np.int32(-1))


def _view(head: Any, share: float) -> HeadView:
    arrays = (head.pattern, head.scores, head.value_norm, head.write_norm)
    weight, score, value, write = (array.detach().float().cpu().numpy() for array in arrays)
    return HeadView(head.label, head.stack, weight, score, value, write, share)


def _shares(trace: Any, sites: set[tuple[str, int]]) -> tuple[dict[tuple[str, int], list[float]], dict[str, float]]:
    """Each head's share of its layer's attention write, and the output bias's: together 1."""
    shares, bias_shares = {}, {}
    for stack, layer in sorted(sites):
        writes, bias = trace.head_writes(layer, stack).double(), trace.bias_write(layer, stack).double()
        total = writes.sum(0) + bias
        size = (total * total).sum()
        shares[stack, layer] = [float(value) for value in (writes * total).sum((1, 2)) / size]
        bias_shares[f"{stack} {layer}"] = float((bias * total).sum() / size)
    return shares, bias_shares


def _manifest(model: Any, prompts: Any, choice: Any, settings: Any, table: Any, run: Any) -> dict[str, Any]:
    from mechview.manifest import manifest

    layer = model.weights.attention(table.rows[0].layer, table.rows[0].stack)
    told = settings | {name: None if value is None else [str(v) for v in value] for name, value in choice.items()}
    count, kept = "default" if prompts is None else len(prompts), settings["keep_text"]
    found = manifest(model, run, text_kept=kept, **told, seed=SEED, prompts=count)
    found["dtype_read"] = str(layer.W_Q.dtype).removeprefix("torch.")
    found["dtype_computed"] = table.dtype
    found["norms"] = "folded" if table.folded else "raw"
    return found


def _left_out(shape: Any, table: Any) -> list[str]:
    every = sum(shape.layers(stack) for stack in shape.stacks) * shape.n_heads
    return [] if len(table.rows) == every else [f"{len(table.rows)} of {every} heads were asked for."]
