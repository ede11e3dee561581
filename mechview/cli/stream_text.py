"""What the verbs of the residual stream print on a terminal."""

from __future__ import annotations

from typing import Any

from mechview.cli.show import table
from mechview.errors import UsageError


def resid_text(found: Any, top: int) -> str:
    """Shares in order of size, or the sizes of a ledger's rows; the check below."""
    frame = found.frame()
    if frame["value"].notna().any():
        return _shares_text(found, frame, top)
    return _ledger_text(found, frame, top)


def _shares_text(found: Any, frame: Any, top: int) -> str:
    largest = frame.reindex(frame["value"].abs().sort_values(ascending=False).index).head(top)
    rows = [
        (row.component, row.value, row.value / found.total if found.total else None) for row in largest.itertuples()
    ]
    rest, others = float(frame["value"].sum() - largest["value"].sum()), len(frame) - len(largest)
    rows += [(f"{others} others", rest, rest / found.total if found.total else None)] if others else []
    cap = "" if found.softcap is None else f", before the soft-cap of {found.softcap:g}"
    title = f"{found.direction} at position {found.position}{cap}; norms frozen: {found.freeze}, folded: {found.fold}"
    title += grain_text(found)
    check = f"total {found.total:.6g} (the model's own); rows sum to it within {found.error:.1e} of the largest\n"
    return table(("component", "share", "of total"), rows, title) + check


def grain_text(found: Any) -> str:
    """How many neurons have rows of their own, where any have."""
    if found.neurons is None:
        return ""
    return f"; {found.neurons} neuron{'' if found.neurons == 1 else 's'} of each MLP, its others in mlp_rest"


def _ledger_text(found: Any, frame: Any, top: int) -> str:
    """Mean sizes over positions after the first, and the first apart."""
    later, first = frame[~frame["first"]], frame[frame["first"]].set_index("component")
    asked = [] if found.direction is None else ["cos_direction"]
    shown = ["norm", "cos_stream", *asked, "share_of_update"]
    means = later.groupby("component", sort=False)[shown].mean()
    means = means.sort_values("norm", ascending=False).head(top) if len(later) else means
    names = means.index if len(later) else first.index[:top]
    rows = [
        (name, *(means.loc[name] if len(later) else [None] * len(shown)), first.loc[name, "norm"]) for name in names
    ]
    title = f"rows of the stream at {found.point}, by {found.by}: means over positions after the first"
    title += grain_text(found)
    towards = ["cosine to direction"] if asked else []
    title += f"; direction: {found.direction}" if asked else ""
    columns = ("component", "norm", "cosine to stream", *towards, "share of update", "norm at position 0")
    check = f"rows sum to the model's own stream within {found.error:.1e} of its largest value\n"
    return table(columns, rows, title) + check


def growth_text(found: Any) -> str:
    """Means over positions after the first, point by point, and the norm of the first."""
    frame = found.frame()
    later, first = frame[~frame["first"]], frame[frame["first"]].set_index("point")
    shown = ["norm", "added", "cos_before", "cos_final"]
    means = later.groupby("point", sort=False, observed=True)[shown].mean()
    rows = [(p, *(means.loc[p] if len(later) else [None] * len(shown)), first.loc[p, "norm"]) for p in found.points]
    columns = ("point", "norm", "added", "cosine to before", "cosine to the end", "norm at position 0")
    return table(columns, rows, "the stream over depth: means over positions after the first")


def lens_text(found: Any, position: int) -> str:
    """One position's readings, point by point."""
    frame, length = found.frame(), found.top.shape[1]
    if not -length <= position < length:
        raise UsageError(f"position {position} does not exist: the prompt has positions 0 to {length - 1}")
    rows = frame[frame["pos"] == position % length]
    asked = found.target is not None
    columns = ["point", "top_token", "top_prob", "entropy", "kl_final", *(["prob", "rank"] if asked else [])]
    check = f"last row against the model's own logits: {found.error:.1e}\n"
    return (
        table(columns, rows[columns].itertuples(index=False, name=None), f"logit lens at position {position % length}")
        + check
    )


def lens_changes_text(found: Any, top: int) -> str:
    """The rows that move the reading most, in the order they are written."""
    chosen = {id(row) for row in found.top(top)}
    rows = [(row.since, row.point, row.component, row.value) for row in found.rows if id(row) in chosen]
    rest = len(found.rows) - len(rows)
    rows += [("", "", f"{rest} others", sum(row.value for row in found.rows if id(row) not in chosen))] if rest else []
    cap = "" if found.softcap is None else f", before the soft-cap of {found.softcap:g}"
    title = f"{found.direction} as the lens reads it at position {found.position}{cap}: the largest changes"
    title += grain_text(found)
    check = (
        f"readings from 0 to {float(found.readings[-1]):.6g} (the model's own); steps add up within {found.error:.1e}\n"
    )
    return table(("since", "to", "component", "change"), rows, title) + check
