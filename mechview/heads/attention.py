"""What heads attend to on a prompt, as sparse rows whose dropped mass is stated.

Weights are the model's own patterns. `value_norm` is the size of what each token would send,
`||[x_j, 1] message||` before any post-norm: attention to a token that sends nothing carries nothing (Kobayashi et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mechview.factors import factor_head, head_label, homogeneous
from mechview.heads.labels import HeadName, placed_heads
from mechview.models.trace import Trace, as_trace
from mechview.models.weights import Stack
from mechview.reprs import short_repr
from mechview.results import Result


@dataclass(frozen=True)
class HeadAttention:
    """One head on one prompt. Masked scores are -inf; `scores_from` says where they come from."""

    __repr__ = short_repr

    label: str
    layer: int
    head: int
    kv_head: int
    stack: Stack
    pattern: Float[Tensor, "q_pos k_pos"]
    scores: Float[Tensor, "q_pos k_pos"]
    value_norm: Float[Tensor, "k_pos"]
    write_norm: Float[Tensor, "q_pos"]
    scores_from: str


@dataclass(frozen=True)
class Attention(Result):
    """Attention of some heads on one prompt. Rows below `threshold` are dropped and their mass counted."""

    trace: Trace
    heads: tuple[HeadAttention, ...]
    threshold: float = 1e-3


def attend(
    trace: Trace | Any,
    *,
    heads: Sequence[str | HeadName | tuple[int, int]] | None = None,
    stack: Stack | None = None,
    threshold: float = 1e-3,
) -> Attention:
    """Attention of the given heads, as `"L5H1"`, `"E.L5H1"` or `(5, 1)` (all unless given), on a traced prompt.

    A pair means the heads of that number in every stack, or in `stack`.

    Raises:
        HeadError: a layer or head that the model does not have.
    """
    shape = as_trace(trace).weights.shape
    stacks = [stack] if stack else list(shape.stacks)
    kept = None if heads is None else placed_heads(heads, shape, stack)
    found = []
    for name in stacks:
        for layer in range(shape.layers(name)):
            wanted = [h for h in range(shape.n_heads) if kept is None or (name, layer, h) in kept]
            found += layer_attention(trace, layer, name, wanted) if wanted else []
    return Attention(trace=trace, heads=tuple(found), threshold=threshold)


def layer_attention(trace: Trace, layer: int, stack: Stack, heads: Sequence[int]) -> list[HeadAttention]:
    seen, weights = trace.attention(layer, stack), trace.weights.attention(layer, stack)
    scores = trace.layer_scores(layer, stack)
    source = homogeneous(seen.source.double())
    found = []
    writes = trace.head_writes(layer, stack)
    for head in heads:
        factors = factor_head(weights, head, fold=False)
        message = factors.message_affine
        sent = (source @ message.left.double()) @ message.right.double()[:, :-1]
        found.append(
            HeadAttention(
                head_label(layer, head, stack, len(trace.weights.shape.stacks) > 1), layer, head, factors.kv_head,
                stack, seen.pattern[head], scores[head], sent.norm(dim=-1), writes[head].norm(dim=-1), trace.scores_from,
            )
        )  # fmt: skip
    return found
