"""What `spin` prints on a terminal: one line a layer and quantity, or one a claim."""

from __future__ import annotations

from typing import Any

from mechview.cli.show import table

COLUMNS = ("layer", "quantity", "value", "95 %", "null", "95 % of null", "against", "tw", "verdict")


def spin_text(found: Any) -> str:
    """Whole-layer numbers against the control that decides, then the heads that stand out, then the terms."""
    from mechview.tables import thermo_frame

    fitted, tested = found.sequences
    title = (
        f"{found.model}: {len(found.layers)} layers, fitted on {fitted} and tested on {tested} sequences of "
        f"{found.length} tokens from {found.documents[0]} and {found.documents[1]} other documents"
    )
    parts = [
        table(COLUMNS, _rows(frame), name)
        for name, frame in ((f"{title}\nR2 of spin models", found.frame()), ("scalars", thermo_frame(found)))
        if len(frame)
    ]
    return "".join(parts) + _heads(found.frame()) + NOTE


NOTE = (
    "informative: beats the null that destroys its structure, with one sign in both metrics; weak: beats some control "
    "only, or explains little; vacuous: beats none; not-applicable: no admissible null.\n"
)


def _rows(frame: Any) -> list[tuple[Any, ...]]:
    whole = frame[frame["head"].isna()].sort_values("decides", ascending=False, kind="stable")
    one = whole.drop_duplicates(["layer", "quantity", "metric"]).sort_index()
    weighted = one[one["metric"] == "tw"].set_index(["layer", "quantity"])["value"]
    rows = []
    for row in one[one["metric"] == "raw"].itertuples():
        null = (None, "-") if not row.null_name else (row.null, _range(row.null_lo, row.null_hi))
        tw = weighted.get((row.layer, row.quantity))
        rows.append((row.layer, row.quantity, row.value, _range(row.lo, row.hi), *null, row.null_name, tw, row.verdict))
    return rows


def _heads(frame: Any, most: int = 12) -> str:
    heads = frame[frame["head"].notna() & (frame["metric"] == "raw") & frame["decides"]]
    heads = heads[heads["verdict"] == "informative"].nlargest(most, "value")
    if heads.empty:
        return ""
    rows = [(row.label, row.quantity, row.value, _range(row.lo, row.hi), row.null) for row in heads.itertuples()]
    return table(("head", "quantity", "value", "95 %", "null"), rows, "heads that are spins in their own subspace")


def _range(lo: float, hi: float) -> str:
    return f"{lo:.3g} to {hi:.3g}"


def claims_text(judged: Any) -> str:
    """Each claim with its test, finding and verdict."""
    rows = [(one.verdict, one.claim, one.source, one.test, one.finding) for one in judged.claims]
    return table(("verdict", "claim", "source", "test", "finding"), rows, f"claims on {judged.model}")
