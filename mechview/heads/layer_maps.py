"""Pattern and message maps of all heads of a layer as batches: those of `factors`, without a copy for each head.

Norms are folded in float64 for the whole layer at once; weights that no norm touches are taken as they are. Keys and
values are folded and turned once a group, then shown to every query head of it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.factors import HALF, check_offset, head_gain
from mechview.lowrank import LowRank
from mechview.models.norms import fold_read, fold_write
from mechview.models.positions import rotation
from mechview.models.weights import IDENTITY_NORM, AttentionWeights, HeadNorm, NormWeights


def messages(attention: AttentionWeights, fold: bool) -> LowRank:
    """`W_V W_O` of every head."""
    value = _shared(_folded(attention.W_V, _source(attention, fold)), attention)
    return LowRank(value, _output(attention, fold))


def patterns(attention: AttentionWeights, offset: int, fold: bool) -> LowRank:
    """`W_Q D_q R(offset) D_k W_K^T` of every head."""
    query = _gained(_folded(attention.W_Q, attention.norm if fold else IDENTITY_NORM), attention.q_norm)
    key = _shared(_gained(_folded(attention.W_K, _source(attention, fold)), attention.k_norm), attention)
    if attention.rotary is not None:
        check_offset(offset)
        query = query @ rotation(attention.rotary, offset, query.shape[-1]).to(query)
    return LowRank(query, key.mT)


def _source(attention: AttentionWeights, fold: bool) -> NormWeights:
    return attention.norm if fold and attention.stack != "cross" else IDENTITY_NORM


def _folded(W: Float[Tensor, "head d_model d_head"], norm: NormWeights) -> Float[Tensor, "head d_model d_head"]:
    dtype = _dtype(W)
    return W.to(dtype) if norm.kind == "none" else fold_read(W.double(), norm)[0].to(dtype)


def _output(attention: AttentionWeights, fold: bool) -> Float[Tensor, "head d_head d_model"]:
    W, dtype = attention.W_O, _dtype(attention.W_Q)
    if not fold or (attention.post_norm.gain is None and attention.multiplier == 1.0):
        return W.to(dtype)
    return (fold_write(W.double(), attention.post_norm) * attention.multiplier).to(dtype)


def _gained(W: Float[Tensor, "head d_model d_head"], norm: HeadNorm | None) -> Float[Tensor, "head d_model d_head"]:
    return W if norm is None else W @ torch.stack([head_gain(norm, n, W.dtype) for n in range(len(W))])


def _shared(W: Float[Tensor, "kv_head d_model d_head"], attention: AttentionWeights) -> Tensor:
    own = len(W) == len(attention.kv_head) and bool((attention.kv_head == torch.arange(len(W))).all())
    return W if own else W[attention.kv_head]


def _dtype(W: Tensor) -> torch.dtype:
    return torch.float64 if W.dtype in HALF else W.dtype
