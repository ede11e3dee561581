"""What the verbs about change print on a terminal."""

from __future__ import annotations

from typing import Any

from mechview.cli.show import facts, table


def compare_text(found: Any, top: int) -> str:
    """The verdict, the components that differ most, and what a reader must know."""
    sides = f"{found.model_a} against {found.model_b}: {'identical' if found.identical else found.kind}"
    rows = [(standing.component, standing.size, standing.first) for standing in found.ranked()[:top]]
    title = f"{sides}; size of {', '.join(found.leading)}"
    drawn = table(("component", f"size of {found.ranked_on}", "at position 0"), rows, title)
    said = {f"note {n}": text for n, text in enumerate(found.notes, 1)}
    method = {"method": found.method} if found.method else {}
    totals = {} if found.totals is None else {"the model's own values": "{:.6g} and {:.6g}".format(*found.totals)}
    return drawn + facts({**totals, **method, **said, "rows add up within": found.error})


def effects_text(found: Any, top: int) -> str:
    """Components by total effect."""
    rows = [(row.component, row.direct, row.total, row.difference) for row in found.top(top)]
    title = f"{found.metric} at position {found.position} = {found.clean:.6g}; components replaced by {found.method}"
    drawn = table(("component", "direct", "total", "direct - total"), rows, title)
    notes = {f"note {n}": text for n, text in enumerate(found.notes, 1)}
    return drawn + facts({**notes, "all put back, the metric changes by": found.error})


def patching_text(found: Any, top: int) -> str:
    """Patched passes by change."""
    path = found.what == "path"
    ends = lambda row: (row.component, row.receiver if path else row.patched_position)  # noqa: E731
    rows = [(*ends(row), row.value, row.change, row.normalised) for row in found.top(top)]
    title = f"{found.metric} at position {found.position}: {found.clean:.6g} clean, {found.corrupted:.6g} corrupted"
    title += "; identical prompts" if found.identical else ""
    columns = ("from", "into", "metric", "change", "share of the gap") if path else (
        "component", "position", "metric", "change", "restored share"
    )  # fmt: skip
    check = "the receiver rebuilt, or its own value put back, is off by" if path else "own values put back change it by"
    more = {} if len(rows) == len(found.rows) else {"shown": f"{len(rows)} of {len(found.rows)}, largest change first"}
    return table(columns, rows, title) + facts({"note": found.direction, **more, check: found.error})
