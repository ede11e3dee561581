"""What `spin` prints on a terminal: one line a layer and quantity, or one a claim."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any

from mechview.cli.show import table
from mechview.cli.words import one_line

WIDTH = 118

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
    """Each claim with its test, finding and verdict, as short paragraphs: five columns of prose are no table."""
    blocks = [
        "\n".join([
            f"[{one.verdict}] {one_line(one.claim)} ({one.source})",
            *_wrapped("test", one.test),
            *_wrapped("finding", one.finding),
        ])
        for one in judged.claims
    ]  # fmt: skip
    counts = Counter(one.verdict for one in judged.claims)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return "\n\n".join([f"claims on {one_line(judged.model)}: {told}", *blocks, CLAIMS_NOTE])


CLAIMS_NOTE = (
    "A verdict is of the test, not of the claim: informative means that the numbers differ from their controls, and the\n"
    "finding says on which side. vacuous: no more than a control gives, or an identity that holds for any model.\n"
)


def _wrapped(name: str, text: str) -> list[str]:
    first, later = f"    {name + ':':<9}", " " * 13
    return textwrap.wrap(one_line(text), WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False)
