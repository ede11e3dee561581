"""The long form of a head's card: what it does by its weights alone, each number beside its null."""

from __future__ import annotations

from typing import Any

from mechview.cli.show import facts
from mechview.errors import MechviewError


def long_card(model: Any, wanted: Any, offset: int, fold: bool, top: int = 5) -> str:
    """What a head does by its weights: tokens, copying, symmetry, and who composes with it; refusals said."""
    lines: dict[str, str] = {}
    for name, line in (("message", _message_line), ("pattern", _pattern_line), ("copying", _copying_line),
                       ("symmetry", _symmetry_line), ("composition", _partners_line)):  # fmt: skip
        try:
            lines |= line(model, wanted, offset, fold, top)
        except MechviewError as error:
            lines[name] = f"none: {error}"
    return facts(lines, "from weights alone")


def _place(wanted: Any) -> dict[str, Any]:
    return {"layer": wanted.layer, "head": wanted.head, "stack": wanted.stack or "decoder"}


def _message_line(model: Any, wanted: Any, offset: int, fold: bool, top: int) -> dict[str, str]:
    from mechview.heads.token_circuits import message_tokens

    found = message_tokens(model, k=top, each=1, fold=fold, **_place(wanted))
    one = found.accuracy[0]
    return {
        "raises": _shown(found, found.high),
        "lowers": _shown(found, found.low),
        "own token first": f"{one.value:.3f} of tokens (null {one.null_mean:.2g} ± {one.null_sd:.2g})",
    }


def _pattern_line(model: Any, wanted: Any, offset: int, fold: bool, top: int) -> dict[str, str]:
    from mechview.heads.token_circuits import pattern_pairs

    found = pattern_pairs(model, k=top, each=1, fold=fold, offset=offset, **_place(wanted))
    return {"looks": _shown(found, found.high)}


def _shown(found: Any, pairs: Any) -> str:
    ids = found.ids
    return "   ".join(
        f"{found.tokens[int(ids[i])].shown} → {found.tokens[int(ids[j])].shown}"
        for i, j in zip(pairs.row.tolist(), pairs.column.tolist(), strict=True)
    )


def _copying_line(model: Any, wanted: Any, offset: int, fold: bool, top: int) -> dict[str, str]:
    from mechview.heads.copying import copying

    found = copying(model, layers=[wanted.layer], fold=fold, stack=wanted.stack).heads[wanted.head].score
    return {"copying": f"{found.value:.3f} by eigenvalues (random heads {found.null_mean:.2g} ± {found.null_sd:.2g})"}


def _symmetry_line(model: Any, wanted: Any, offset: int, fold: bool, top: int) -> dict[str, str]:
    from mechview.heads.geometry import geometry

    rows = geometry(model, layers=[wanted.layer], offset=offset, fold=fold, stack=wanted.stack).rows
    mine = [row for row in rows if row.head == wanted.head]
    return {
        row.metric.removeprefix("pattern_"): f"{row.value:.3f} (null {row.null_mean:.2g} ± {row.null_sd:.2g})"
        for row in mine
    }


def _partners_line(model: Any, wanted: Any, offset: int, fold: bool, top: int) -> dict[str, str]:
    from mechview.heads.composition import compositions

    found = compositions(model, offset=offset, fold=fold, shuffles=0, stack=wanted.stack)
    lines = {}
    for kind, one in found.items():
        frame = one.frame()
        for side, other, words in (("dst", "src", f"fed at {kind} by"), ("src", "dst", f"feeds {kind} of")):
            mine = frame[(frame[f"{side}_layer"] == wanted.layer) & (frame[f"{side}_head"] == wanted.head)]
            best = mine[mine["value"] > mine["high"]].nlargest(top, "z")
            pairs = zip(best[f"{other}_label"], best["value"], best["null"], strict=True)
            lines[words] = "   ".join(f"{label} {value:.3f}" for label, value, _ in pairs) or "none above the null"
    return lines
