"""What the cards say of single heads beyond their spectra: tokens of the vocabulary, partners, offsets, effects.

Pairs of tokens need one product of the vocabulary with itself for each head and side. They are worked out for all
heads while that stays below `AFFORDABLE` multiplications, otherwise for the heads that were asked for (`cards`), or
that hold a role, and the page says for which and why. Partners are compared over the whole model, whichever heads
are shown. Total effects need one forward pass for each head, so they are measured only when asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mechview.errors import MechviewError, UsageError

AFFORDABLE = 4e11
PAIRS, COMPONENTS, TOKENS = 8, 3, 6


@dataclass(frozen=True)
class CardView:
    """One head: tables `qk_pairs`, `ov_tokens`, `diagonal`, `svd_tokens` of both sides, `offsets`; None or missing
    where they do not exist, with a sentence in `missing`."""

    pairs: pd.DataFrame | None
    tokens: pd.DataFrame | None
    diagonal: pd.DataFrame | None
    readings: dict[str, pd.DataFrame]
    offsets: pd.DataFrame | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Details:
    """Cards by label, the tables `composition` and `eig`, and an `effects` table for each prompt (None: no target).

    `absent` says, by part (`cards`, `composition`, `eig`, `effects`), why a part or some heads of it are missing.
    """

    cards: dict[str, CardView]
    composition: pd.DataFrame | None
    eig: pd.DataFrame | None
    effects: tuple[pd.DataFrame | None, ...]
    totals: bool
    absent: dict[str, str]


def details(model: Any, table: Any, traces: Sequence[Any], lines: dict[str, str], settings: dict[str, Any]) -> Details:
    """Details of the heads of a head table; `settings` may hold `cards` (labels, None for what is affordable) and
    `effects` (whether to measure total effects)."""
    absent: dict[str, str] = {}
    wanted = _wanted(model, table, lines, settings.get("cards"), absent)
    totals = bool(settings.get("effects"))
    return Details(
        cards={row.label: _card(model, row, settings) for row in _heads(table) if row.label in wanted},
        composition=_composition(model, settings, absent),
        eig=_tried(lambda: _eig(model, settings), "eig", absent),
        effects=tuple(
            _tried(lambda seen=seen: _effects(model, seen, totals, settings["keep_text"]), "effects", absent)
            for seen in traces
        ),
        totals=totals,
        absent=absent,
    )


def _tried(make: Any, part: str, absent: dict[str, str]) -> Any:
    try:
        return make()
    except MechviewError as error:
        absent[part] = f"{str(error)[:1].upper()}{str(error)[1:]}."
        return None


def _heads(table: Any) -> list[Any]:
    return list({row.label: row for row in table.rows}.values())


def _wanted(model: Any, table: Any, lines: dict[str, str], asked: Any, absent: dict[str, str]) -> set[str]:
    labels = [row.label for row in _heads(table)]
    if asked is not None:
        chosen = _asked(table, asked)
        if len(chosen) < len(labels):
            absent["cards"] = f"Token lists were asked for {_names([name for name in labels if name in chosen])} only."
        return chosen
    each = 2 * model.shape.d_vocab**2 * model.shape.d_head
    if each * len(labels) <= AFFORDABLE:
        return set(labels)
    chosen = {label for label in labels if lines.get(label)} if lines else set()
    kept = [label for label in labels if label in chosen][: int(AFFORDABLE // each)]
    absent["cards"] = (
        f"Token lists of this head were not worked out: with a vocabulary of {model.shape.d_vocab:,} one head takes "
        f"{each:.0e} multiplications, so they were made for {_names(kept)}; --cards {labels[-1]} asks for others."
    )
    return set(kept)


def _asked(table: Any, asked: Sequence[Any]) -> set[str]:
    from mechview.heads.labels import head_pairs

    found = set()
    for pair in head_pairs(list(asked)) if asked else ():
        labels = [row.label for row in _heads(table) if (row.layer, row.head) == tuple(pair)]
        if not labels:
            raise UsageError(f"L{pair[0]}H{pair[1]} has no card on this page: choose among the heads shown")
        found |= set(labels)
    return found


def _names(labels: Sequence[str]) -> str:
    return ", ".join(labels) if labels else "no head"


def _card(model: Any, row: Any, settings: dict[str, Any]) -> CardView:
    from mechview.heads.offsets import offset_curves
    from mechview.heads.readings import svd_readings
    from mechview.heads.token_circuits import message_tokens, pattern_pairs
    from mechview.tables.circuits import diagonal_frame

    missing: dict[str, str] = {}
    fold, offset = settings["fold"], settings["offset"]
    about: dict[str, Any] = {"layer": row.layer, "head": row.head, "stack": row.stack, "fold": fold}
    pairs = _tried(lambda: pattern_pairs(model, **about, offset=offset, k=PAIRS, each=1), "pairs", missing)
    tokens = _tried(lambda: message_tokens(model, **about, k=PAIRS, each=1), "tokens", missing)
    readings: dict[str, pd.DataFrame] = {}
    for side in ("pattern", "message"):
        given = about | {"side": side, "components": COMPONENTS, "k": TOKENS, "offset": offset}
        found = _tried(lambda given=given: svd_readings(model, **given), side, missing)
        readings |= {} if found is None else {side: found.frame()}
    curves = None
    if model.shape.position == "rotary":
        curves = _tried(lambda: offset_curves(model, **about).frame(), "offsets", missing)
    return CardView(
        pairs=None if pairs is None else pairs.frame(),
        tokens=None if tokens is None else tokens.frame(),
        diagonal=None if tokens is None else diagonal_frame(tokens),
        readings=readings,
        offsets=None if curves is None or curves["norm"].isna().all() else curves,
        missing=tuple(dict.fromkeys(missing.values())),
    )


def _composition(model: Any, settings: dict[str, Any], absent: dict[str, str]) -> pd.DataFrame | None:
    """Composition within and between all stacks whose writes reach each other."""
    shape = model.shape
    heads = shape.n_heads * sum(shape.layers(stack) for stack in shape.stacks)
    if heads < 2:
        absent["composition"] = "A single head has no partners."
        return None
    if 3 * heads**2 * shape.d_model**2 > AFFORDABLE:
        absent["composition"] = (
            f"Partners were not compared: {heads} heads of width {shape.d_model} would take minutes (mechview compose does it)."
        )
        return None
    parts: list[pd.DataFrame] = []
    for source in shape.stacks:
        for stack in shape.stacks:
            parts += _met(model, source, stack, settings)
    return pd.concat([part for part in parts if len(part)], ignore_index=True) if any(map(len, parts)) else None


def _met(model: Any, source: Any, stack: Any, settings: dict[str, Any]) -> list[pd.DataFrame]:
    from mechview.errors import UsageError
    from mechview.heads.composition import KINDS, compositions
    from mechview.heads.meetings import earlier

    kinds = []
    for kind in KINDS:
        try:
            if earlier(model.shape, source, stack, kind).any():
                kinds.append(kind)
        except UsageError:
            continue
    if not kinds:
        return []
    given = {"source": source, "stack": stack, "fold": settings["fold"], "shuffles": 0}
    found = compositions(model, kinds, settings["offset"], **given)
    return [one.frame() for one in found.values()]


def _eig(model: Any, settings: dict[str, Any]) -> pd.DataFrame:
    from mechview.heads.copying import copying

    parts = [copying(model, fold=settings["fold"], stack=stack).frame() for stack in _own(model.shape)]
    return pd.concat(parts, ignore_index=True)


def _own(shape: Any) -> list[Any]:
    """Stacks whose messages reach the logits."""
    return [stack for stack in shape.stacks if stack != "encoder" or len(shape.stacks) == 1]


def _effects(model: Any, trace: Any, totals: bool, keep_text: bool) -> pd.DataFrame:
    """Effects on the logit of the likeliest next token, read at the last position; `total` is NaN unless asked for."""
    from mechview.reporting.streams import likeliest, shown
    from mechview.residual.effects import effects
    from mechview.residual.shares import shares

    target, ids = likeliest(trace), [token.id for token in trace.tokens]
    if totals:
        source = [token.id for token in trace.source_tokens]
        prompts: dict[str, Any] = {"prompt": source, "decoder": ids} if source else {"prompt": ids}
        found = effects(model, target=target, by="head", bos="no", **prompts)
        rows = [(row.component, row.direct, row.total, found.clean, found.error) for row in found.rows]
    else:
        split = shares(trace, target, by="head")
        pairs = zip(split.components, split.values.tolist(), strict=True)
        rows = [(name, value, float("nan"), split.total, split.error) for name, value in pairs]
    frame = pd.DataFrame(rows, columns=["component", "direct", "total", "clean", "error"])
    return frame.assign(token=shown(trace, target, keep_text), position=len(ids) - 1)
