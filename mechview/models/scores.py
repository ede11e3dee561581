"""Attention scores straight from a layer's weights, by the formula of the design, in float64.

This is the plain way round: rotate queries and keys, multiply, scale, add the position bias, cap, mask.
The factors (`mechview.scores`) reach the same numbers through `pattern(offset)`; the two share only what
follows the content term.
"""

from __future__ import annotations

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechview.models.norms import centred, norm_scale
from mechview.models.positions import position_bias, rotation, visible
from mechview.models.weights import AttentionWeights, HeadNorm, Rotary


def attention_scores(
    attention: AttentionWeights, reads: Float[Tensor, "q_pos d_model"], source: Float[Tensor, "k_pos d_model"]
) -> Float[Tensor, "head q_pos k_pos"]:
    """Scores before softmax, masked ones -inf; `reads` and `source` are what Q and K read, norm applied."""
    q = project(reads, attention.W_Q, attention.b_Q)
    k = project(source, attention.W_K, attention.b_K)
    q, k = normed(q, attention.q_norm), normed(k, attention.k_norm)
    if attention.rotary is not None:
        length = len(source)
        q, k = rotated(q, attention.rotary, length), rotated(k, attention.rotary, length)
    content = einsum(q, k[attention.kv_head], "head q_pos d_head, head k_pos d_head -> head q_pos k_pos")
    return finished(content, attention)


def finished(
    content: Float[Tensor, "head q_pos k_pos"], attention: AttentionWeights
) -> Float[Tensor, "head q_pos k_pos"]:
    """Scale, position bias, cap and mask on the content term."""
    q_pos, k_pos = (torch.arange(n, device=content.device) for n in content.shape[1:])
    bias = position_bias(attention.position_bias, q_pos, k_pos, attention.scale)
    scores = attention.scale * content
    scores = scores if bias is None else scores + bias.to(scores)
    if attention.softcap is not None:
        scores = attention.softcap * torch.tanh(scores / attention.softcap)
    return scores.masked_fill(~visible(q_pos, k_pos, attention.causal, attention.window), -torch.inf)


def pattern_of(
    scores: Float[Tensor, "head q_pos k_pos"], sinks: Float[Tensor, "head"] | None = None
) -> Float[Tensor, "head q_pos k_pos"]:
    """Softmax over keys; a learned sink takes its share, so that rows sum to less than 1."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.to(scores)[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


def project(
    x: Float[Tensor, "pos d_model"], W: Float[Tensor, "_head d_model d_head"], b: Float[Tensor, "_head d_head"] | None
) -> Float[Tensor, "_head pos d_head"]:
    y = einsum(x.double(), W.double(), "pos d_model, head d_model d_head -> head pos d_head")
    return y if b is None else y + b.double()[:, None]


def head_scale(q: Float[Tensor, "_head pos d_head"], norm: HeadNorm | None) -> Float[Tensor, "_head pos 1"]:
    """rho of a query or key norm: per head, or shared by all heads (OLMo-2); ones without a norm."""
    if norm is None:
        return torch.ones_like(q[..., :1])
    if not norm.across_heads:
        return norm_scale(q, norm)
    return norm_scale(q.transpose(0, 1).flatten(1), norm)[None].expand(len(q), -1, -1)


def normed(q: Float[Tensor, "_head pos d_head"], norm: HeadNorm | None) -> Float[Tensor, "_head pos d_head"]:
    if norm is None:
        return q
    return centred(q, norm) / head_scale(q, norm) * norm.gain.to(q)[:, None]


def rotated(q: Float[Tensor, "_head pos d_head"], rotary: Rotary, length: int) -> Float[Tensor, "_head pos d_head"]:
    """Each position's row turned by `R(position)`."""
    turns = [rotation(rotary, position, q.shape[-1], length, root=True).to(q) for position in range(q.shape[1])]
    return einsum(q, torch.stack(turns), "head pos d_in, pos d_in d_out -> head pos d_out")
