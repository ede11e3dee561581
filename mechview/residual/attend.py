"""Why a head looks there: its score split over who wrote the query side and who wrote the key side.

`score(q, k) = scale * sum_ab [c_a(q) / rho_q, 1] P(q - k) [c_b(k) / rho_k, 1]^T / (norm scales) + bias(q, k)`
with the rows `c` of the ledger before the layer. The affine coordinate carries the biases as a row
`head_bias`. Rows sum to the score before a soft-cap; norms are frozen at their own scale. In cross-attention the
query side is written in the decoder, up to the same block's own attention, the key side in the encoder, whose rows
come through its frozen final norm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import check_head, factor_head, homogeneous
from mechview.models.capture import AttentionCapture
from mechview.models.norms import norm_scale
from mechview.models.positions import position_bias, visible
from mechview.models.scores import head_scale, project
from mechview.models.trace import Trace, as_trace
from mechview.models.weights import AttentionWeights, Stack
from mechview.residual.grains import Grain, Split, split_of
from mechview.residual.ledger import gathered, steps_before, steps_to
from mechview.residual.rows import transport
from mechview.results import Result, check_count


@dataclass(frozen=True)
class ScoreLedger(Result):
    """`values[query_side, key_side]`, plus `position_bias`, sums to `total`, the model's own score.

    `components` name the query side, `key_components` the key side: the same rows but for cross-attention.
    """

    trace: Trace = field(repr=False)
    label: str
    query: int
    key: int
    components: tuple[str, ...]
    key_components: tuple[str, ...]
    values: Float[Tensor, "component key_component"]
    position_bias: float
    total: float
    error: float
    by: Grain = "head"
    neurons: int | None = None

    def top(self, k: int | Any = 10) -> list[tuple[str, str, float]]:
        """The k largest pairs (query side, key side, value); then the remainder as one row."""
        check_count(k)
        order = self.values.abs().flatten().argsort(descending=True)[:k].tolist()
        pairs = [self._pair(*divmod(i, len(self.key_components))) for i in order]
        rest = float(self.values.sum()) - sum(value for *_, value in pairs)
        return [*pairs, ("remainder", "remainder", rest)]

    def _pair(self, query: int, key: int) -> tuple[str, str, float]:
        return self.components[query], self.key_components[key], float(self.values[query, key])


@dataclass(frozen=True)
class Side:
    """Who wrote what one side of the pair reads, its norm divided out."""

    names: tuple[str, ...]
    values: Float[Tensor, "component d_model"]


def score_ledger(
    trace: Trace | Any,
    *,
    layer: int,
    head: int,
    query: int = -1,
    key: int = 0,
    by: Grain = "head",
    neurons: int | Any = None,
    stack: Stack | None = None,
) -> ScoreLedger:
    """The score of one head at one (query, key) pair, split over pairs of components.

    Args:
        neurons: of each MLP, how many have rows of their own (`by="neuron"`; 10 unless given), largest writes first.
        stack: of an encoder-decoder model, `encoder` for a head of the encoder, `cross` for one of cross-attention,
            whose key positions are the encoder's.

    Raises:
        UsageError: positions outside the prompt, a masked pair, an unknown grain.
    """
    trace = as_trace(trace)
    split = split_of(by, neurons)
    stack = check_head(trace.weights.shape, layer, head, stack or trace.stack)
    weights, seen = trace.weights.attention(layer, stack), trace.attention(layer, stack)
    query, key = _checked(seen, weights, query, key)
    asks, asked = _query_side(trace, weights, split, query), _key_side(trace, weights, split, key)
    factors = factor_head(weights, head, True, len(trace.weights.shape.stacks) > 1)
    pattern = factors.pattern_affine(query - key if factors.needs_offset else None, length=len(seen.source))
    q = _sides(asks.values) @ pattern.left.double()
    k = _sides(asked.values) @ pattern.right.double().mT
    values = weights.scale * (q @ k.mT) / _frozen(weights, seen, head, query, key)
    added = _added(weights, seen, head, query, key)
    total = _own_score(trace, layer, head, query, key, weights, stack)
    return ScoreLedger(
        trace=trace,
        label=factors.label,
        query=query,
        key=key,
        components=(*asks.names, "head_bias"),
        key_components=(*asked.names, "head_bias"),
        values=values,
        position_bias=added,
        total=total,
        error=abs(float(values.sum()) + added - total) / max(abs(total), float(values.abs().max()), 1e-30),
        by=by,
        neurons=split.neurons,
    )


def _query_side(trace: Trace, weights: AttentionWeights, split: Split, query: int) -> Side:
    """What was written to the stream that the queries read, over the scale of the norm before them."""
    layer, stack = weights.layer, weights.stack
    rows = gathered(trace, split, layer + 1, _home(stack), steps_before(trace, split, layer, stack))
    rho = norm_scale(trace.attention(layer, stack).stream[query].double(), weights.norm)
    return Side(tuple(rows.names), rows.values[:, query].double() / rho)


def _key_side(trace: Trace, weights: AttentionWeights, split: Split, key: int) -> Side:
    """The same of the keys; of cross-attention, the encoder's rows behind its final norm."""
    if weights.stack != "cross":
        return _query_side(trace, weights, split, key)
    last, norm = trace.weights.shape.n_encoder_layers - 1, trace.weights.ends().encoder_final_norm
    written = steps_to(trace, split, last, "post", "encoder")
    normed = transport(norm, trace.stream(last, "post", "encoder"), "E.final_norm_bias")
    rows = gathered(trace, split, last + 1, "encoder", chain(written, normed))
    return Side(tuple(rows.names), rows.values[:, key].double())


