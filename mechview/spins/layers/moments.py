"""Least squares over vector fields with one scalar weight each, from sums that sequences add up to.

Predictors are fields `[pos, field, d_model]`; several targets (draws of a null) share them. Of every
sequence only `G = sum_t f f^T` (contracted over `d_model`), `S = sum_t f` and the count are kept, target
last, so nothing grows with the text. A free mean vector is always part of the fit: with the training mean
`mu`, `Gc = G - mu S^T - S mu^T + n mu mu^T`, and test errors are taken with that `mu`. Two metrics come of
one pass: `raw`, and `tw`, in which every field of a token is divided by the norm of its target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

METRICS = ("raw", "tw")


@dataclass(frozen=True)
class Moments:
    """Sums over tokens for each target, in float64; the target is the last field."""

    gram: Float[Tensor, "draw field field"]
    total: Float[Tensor, "draw field d_model"]
    count: int

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.gram + other.gram, self.total + other.total, self.count + other.count)

    def centred(self, mean: Float[Tensor, "draw field d_model"]) -> Float[Tensor, "draw field field"]:
        cross = mean @ self.total.mT
        return self.gram - cross - cross.mT + self.count * mean @ mean.mT


@dataclass(frozen=True)
class ScalarFit:
    """Weights of the predictors, and the mean of every field, both of the training text."""

    weights: Float[Tensor, "draw _predictor"]
    mean: Float[Tensor, "draw field d_model"]

    def errors(self, test: Moments) -> tuple[Float[Tensor, "draw"], Float[Tensor, "draw"]]:
        """Squared error of the fit, and of the mean alone, on other sequences."""
        gram = test.centred(self.mean)
        inner, cross, own = gram[:, :-1, :-1], gram[:, :-1, -1], gram[:, -1, -1]
        fitted = einsum(self.weights, inner, self.weights, "draw a, draw a b, draw b -> draw")
        return own - 2 * (self.weights * cross).sum(-1) + fitted, own


def token_weight(target: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch"]:
    """`1 / |y_t|`; a token whose target is zero weighs nothing."""
    size = target.norm(dim=-1)
    return torch.where(size > 0, 1 / size.clamp(min=torch.finfo(size.dtype).tiny), torch.zeros_like(size))


def moments(
    predictors: Float[Tensor, "pos _predictor d_model"], targets: Float[Tensor, "pos draw d_model"]
) -> tuple[Moments, Moments]:
    """Raw and token-weighted sums of one sequence, for every target."""
    weight = token_weight(targets)
    inner = (predictors @ predictors.mT).double()
    cross = (predictors @ targets.mT).double()
    own = targets.square().sum(-1).double()
    weights = (torch.ones_like(weight), weight)
    fields = torch.matmul(torch.cat(weights, 1).mT, predictors.transpose(0, 1)).transpose(0, 1)
    laid = zip(weights, fields.split(targets.shape[1]), strict=True)
    return tuple(_summed(targets, each, inner, cross, own, total) for each, total in laid)  # type: ignore[return-value]


def own_moments(
    predictors: Float[Tensor, "pos draw d_model"], targets: Float[Tensor, "pos draw d_model"]
) -> tuple[Moments, Moments]:
    """The same where each target has one predictor, its own."""
    both = torch.stack([predictors, targets], 2)
    inner = torch.stack([(both * field[:, :, None]).sum(-1) for field in (predictors, targets)], 2).double()
    found = []
    for weight in (torch.ones_like(both[..., 0, 0]), token_weight(targets)):
        gram = einsum(weight.double().square(), inner, "pos draw, pos draw a b -> draw a b")
        total = einsum(weight, both, "pos draw, pos draw a d_model -> draw a d_model")
        found.append(Moments(gram, total.double(), len(targets)))
    return tuple(found)  # type: ignore[return-value]


def _summed(y: Tensor, weight: Tensor, inner: Tensor, cross: Tensor, own: Tensor, fields: Tensor) -> Moments:
    squared, count = weight.double().square(), inner.shape[-1]
    gram = torch.empty(y.shape[1], count + 1, count + 1, dtype=torch.float64, device=y.device)
    gram[:, :-1, :-1] = (squared.mT @ inner.flatten(1)).unflatten(1, (count, count))
    gram[:, :-1, -1] = gram[:, -1, :-1] = (squared[:, None] * cross).sum(0).mT
    gram[:, -1, -1] = (squared * own).sum(0)
    total = torch.cat([fields, einsum(weight, y, "pos draw, pos draw d -> draw d")[:, None]], dim=1)
    return Moments(gram, total.double(), len(y))


def fit(train: Moments) -> ScalarFit:
    """Least squares; predictors that coincide share their weight (minimum norm)."""
    mean = train.total / train.count
    gram = train.centred(mean)
    inner, cross = gram[:, :-1, :-1], gram[:, :-1, -1]
    size = inner.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    scale = torch.where(size > 0, 1 / size.clamp(min=1e-300), torch.zeros_like(size))
    inverse = torch.linalg.pinv(inner * scale[:, :, None] * scale[:, None], rtol=1e-10, hermitian=True)
    return ScalarFit((inverse @ (cross * scale)[..., None])[..., 0] * scale, mean)
