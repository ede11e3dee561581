"""Writing a report: gather, make the page small enough, write it whole or not at all.

When a page would be larger than allowed, the scores before softmax go first, then the finer steps of the
weights, then the last prompts, then the token lists, eigenvalues and partners of the cards; the page says what was
left out. A page that is still too large is refused.
Scores and fine steps also go where a page would be slow to open: above 2.5 MB, or more for long prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mechview.errors import OutputError
from mechview.exports import check_output, write_text
from mechview.manifest import Run, recorded
from mechview.reporting.gather import Gathered, gather
from mechview.reporting.packing import COARSE, STEPS
from mechview.reporting.page import render
from mechview.reporting.sections import Extras, extras

LIGHT, LIGHT_CELL = 2.5e6, 0.6


def report(
    model: Any,
    prompts: Sequence[Any] | str | None = None,
    *,
    out: str | Path = "report.html",
    layers: Sequence[int] | None = None,
    heads: Sequence[Any] | None = None,
    fold: bool = True,
    offset: int = 0,
    bos: str = "auto",
    force: bool = False,
    keep_text: bool = True,
    roles: bool | None = None,
    thresholds: str | Path | None = None,
    compare: Sequence[Any] | str | None = None,
    compare_model: Any = None,
    spin: bool | str | Path = False,
    memory: bool | str | Path = False,
    cards: Sequence[str] | None = None,
    effects: bool = False,
    max_mb: float = 20.0,
    run: Run | None = None,
) -> Path:
    """One self-contained HTML page about a model's heads: factors, checks, and what they did on prompts.

    Args:
        prompts: texts or token ids; a sentence that repeats itself unless given; `[]` for weights alone.
        layers: layers to show, all unless given.
        heads: heads to show, as `"L5H1"`, `"E.L5H1"`, or `(5, 1)` in every stack.
        fold: fold norm gains (and centring) into the factors.
        offset: where a rotary head's pattern is taken, `q_pos - k_pos`.
        keep_text: keep the prompts' text; otherwise the page has positions only.
        roles: look for the heads' roles, which runs the model and permuted copies; up to 0.3 G parameters unless said.
        thresholds: TOML file of roles, as in `mv.roles`; metrics registered with `@mv.metric` are measured with them.
        compare: a prompt to compare the first one with; a list to compare with all prompts in turn, with intervals.
        compare_model: a model to compare this one with, head by head.
        spin, memory: add the section, measured now (`True`) or read from the JSON that `mechview spin --claims` or
            `mechview memory` wrote.
        cards: heads whose cards list tokens; unless given all heads, or those with a role where that would take long.
        effects: measure what ablating each head does to the predicted token: one forward pass a head and prompt.
        max_mb: largest size of the page, in MB of 10^6 bytes.

    Raises:
        UsageError: a saved result of another model.
        OutputError: the file exists (without `force`), cannot be written, or would be too large.
    """
    settings = {"fold": fold, "offset": offset, "bos": bos, "keep_text": keep_text, "roles": roles}
    settings["thresholds"] = None if thresholds is None else str(thresholds)
    settings |= {"cards": None if cards is None else list(cards), "effects": effects}
    choice = {"layers": layers, "heads": heads}
    asked = extras(compare, compare_model, spin, memory)
    return write_report(model, prompts, Path(out), choice, settings, force, max_mb, run, asked).path


@dataclass(frozen=True)
class Written:
    """A report on disk; `parity_passed` is None where no prompt was run."""

    path: Path
    parity_passed: bool | None


def write_report(
    model: Any,
    prompts: Sequence[Any] | str | None,
    out: Path,
    choice: dict[str, Any],
    settings: dict[str, Any],
    force: bool = False,
    max_mb: float = 20.0,
    run: Run | None = None,
    asked: Extras | None = None,
) -> Written:
    """Gather, render and write; what `report` does, with the verdict of its parity check."""
    target = check_output(out, force)
    with nullcontext(run) if run is not None else recorded() as measured:
        gathered = gather(model, prompts, choice, settings, measured, asked=asked)
        page = fitted(gathered, int(max_mb * 1e6))
    write_text(target, page, force=force)
    return Written(out, None if gathered.parity is None else bool(gathered.parity["passed"].all()))


def fitted(gathered: Gathered, limit: int) -> str:
    """The fullest page of at most `limit` bytes.

    Raises:
        OutputError: even the smallest is larger.
    """
    size, light = 0, min(limit, light_size(gathered))
    for scores, steps, kept, details in _reductions(len(gathered.prompts)):
        page = render(_reduced(gathered, scores, steps, kept, details), scores=scores, steps=steps)
        size = len(page.encode("utf-8", "backslashreplace"))
        if size <= (light if steps == STEPS else limit):
            return page
    raise OutputError(
        f"the report would be {size / 1e6:.1f} MB, more than {limit / 1e6:g}: choose fewer layers or heads, or raise max_mb"
    )


def light_size(gathered: Gathered) -> float:
    """Bytes up to which a page keeps all that it has: 2.5 MB, or what one byte a visible cell would take deflated."""
    cells = sum(int((~np.isneginf(head.score)).sum()) for view in gathered.prompts for head in view.heads)
    return max(LIGHT, LIGHT_CELL * cells) if cells else float("inf")


def _reductions(prompts: int) -> list[tuple[bool, int, int, bool]]:
    """Scores, steps, prompts and details of cards to keep, from the fullest page to the smallest."""
    if not prompts:
        return [(True, STEPS, 0, True), (True, STEPS, 0, False)]
    return [
        (True, STEPS, prompts, True),
        (False, STEPS, prompts, True),
        *((False, COARSE, kept, True) for kept in range(prompts, -1, -1)),
        (False, COARSE, 0, False),
    ]


def _reduced(gathered: Gathered, scores: bool, steps: int, kept: int, details: bool) -> Gathered:
    remarks = list(gathered.remarks)
    if not scores:
        remarks.append("Scores before softmax were left out to keep the page small.")
    if steps != STEPS and kept:
        remarks.append(
            f"Attention maps are kept to steps of {1 / steps:g} to keep the page small; listed weights are exact."
        )
    if kept < len(gathered.prompts):
        remarks.append(f"{len(gathered.prompts) - kept} of {len(gathered.prompts)} prompts were left out as well.")
    if not details:
        remarks.append("Token lists, eigenvalues and partners of the heads were left out as well.")
    shown = gathered.details if details else None
    return replace(gathered, prompts=gathered.prompts[:kept], remarks=tuple(remarks), details=shown)
