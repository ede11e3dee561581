"""What `mechview memory` prints on a terminal: analogies with verdicts, then the numbers behind them."""

from __future__ import annotations

from typing import Any

from mechview.cli.show import table

ANALOGY = ("claim", "mapping", "statistic", "lstm", "transformer", "null_tokens", "null_weights", "verdict")
NUMBER = ("side", "over", "quantity", "value", "lo", "hi", "null_tokens", "null_weights", "verdict")
SINGLE = ("place", "value", "lo", "hi", "null_tokens", "null_weights", "verdict")
BEHAVIOUR = ("side", "quantity", "lag", "value", "null_tokens")


def memory_text(found: Any) -> str:
    """Analogies first; then single writes; notes and the check at the end."""
    frame = found.frame()
    if not hasattr(found, "analogies"):
        return table(BEHAVIOUR, frame[list(BEHAVIOUR)].itertuples(index=False, name=None), "behaviour on random tokens")
    from mechview.tables import analogies_frame

    pairs = analogies_frame(found)[list(ANALOGY)]
    parts = [table(ANALOGY, pairs.itertuples(index=False, name=None), "analogies; a verdict is what the nulls say")]
    whole = frame[frame["place"] == "all"]
    whole = whole[whole["lag"].isna()]
    parts.append(table(NUMBER, whole[list(NUMBER)].itertuples(index=False, name=None), "whole model"))
    gates = frame[frame["quantity"] == "forget_gate"]
    if len(gates):
        title = "effective forget gate of each write (below 1 it erases, above 1 it amplifies)"
        parts.append(table(SINGLE, gates[list(SINGLE)].itertuples(index=False, name=None), title))
    check = f"parts sum to the model's own state within {found.error:.1e}\n"
    return "".join([*parts, *(f"note: {text}\n" for text in found.notes), check])
