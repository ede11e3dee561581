"""Sets of prompts on the command line: what is left out of a table, and the text of effects over a set."""

from __future__ import annotations

from typing import Any

from mechview.cli.output import note
from mechview.cli.show import facts, table

PARTIAL = 4


def told_left_out(prompts: Any, quiet: bool) -> int:
    """The exit code, after saying which rows of a table this model cannot be asked."""
    for sentence in prompts.left_out:
        note(f"left out of {prompts.name}: {sentence}", quiet)
    return PARTIAL if prompts.left_out else 0


def effect_set_text(found: Any, top: int) -> str:
    """Components by the mean of their total effect (or change), with intervals."""
    rows = [
        (r.component, r.mean, r.lo, r.hi, r.rel, r.p_adjusted, *_others(found, r.component)) for r in found.top(top)
    ]
    others = ["direct", "direct - total"] if found.leading == "total" else []
    title = f"{found.kind} over {found.n} prompts: mean {found.leading}, with its 95 % interval"
    over = "of the clean metric" if found.leading == "total" else "of the gap"
    drawn = table(("component", found.leading, "lo", "hi", over, "p, corrected", *others), rows, title)
    notes = {f"note {n}": text for n, text in enumerate(found.notes, 1)}
    base = "mean clean metric" if found.leading == "total" else "mean gap, clean - corrupted"
    return drawn + facts(
        {base: found.baseline, "statistics": found.statistics, **notes, "nothing changed, yet it moves by": found.error}
    )


def _others(found: Any, component: str) -> list[float | None]:
    if found.leading != "total":
        return []
    means = {row.quantity: row.mean for row in found.rows if row.component == component}
    return [means.get("direct"), means.get("difference")]
