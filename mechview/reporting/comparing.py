"""What a report compares: its first prompt with another, or its model with another; numbers by `mv.compare`.

Two prompts are read along the difference of the two tokens that they make likeliest, or along that token where it
is the same; several prompts on both sides belong together in turn, and give the changes their intervals. A second
model is compared head by head from its weights and, where prompts were run, by what it contributes on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from mechview.errors import UsageError


@dataclass(frozen=True)
class ComparisonView:
    """One comparison: its `compare` frame and what stands beside it.

    `changes` are rows with intervals where there are several prompts; `target` says along which logit shares are
    read, empty where there is none; `totals` are the model's own values of it and `asked` the positions.
    """

    kind: str
    sides: tuple[str, str]
    frame: pd.DataFrame
    changes: pd.DataFrame
    identical: bool
    leading: tuple[str, ...]
    error: float
    method: str
    notes: tuple[str, ...]
    tokens: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    asked: tuple[int, int] | None = None
    totals: tuple[float, float] | None = None
    target: str = ""


def compare_prompts(
    model: Any, traces: Sequence[Any], others: Sequence[Any], settings: dict[str, Any], seed: int
) -> ComparisonView:
    """The first prompt against the first of `others`; all of them for the intervals.

    Raises:
        UsageError: no prompt was run that could be compared.
    """
    from mechview.models.tracing import trace
    from mechview.residual.compare import compare

    if not traces:
        raise UsageError("a comparison of prompts needs a prompt that was run: give one with -p")
    seen = [trace(model, prompt, bos=settings["bos"]) for prompt in others]
    target, against = _targets(traces[0], seen[0])
    found = compare(traces[0], seen[0], target=target, against=against, seed=seed)
    several = min(len(traces), len(seen)) > 1
    changes = compare(list(traces), seen, model=model, paired=len(traces) == len(seen), seed=seed) if several else None
    kept = settings["keep_text"]
    view = _view(found, ("prompt a", "prompt b"), changes)
    return replace(
        view,
        tokens=found.tokens if kept and found.tokens else _positions(found.tokens),
        target=_said(traces[0], target, against, kept),
    )


def compare_models(
    model: Any, other: Any, prompts: Sequence[Any], settings: dict[str, Any], seed: int
) -> ComparisonView:
    """The report's model against another one: a is the report's."""
    from mechview.residual.compare import compare

    asked = {"fold": settings["fold"], "offset": settings["offset"], "bos": settings["bos"], "seed": seed}
    found = compare(model, other, prompts=list(prompts) or None, **asked)
    sides = (_name(model), _name(other))
    return _view(found, sides, None)


def _view(found: Any, sides: tuple[str, str], changes: Any) -> ComparisonView:
    frame = found.frame()
    rows = frame if changes is None else changes.frame()
    return ComparisonView(
        kind=found.kind, sides=sides, frame=frame, changes=rows[rows["lo"].notna()].reset_index(drop=True),
        identical=found.identical, leading=found.leading, error=max(found.error, 0.0 if changes is None else changes.error),
        method=found.method if changes is None else changes.method,
        notes=tuple(note for note in found.notes if note != "identical"), asked=found.asked, totals=found.totals,
    )  # fmt: skip


def _targets(a: Any, b: Any) -> tuple[int | None, int | None]:
    """The token that b makes likeliest, against a's where that is another; none without an unembedding."""
    if a.logits is None or b.logits is None:
        return None, None
    first, second = (int(one.logits[-1].argmax()) for one in (a, b))
    return second, None if first == second else first


def _said(trace: Any, target: int | None, against: int | None, keep_text: bool) -> str:
    from mechview.tokens import describe

    if target is None:
        return ""
    ids = [target] if against is None else [target, against]
    shown = [token.shown if keep_text else "•" for token in describe(ids, trace.tokenizer)]
    return shown[0] if len(shown) == 1 else f"{shown[0]} over {shown[1]}"


def _positions(tokens: Any) -> Any:
    return None if tokens is None else tuple(tuple("•" for _ in side) for side in tokens)


def _name(model: Any) -> str:
    source = model.source
    return f"{source.name} ({source.revision})" if source.revision else str(source.name)
