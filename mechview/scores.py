"""Attention rebuilt from the factors: scores and head writes of a layer, in float64.

Content at each offset is `[x, 1] pattern_affine(offset) [y, 1]^T`, a head's write `A [y, 1] message_affine`
(without its last column, which is the constant 1); content is divided by the frozen scales of a
query/key norm; what follows (scale, bias, cap, mask) is the layer's own. Parity is measured with these.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.factors import HeadFactors, homogeneous
from mechview.models.positions import rotation
from mechview.models.scores import finished, head_scale
from mechview.models.weights import AttentionWeights


def scores_of(
    factors: list[HeadFactors],
    attention: AttentionWeights,
    reads: Float[Tensor, "q_pos d_model"],
    source: Float[Tensor, "k_pos d_model"],
) -> Float[Tensor, "head q_pos k_pos"]:
    """Scores before softmax, masked ones -inf.

    Args:
        factors: every head of the layer, raw or folded.
        reads: what raw queries read, `norm(stream)`; for folded factors `stream / rho`.
        source: the same for keys (another tensor in cross-attention).
    """
    x, y = homogeneous(reads.double()), homogeneous(source.double())
    queries = torch.stack([x @ f.query.double() for f in factors])
    keys = torch.stack([y @ f.key.double() for f in factors])
    content = content_of(factors, x, y, attention.causal)
    content = content / head_scale(queries, attention.q_norm)
    first = [attention.kv_head.tolist().index(group) for group in range(len(attention.W_K))]
    scale = head_scale(keys[first], attention.k_norm)[attention.kv_head]
    return finished(content / scale.mT, attention)


def content_of(
    factors: list[HeadFactors],
    x: Float[Tensor, "q_pos d_model_plus_1"],
    y: Float[Tensor, "k_pos d_model_plus_1"],
    causal: bool = False,
) -> Float[Tensor, "head q_pos k_pos"]:
    """`x pattern_affine(i - j) y^T` of every head, one offset after another where positions are rotary.

    The sides are multiplied before the rotation of an offset comes between them; `causal` leaves pairs
    that a causal mask hides at 0.
    """
    q = torch.stack([x @ f.query_side.double() for f in factors])
    k = torch.stack([y @ f.key_side.double() for f in factors])
    rotary = factors[0].rotary
    if rotary is None:
        return q @ k.mT
    offset = torch.arange(len(x), device=x.device)[:, None] - torch.arange(len(y), device=x.device)
    content = x.new_zeros(len(factors), len(x), len(y))
    for step in offset.unique().tolist():
        if step >= 0 or not causal:
            i, j = (offset == step).nonzero(as_tuple=True)
            R = rotation(rotary, step, q.shape[-1], len(y)).to(q)
            content[:, i, j] = ((q[:, i] @ R) * k[:, j]).sum(-1)
    return content


def writes_of(
    factors: list[HeadFactors],
    pattern: Float[Tensor, "head q_pos k_pos"],
    source: Float[Tensor, "k_pos d_model"],
) -> Float[Tensor, "head q_pos d_model"]:
    """`sum_j A[i, j] * [y_j, 1] message`: what each head writes, before any scale of a post-norm."""
    y = homogeneous(source.double())
    sent = torch.stack([(y @ f.value.double()) @ f.output.double() for f in factors])
    return pattern.double() @ sent
