"""What scores, roles and causal checks print on a terminal: every value beside its null and threshold."""

from __future__ import annotations

import math
from typing import Any

from mechview.cli.show import number, table


def scores_text(found: Any) -> str:
    """A table a metric, heads in order of value; `*` marks what lies outside the 95 % band of its null."""
    parts = [_metric_text(found, name) for name in found.metrics]
    return "\n".join(parts) + notes_text(found.notes)


def _metric_text(found: Any, name: str) -> str:
    from mechview.heads.notes import NOTES

    rows = [row for row in found.rows if row.metric == name]
    measured = sorted((row for row in rows if not math.isnan(row.value)), key=lambda row: -row.value)
    title = f"{NOTES[name].title} ({NOTES[name].unit}): {NOTES[name].definition}"
    if not measured:
        return f"{title}\nnot measured for any head\n"
    cells = [
        (row.label, row.value, spread(row.seed_sd), *null_cells(row), "*" if row.outside else "") for row in measured
    ]
    return table(("head", "value", "± seeds", "null", "95 % band", "z", "n", "outside"), cells, title)


def null_cells(row: Any) -> tuple[Any, ...]:
    """Null, its band, z and number of draws."""
    if not row.n:
        return ("-", "-", None, 0)
    low, high = row.band
    return (f"{number(row.null_mean)} ± {row.null_sd:.2g}", f"{number(low)} to {number(high)}", row.z, row.n)


def spread(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2g}"


def roles_text(found: Any) -> str:
    """One line a head that holds a role, the counts of the others; of a single head its whole card."""
    if len(found.cards) == 1:
        return card_text(found.cards[0], found.notes)
    silent = [card for card in found.cards if card.roles == ("unknown",)]
    rows = [(card.label, card.kv_head, card.line) for card in found.cards if card not in silent]
    title = f"{found.model}: roles of {len(found.cards)} heads, {len(silent)} of them unknown"
    return table(("head", "kv", "roles, with value, threshold and null of their tests"), rows, title) + notes_text(
        found.notes
    )


def card_text(card: Any, notes: tuple[str, ...]) -> str:
    """The role line of a head, then every test."""
    rows = [
        (
            e.role, e.score.metric, e.score.value, f"{'≥' if e.test.above else '≤'} {e.test.threshold:g}",
            *null_cells(e.score), {True: "passed", False: "no", None: "not made"}[e.passed],
        )
        for e in card.evidence
    ]  # fmt: skip
    columns = ("role", "test", "value", "threshold", "null", "95 % band", "z", "n", "result")
    return table(columns, rows, f"role of {card.label}: {card.line}") + notes_text(notes)


def causal_text(check: Any) -> str:
    """Changes of loss beside those of other heads."""
    if check is None:
        return ""
    rows = [
        (row.label, row.metric.removeprefix("ablation_"), row.value, *null_cells(row), "*" if row.outside else "")
        for row in check.rows
    ]
    clean = ", ".join(f"{task} {loss:.4g}" for task, loss in check.clean.items())
    title = f"loss without the head less loss with it (nats, {check.method} ablation; clean loss: {clean})"
    columns = ("head", "task", "change", "other heads", "95 % band", "z", "n", "outside")
    return "\n" + table(columns, rows, title) + f"own values put back change the loss by {check.error:.1e} of itself\n"


def notes_text(notes: tuple[str, ...]) -> str:
    return "".join(f"{note}\n" for note in notes)
