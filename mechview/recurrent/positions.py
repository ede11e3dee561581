"""The pattern as an input gate, over positions: split of writes, coherence of emission, mass against lag.

What a head writes from token j to token i is `A[i, j] m_j`, `m_j = (n_j W_V + b_V) W_O`: the pattern stands where
the input gate stands (`i o g`), the message where the candidate stands. Per head:

    split       how the size of writes varies: by A[i, j] or by |m_j|           (as of an LSTM's i and |g|)
    coherence   |sum_j A m_j| / sum_j A |m_j|, in [0, 1]: how much of what was gathered gets out
    lag mass    mean of A[i, i - lag] over queries, key 0 (the sink) apart; the lag within which half of it lies
                is the effective half-life of this memory, whose store (the key/value cache) has f = 1

The null of other tokens shuffles each row of A among its keys after the first: every row keeps its
concentration and its sink, and loses which token it looks at. Messages are before any post-norm, whose scale
belongs to the reader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from mechview.models.trace import Trace
from mechview.recurrent.retention import Split, variance_split
from mechview.residual.rows import values_of

DRAWS = 20


@dataclass(frozen=True)
class HeadGates:
    """One layer's heads on one prompt; `shuffled_*` have a leading axis of draws of the null."""

    layer: int
    coherence: Float[Tensor, "head q_pos"]
    gathered: Float[Tensor, "head q_pos"]
    message: Float[Tensor, "head k_pos"]
    pattern: Float[Tensor, "head q_pos k_pos"]
    shuffled: Int[Tensor, "_draw q_pos k_pos"]  # row i of a draw says which key stands at each place
    products: Float[Tensor, "head k_pos k_pos"]


def head_gates(trace: Trace, layer: int, orders: Tensor) -> HeadGates:
    """Patterns, sizes of messages and coherence of one layer, in float64."""
    seen, weights = trace.attention(layer), trace.weights.attention(layer, trace.stack)
    values, W_O = values_of(seen.source.double(), weights), weights.W_O.double()
    metric = einsum(W_O, W_O, "head d_head d_model, head d_in d_model -> head d_head d_in")
    half = einsum(values, metric, "head k_pos d_head, head d_head d_in -> head k_pos d_in")
    products = einsum(half, values, "head k_pos d, head other d -> head k_pos other")
    A = seen.pattern.double()
    size = products.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return HeadGates(
        layer, coherence_of(A, products), einsum(A, size, "head q k, head k -> head q"), size, A, orders, products
    )


def coherence_of(A: Float[Tensor, "*draw head q_pos k_pos"], products: Float[Tensor, "head k_pos k_pos"]) -> Tensor:
    """`|sum_j A m_j| / sum_j A |m_j|`; NaN where nothing is gathered."""
    out = einsum(A @ products, A, "... q k, ... q k -> ... q").clamp(min=0).sqrt()
    size = products.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return out / einsum(A, size, "... head q k, head k -> ... head q")


def row_orders(length: int, causal: bool, draws: int, generator: torch.Generator) -> Tensor:
    """For each draw and query an order of the keys that leaves key 0 and keys it cannot see where they are."""
    place = torch.arange(length).expand(draws, length, -1)
    free = (place > 0) & ((place <= torch.arange(length)[:, None]) if causal else torch.ones(length, length).bool())
    noise = torch.rand(draws, length, length, generator=generator)
    order = torch.where(free, 1.0 + noise, torch.where(place == 0, 0.0, 3.0 + place)).argsort(-1)
    return order


def shuffled(A: Float[Tensor, "head q_pos k_pos"], order: Tensor) -> Float[Tensor, "head q_pos k_pos"]:
    return A.gather(-1, order.expand_as(A))


def lag_mass(A: Float[Tensor, "head q_pos k_pos"], skip_first: bool = True) -> Float[Tensor, "head _lag"]:
    """Share of attention at each distance |q - k|, over all queries; key 0 left out and the rest made to sum to 1."""
    length = A.shape[-1]
    A = A[:, :length]
    distance = (torch.arange(A.shape[1])[:, None] - torch.arange(length)[None]).abs()
    A = A.clone()
    if skip_first and length > 1:
        A[:, :, 0] = 0.0
    found = A.new_zeros(len(A), length)
    found.scatter_add_(1, distance.flatten().expand(len(A), -1), A.flatten(1))
    return found / found.sum(1, keepdim=True)


def half_lag(mass: Float[Tensor, "*head _lag"]) -> Float[Tensor, "*head"]:
    """Distance within which half of the mass lies, linear inside the step that crosses it; NaN without mass."""
    total = mass.cumsum(-1)
    crossed = (total >= 0.5).double().argmax(-1, keepdim=True)
    before = torch.where(crossed > 0, total.gather(-1, (crossed - 1).clamp(min=0)), torch.zeros_like(total[..., :1]))
    inside = (0.5 - before) / mass.gather(-1, crossed)
    found = (crossed + inside)[..., 0]
    return torch.where(torch.isfinite(mass.sum(-1)), found, math.nan)


def pair_split(A: Float[Tensor, "head q_pos k_pos"], size: Float[Tensor, "head k_pos"], causal: bool) -> Split:
    """How the size of what is written from token to token varies inside each head, over queries after the first."""
    length = A.shape[-1]
    seen = torch.ones(A.shape[1], length, dtype=torch.bool).tril() if causal else torch.ones(A.shape[1], length).bool()
    seen[0] = False
    content = size[:, None].expand_as(A)
    return variance_split(A[:, seen], content[:, seen])


def emission_split(heads: Sequence[HeadGates]) -> Split:
    """How the size of what heads emit varies: by what was gathered, or by how well messages agree (the `content`)."""
    gathered = torch.cat([one.gathered[:, 1:] for one in heads])
    return variance_split(gathered, torch.cat([one.coherence[:, 1:] for one in heads]))


def correlation(split: Split) -> float:
    """Correlation of log gate and log content, from the shares of their variances."""
    size = 2 * math.sqrt(split.gate * split.content)
    return split.covariance / size if size > 0 else math.nan
