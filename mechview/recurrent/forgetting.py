"""The linear forget matrix of a block: which directions of the normalised stream it takes away.

`Delta = xh M + rest`, Delta being what a block adds and xh the stream before it divided by its length
(`x / rms(x)`, centred first in LayerNorm models); `Phi = -M`. Directions with a positive eigenvalue of
`sym(Phi)` are forgotten, those with a negative one amplified. Least squares, in closed form, tokens
weighted by `1 / |Delta|` so that no few of them decide, everything centred; the ridge is chosen on a quarter of
the prompts and the share explained, R^2, is of that held-out quarter (SPIN.md, C.2 and D.2). The symmetric
fit solves `C M + M C = D + D^T` in the eigenbasis of `C = X^T X + lambda`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

RIDGES = tuple(10.0**power for power in range(-4, 3))


@dataclass(frozen=True)
class ForgetMatrix:
    """`forgotten` is the share of sym(Phi)'s squared eigenvalues that are positive; NaN where it is undetermined.

    `symmetric` is `|sym M|^2 / |M|^2`; a matrix without structure has 1/2 of both.
    """

    layer: int
    r2: float
    r2_symmetric: float
    symmetric: float
    forgotten: float
    eigenvalues: Float[Tensor, "n"]
    ridge: float


def forget_matrix(
    before: Float[Tensor, "token d_model"], added: Float[Tensor, "token d_model"], layer: int, layer_norm: bool = False
) -> ForgetMatrix:
    """The fit of one block on tokens of all prompts, the last quarter held out."""
    x = before - before.mean(-1, keepdim=True) if layer_norm else before
    x = x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-30)
    cut = max(1, len(x) * 3 // 4)
    mean_x, mean_y = x[:cut].mean(0), added[:cut].mean(0)
    weight = 1.0 / (added - mean_y).norm(dim=-1, keepdim=True).clamp(min=1e-30)
    X, Y = (x - mean_x) * weight, (added - mean_y) * weight
    train, test = (X[:cut], Y[:cut]), (X[cut:], Y[cut:])
    C, D = train[0].mT @ train[0], train[0].mT @ train[1]
    values, basis = torch.linalg.eigh(C)
    turned = basis.mT @ D @ basis
    scale = float(values.mean())
    general = [_fit(turned, basis, values, ridge * scale) for ridge in RIDGES]
    scores = [explained(M, *test) for M in general]
    best = max(range(len(RIDGES)), key=lambda n: scores[n])
    M = general[best]
    S = _symmetric(turned, basis, values, RIDGES[best] * scale)
    eigenvalues = torch.linalg.eigvalsh(-(M + M.mT) / 2)
    mass = float(eigenvalues.square().sum())
    return ForgetMatrix(
        layer=layer,
        r2=scores[best],
        r2_symmetric=explained(S, *test),
        symmetric=float(((M + M.mT) / 2).square().sum() / M.square().sum()) if mass > 0 else math.nan,
        forgotten=float(eigenvalues.clamp(min=0).square().sum()) / mass if mass > 0 else math.nan,
        eigenvalues=eigenvalues.flip(0),
        ridge=RIDGES[best],
    )


def explained(M: Tensor, X: Float[Tensor, "token d_model"], Y: Float[Tensor, "token d_model"]) -> float:
    """Share of the held-out sum of squares; below zero where the fit is worse than the mean."""
    whole = float(Y.square().sum())
    return 1.0 - float((Y - X @ M).square().sum()) / whole if whole > 0 else math.nan


def _fit(turned: Tensor, basis: Tensor, values: Tensor, ridge: float) -> Tensor:
    return basis @ (turned / (values + ridge)[:, None]) @ basis.mT


def _symmetric(turned: Tensor, basis: Tensor, values: Tensor, ridge: float) -> Tensor:
    return basis @ ((turned + turned.mT) / (values[:, None] + values[None] + 2 * ridge)) @ basis.mT
