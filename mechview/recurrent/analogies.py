"""The article's analogies as pairs of numbers, each mapping with the verdict that its nulls give.

| LSTM | transformer | what is compared |
|---|---|---|
| cell state | residual stream | `1 - f`: mean over the LSTM's gates, mean over the MLPs' writes |
| input gate | pattern | share of the variance of log write size that goes with the gate |
| output gate | message | share of the variance of log emission size that goes with the gate, with coherence |
| candidate | message | correlation of log gate and log content over writes |
| never forgets | algebra | the stream is the sum of its rows: 1 - completeness error, to 5 digits |
| never forgets | effect | retention of the embedding under all later writes; ablation |

A verdict is of the transformer's number (of the LSTM's where it stands alone): informative only if models with
permuted weights, on the same prompts, do not have it. That two numbers agree is left to the reader: `apart` gives
their difference, and a difference is not a test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mechview.recurrent.verdicts import MEANING, Measured, Verdict


@dataclass(frozen=True)
class Analogy:
    """One claim under one mapping. `left` is the LSTM's number, `right` the transformer's."""

    claim: str
    mapping: str
    statistic: str
    left: Measured | None
    right: Measured | None

    @property
    def verdict(self) -> Verdict:
        judged = self.right or self.left
        return Verdict.not_applicable if judged is None else judged.verdict

    @property
    def meaning(self) -> str:
        return MEANING[self.verdict]

    @property
    def apart(self) -> float:
        """The transformer's number less the LSTM's; NaN where one of them is missing."""
        return math.nan if self.left is None or self.right is None else self.right.value - self.left.value


CLAIMS = (
    ("cell state ~ residual stream", "write by write", "mean of 1 - f", "forgetting", "mlp_forgetting"),
    ("input gate ~ pattern", "pattern as input gate", "gate's share of log write size", "gate_share", "gate_share"),
    ("input gate ~ pattern", "mass against lag", "lag within which half the mass lies", "half_lag", "half_lag"),
    (
        "output gate ~ message", "message as output gate", "gate's share of log emission size",
        "output_share", "coherence_share",
    ),
    (
        "output gate ~ message", "message as candidate", "correlation of log gate and log content",
        "gate_content_correlation", "gate_content_correlation",
    ),
    ("transformers never forget", "algebra", "1 - completeness error, to 5 digits", None, "algebraic_forget_gate"),
    ("transformers never forget", "effect: embedding", "share left at the end", None, "embedding_retention"),
    (
        "transformers never forget", "effect: same layer", "share of attention's write the next MLP takes back",
        None, "attention_erased_by_next_mlp",
    ),
    ("transformers never forget", "effect: ablation", "share missing at the end", None, "causal_retention"),
)  # fmt: skip


def analogies(transformer: Mapping[str, Measured] | None, lstm: Mapping[str, Measured] | None) -> tuple[Analogy, ...]:
    """Every claim that one of the two sides has a number for."""
    found = []
    for claim, mapping, statistic, left, right in CLAIMS:
        ours = (lstm or {}).get(left) if left else None
        theirs = (transformer or {}).get(right)
        if ours is not None or theirs is not None:
            found.append(Analogy(claim, mapping, statistic, ours, theirs))
    return tuple(found)
