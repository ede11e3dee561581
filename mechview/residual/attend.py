"""Why a head looks there: its score split over who wrote the query side and who wrote the key side.

`score(q, k) = scale * sum_ab [c_a(q) / rho_q, 1] P(q - k) [c_b(k) / rho_k, 1]^T / (norm scales) + bias(q, k)`
with the rows `c` of the ledger before the layer. The affine coordinate carries the biases as a row
`head_bias`. Rows sum to the score before a soft-cap; norms are frozen at their own scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import factor_head, homogeneous
from mechview.models.norms import norm_scale
from mechview.models.positions import position_bias, visible
from mechview.models.scores import head_scale, project
from mechview.models.trace import Trace, as_trace
from mechview.models.weights import AttentionWeights, Stack
from mechview.residual.ledger import ledger
from mechview.residual.rows import Grain
from mechview.results import Result, check_count


@dataclass(frozen=True)
class ScoreLedger(Result):
    """`values[query_side, key_side]`, plus `position_bias`, sums to `total`, the model's own score."""

    trace: Trace = field(repr=False)
    label: str
    query: int
    key: int
    components: tuple[str, ...]
    values: Float[Tensor, "component component"]
    position_bias: float
    total: float
    error: float

    def top(self, k: int | Any = 10) -> list[tuple[str, str, float]]:
        """The k largest pairs (query side, key side, value); then the remainder as one row."""
        check_count(k)
        order = self.values.abs().flatten().argsort(descending=True)[:k].tolist()
        n = len(self.components)
        pairs = [(self.components[i // n], self.components[i % n], float(self.values[i // n, i % n])) for i in order]
        rest = float(self.values.sum()) - sum(value for *_, value in pairs)
        return [*pairs, ("remainder", "remainder", rest)]


def score_ledger(
    trace: Trace | Any,
    *,
    layer: int,
    head: int,
    query: int = -1,
    key: int = 0,
    by: Grain = "head",
    stack: Stack | None = None,
) -> ScoreLedger:
    """The score of one head at one (query, key) pair, split over pairs of components.

    Args:
        stack: `encoder` for a head of the encoder of an encoder-decoder model, whose tokens positions then count.

    Raises:
        UsageError: positions outside the prompt, a masked pair, or a cross-attention head.
    """
    stack = stack or as_trace(trace).stack
    if stack == "cross":
        raise UsageError("a cross-attention score has its two sides in two streams: it is not split over one ledger")
    weights, seen = trace.weights.attention(layer, stack), trace.attention(layer, stack)
    query, key = _checked(len(seen.reads), weights, query, key)
    factors = factor_head(weights, head, True, len(trace.weights.shape.stacks) > 1)
    rows = ledger(trace, by, (layer, "pre"), stack=stack)
    rho = norm_scale(seen.stream.double(), weights.norm)
    parts = rows.values.double() / rho
    pattern = factors.pattern_affine(query - key if factors.needs_offset else None, length=len(seen.stream))
    q = _sides(parts[:, query]) @ pattern.left.double()
    k = _sides(parts[:, key]) @ pattern.right.double().mT
    frozen = _frozen(weights, seen.reads, head, query, key)
    values = weights.scale * (q @ k.mT) / frozen
    bias = position_bias(
        weights.position_bias, torch.arange(len(seen.reads)), torch.arange(len(seen.source)), weights.scale
    )
    added = 0.0 if bias is None else float(bias[head, query, key])
    total = _own_score(trace, layer, head, query, key, weights, stack)
    found = float(values.sum()) + added
    return ScoreLedger(
        trace=trace,
        label=factors.label,
        query=query,
        key=key,
        components=(*rows.components, "head_bias"),
        values=values,
        position_bias=added,
        total=total,
        error=abs(found - total) / max(abs(total), float(values.abs().max()), 1e-30),
    )


def _sides(rows: Float[Tensor, "component d_model"]) -> Float[Tensor, "component_plus_1 d_model_plus_1"]:
    """Rows without the affine coordinate, then the affine coordinate alone."""
    plain = torch.cat([rows, torch.zeros_like(rows[:, :1])], dim=-1)
    alone = homogeneous(torch.zeros_like(rows[:1]))
    return torch.cat([plain, alone])


def _frozen(weights: AttentionWeights, reads: Tensor, head: int, query: int, key: int) -> float:
    """The query and key norms' scales at the two positions."""
    group = int(weights.kv_head[head])
    q = head_scale(project(reads, weights.W_Q, weights.b_Q), weights.q_norm)[head, query]
    k = head_scale(project(reads, weights.W_K, weights.b_K), weights.k_norm)[group, key]
    return float(q * k)


def _own_score(
    trace: Trace, layer: int, head: int, query: int, key: int, weights: AttentionWeights, stack: Stack
) -> float:
    score = trace.layer_scores(layer, stack)[head, query, key].double()
    return float(score if weights.softcap is None else weights.softcap * torch.atanh(score / weights.softcap))


def _checked(length: int, weights: AttentionWeights, query: int, key: int) -> tuple[int, int]:
    for name, position in (("query", query), ("key", key)):
        if not -length <= position < length:
            raise UsageError(f"{name} position {position} does not exist: the prompt has positions 0 to {length - 1}")
    query, key = query % length, key % length
    if not visible(torch.tensor([query]), torch.tensor([key]), weights.causal, weights.window).all():
        raise UsageError(f"position {query} cannot look at position {key}: the pair is masked")
    return query, key
