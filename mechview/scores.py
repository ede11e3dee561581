"""Attention rebuilt from the factors: scores and head writes of a layer, in float64.

Content at each offset is `[x, 1] pattern_affine(offset) [y, 1]^T`, divided by the frozen scales of a
query/key norm; what follows (scale, bias, cap, mask) is the layer's own. Parity is measured with these.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.factors import HeadFactors, homogeneous
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
    content = torch.stack([_content(f, x, y) for f in factors])
    content = content / head_scale(queries, attention.q_norm)
    first = [attention.kv_head.tolist().index(group) for group in range(len(attention.W_K))]
    scale = head_scale(keys[first], attention.k_norm)[attention.kv_head]
    return finished(content / scale.mT, attention)


def _content(factors: HeadFactors, x: Tensor, y: Tensor) -> Float[Tensor, "q_pos k_pos"]:
    """`x P(i - j) y^T`, one offset after another for a rotary head."""
    if not factors.needs_offset:
        pattern = factors.pattern_affine()
        return (x @ pattern.left.double()) @ (pattern.right.double() @ y.mT)
    offset = torch.arange(len(x), device=x.device)[:, None] - torch.arange(len(y), device=x.device)
    content = torch.zeros_like(offset, dtype=x.dtype)
    for step in offset.unique().tolist():
        pattern = factors.pattern_affine(step, length=len(y))
        i, j = (offset == step).nonzero(as_tuple=True)
        content[i, j] = ((x[i] @ pattern.left.double()) * (y[j] @ pattern.right.double().mT)).sum(-1)
    return content


def writes_of(
    factors: list[HeadFactors],
    pattern: Float[Tensor, "head q_pos k_pos"],
    source: Float[Tensor, "k_pos d_model"],
) -> Float[Tensor, "head q_pos d_model"]:
    """`sum_j A[i, j] * [y_j, 1] message`: what each head writes, before any scale of a post-norm."""
    y = homogeneous(source.double())
    messages = [(y @ f.message_affine.left.double()) @ f.message_affine.right.double() for f in factors]
    return torch.stack([a.double() @ m[:, :-1] for a, m in zip(pattern, messages, strict=True)])