def _sides(rows: Float[Tensor, "component d_model"]) -> Float[Tensor, "component_plus_1 d_model_plus_1"]:
    """Rows without the affine coordinate, then the affine coordinate alone."""
    plain = torch.cat([rows, torch.zeros_like(rows[:, :1])], dim=-1)
    alone = homogeneous(torch.zeros_like(rows[:1]))
    return torch.cat([plain, alone])


def _frozen(weights: AttentionWeights, seen: AttentionCapture, head: int, query: int, key: int) -> float:
    """The query and key norms' scales at the two positions."""
    group = int(weights.kv_head[head])
    q = head_scale(project(seen.reads, weights.W_Q, weights.b_Q), weights.q_norm)[head, query]
    k = head_scale(project(seen.source, weights.W_K, weights.b_K), weights.k_norm)[group, key]
    return float(q * k)


def _added(weights: AttentionWeights, seen: AttentionCapture, head: int, query: int, key: int) -> float:
    """The position's own part of the score, 0 where the family has none."""
    at_q, at_k = torch.arange(len(seen.reads)), torch.arange(len(seen.source))
    bias = position_bias(weights.position_bias, at_q, at_k, weights.scale)
    return 0.0 if bias is None else float(bias[head, query, key])


def _home(stack: Stack) -> Stack:
    """The stack whose stream the queries read."""
    return "decoder" if stack == "cross" else stack


def _own_score(
    trace: Trace, layer: int, head: int, query: int, key: int, weights: AttentionWeights, stack: Stack
) -> float:
    score = trace.layer_scores(layer, stack)[head, query, key].double()
    return float(score if weights.softcap is None else weights.softcap * torch.atanh(score / weights.softcap))


def _checked(seen: AttentionCapture, weights: AttentionWeights, query: int, key: int) -> tuple[int, int]:
    lengths = len(seen.reads), len(seen.source)
    for name, position, length in zip(("query", "key"), (query, key), lengths, strict=True):
        if isinstance(position, bool) or not isinstance(position, int) or not -length <= position < length:
            raise UsageError(f"{name} position {position} does not exist: the prompt has positions 0 to {length - 1}")
    query, key = query % lengths[0], key % lengths[1]
    if not visible(torch.tensor([query]), torch.tensor([key]), weights.causal, weights.window).all():
        raise UsageError(f"position {query} cannot look at position {key}: the pair is masked")
    return query, key
