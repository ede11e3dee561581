"""Normalisation as three separate things: centring, the scale rho, and the affine map after it.

LayerNorm is `(x - mean) / rho * gain + bias` with `rho = sqrt(var + eps)`; RMSNorm has no centring
and `rho = sqrt(mean(x^2) + eps)`. *Folding* moves gain, bias and centring into the matrices that
read the stream; rho depends on the data and is never folded.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.models.weights import HeadNorm, NormWeights


def centred(x: Float[Tensor, "*batch d"], norm: NormWeights | HeadNorm) -> Float[Tensor, "*batch d"]:
    return x - x.mean(-1, keepdim=True) if norm.kind == "layer" else x


def norm_scale(x: Float[Tensor, "*batch d"], norm: NormWeights | HeadNorm) -> Float[Tensor, "*batch 1"]:
    """rho at each position; ones for the identity."""
    if norm.kind == "none":
        return torch.ones_like(x[..., :1])
    return (centred(x, norm).square().mean(-1, keepdim=True) + norm.eps).sqrt()


def apply_norm(x: Float[Tensor, "*batch d"], norm: NormWeights) -> Float[Tensor, "*batch d"]:
    """The whole norm, in the dtype of `x`."""
    y = centred(x, norm) / norm_scale(x, norm)
    if norm.gain is not None:
        y = y * norm.gain.to(y)
    return y if norm.bias is None else y + norm.bias.to(y)


def fold_read(
    W: Float[Tensor, "head d_model d_head"], norm: NormWeights
) -> tuple[Float[Tensor, "head d_model d_head"], Float[Tensor, "head d_head"] | None]:
    """`(W', b')` with `norm(x) W = (x / rho) W' + b'`: gain and centring go into W, the norm bias into b."""
    folded = W if norm.gain is None else norm.gain.to(W)[:, None] * W
    if norm.kind == "layer":
        folded = folded - folded.mean(-2, keepdim=True)
    return folded, None if norm.bias is None else norm.bias.to(W) @ W


def fold_write(W: Float[Tensor, "*any d_model"], norm: NormWeights) -> Float[Tensor, "*any d_model"]:
    """The gain of the norm after a write; its scale stays out."""
    return W if norm.gain is None else W * norm.gain.to(W)
