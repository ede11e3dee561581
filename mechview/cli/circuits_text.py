"""What token circuits, readings and composition look like on a terminal."""

from __future__ import annotations

from typing import Any

from mechview.cli.show import table


def circuit_text(circuit: Any) -> str:
    """Pairs of tokens, highest beside lowest, and the checks below."""
    frame = circuit.frame()
    looks = circuit.side == "pattern"
    first, second, value = ("q_token", "k_token", "score") if looks else ("src_token", "dst_token", "logit")
    columns = [("query", "key") if looks else ("source", "written")][0]
    title = f"{circuit.side} of {circuit.label} over {len(circuit.ids)} tokens ({circuit.excluded} left out): {circuit.reading}"
    at = "" if circuit.offset is None else f", offset {circuit.offset}"
    parts = []
    for sign, words in ((1, "highest"), (-1, "lowest")):
        rows = frame[frame["sign"] == sign]
        cells = rows[[first, second, value, "z"]].itertuples(index=False, name=None)
        parts.append(
            table((*columns, value, "z"), cells, f"{words} pairs" if sign < 0 else f"{title}{at}: {words} pairs")
        )
    return "".join(parts) + "".join(f"{line}\n" for line in _checks(circuit))


def _checks(circuit: Any) -> list[str]:
    shares = [
        f"own token among the {one.top} {end}: {one.value:.3f} (null {one.null_mean:.3g} ± {one.null_sd:.2g}, {one.n} draws)"
        for end, group in (("highest", circuit.accuracy), ("lowest", circuit.suppression))
        for one in group
    ]
    sums = f"all pairs summed in blocks and by r x r products agree within {circuit.completeness:.1e} of their spread"
    return [*shares, f"mean {circuit.mean:.4g} ± {circuit.sd:.4g} over all pairs; {sums}"]


def readings_text(readings: Any) -> str:
    """One list of tokens a row."""
    rows = [
        (
            f"{part.index}{' ~' if part.degenerate else ''}", part.sigma, f"{part.end} {'+' if part.sign > 0 else '-'}",
            "  ".join(readings.tokens[i].shown for i in part.ids.tolist()), part.coherence,
            f"{part.random_mean:.2f} ± {part.random_sd:.2f}", f"{part.shuffled_mean:.2f} ± {part.shuffled_sd:.2f}",
        )
        for part in readings.lists
    ]  # fmt: skip
    title = f"components of the {readings.side} of {readings.label}: {readings.reading}"
    check = "~ near-equal singular values: only the span of the group is determined; coherence: mean cosine of a list\n"
    columns = ("component", "σ", "end", "tokens", "coherence", "random directions", "shuffled tokens")
    return table(columns, rows, title) + check


def compose_text(found: dict[str, Any], label: str | None, top: int) -> str:
    """The pairs furthest above the null, kind by kind, and the definition."""
    parts = []
    for kind, one in found.items():
        frame = one.frame()
        rows = frame if label is None else frame[(frame["src_label"] == label) | (frame["dst_label"] == label)]
        names = ["src_label", "dst_label", "value", "null", "shuffled", "z"]
        best = rows.sort_values("z", ascending=False).head(top)[names].itertuples(index=False, name=None)
        outside = (frame["value"] > frame["high"]) | (frame["value"] < frame["low"])
        at = "" if one.offset is None or kind == "V" else f", offset {one.offset}"
        title = f"{kind}-composition of {one.model}{at}: {one.formula}"
        share = f"{int(outside.sum())} of {len(frame)} pairs outside the null's 95 % band\n"
        parts.append(table(("sender", "receiver", "score", "null", "shuffled", "z"), best, title) + share)
    return "".join(parts)


def components_text(found: Any, top: int) -> str:
    """Single components of messages that one receiver reads most of."""
    frame = found.frame().sort_values("z", ascending=False).head(top)
    cells = frame[["src_label", "index", "sigma", "value", "null", "z"]].itertuples(index=False, name=None)
    title = f"{found.kind}-composition with {found.label}, one component of a message at a time"
    return table(("sender", "component", "σ", "score", "null", "z"), cells, title)
