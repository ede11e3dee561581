"""Least squares over vector fields with one scalar weight each, from sums that sequences add up to.

Predictors and target are fields `[pos, field, d_model]`, the target last. Of every sequence only
`G = sum_t f f^T` (contracted over `d_model`), `S = sum_t f` and the count are kept, so nothing grows with
the text. A free mean vector is always part of the fit: with the training mean `mu`,
`Gc = G - mu S^T - S mu^T + n mu mu^T`, and test errors are taken with that `mu`. Two metrics come of one
pass: `raw`, and `tw`, in which every field of a token is divided by the norm of its target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

METRICS = ("raw", "tw")


@dataclass(frozen=True)
class Moments:
    """Sums over tokens, in float64; the target is the last field."""

    gram: Float[Tensor, "field field"]
    total: Float[Tensor, "field d_model"]
    count: int

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.gram + other.gram, self.total + other.total, self.count + other.count)

    def centred(self, mean: Float[Tensor, "field d_model"]) -> Float[Tensor, "field field"]:
        cross = mean @ self.total.mT
        return self.gram - cross - cross.mT + self.count * mean @ mean.mT


@dataclass(frozen=True)
class ScalarFit:
    """Weights of the predictors, and the mean of every field, both of the training text."""

    weights: Float[Tensor, "_predictor"]
    mean: Float[Tensor, "field d_model"]

    def errors(self, test: Moments) -> tuple[float, float]:
        """Squared error of the fit, and of the mean alone, on other sequences."""
        gram = test.centred(self.mean)
        inner, cross, own = gram[:-1, :-1], gram[:-1, -1], gram[-1, -1]
        return float(own - 2 * self.weights @ cross + self.weights @ inner @ self.weights), float(own)


def token_weight(target: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos"]:
    """`1 / |y_t|`; a token whose target is zero weighs nothing."""
    size = target.norm(dim=-1)
    return torch.where(size > 0, 1 / size.clamp(min=torch.finfo(size.dtype).tiny), torch.zeros_like(size))


def moments(fields: Float[Tensor, "pos field d_model"]) -> tuple[Moments, Moments]:
    """Raw and token-weighted sums of one sequence."""
    weight = token_weight(fields[:, -1])
    tokens = (fields @ fields.mT).double()
    sides = torch.stack([torch.ones_like(weight), weight])
    totals = (sides @ fields.flatten(1)).double().unflatten(1, fields.shape[1:])
    count = len(fields)
    squared = weight.double().square()
    return (
        Moments(tokens.sum(0), totals[0], count),
        Moments((tokens * squared[:, None, None]).sum(0), totals[1], count),
    )


def fit(train: Moments) -> ScalarFit:
    """Least squares; predictors that coincide share their weight (minimum norm)."""
    mean = train.total / train.count
    gram = train.centred(mean)
    inner, cross = gram[:-1, :-1], gram[:-1, -1]
    size = inner.diagonal().clamp(min=0).sqrt()
    scale = torch.where(size > 0, 1 / size.clamp(min=1e-300), torch.zeros_like(size))
    solved = torch.linalg.pinv(inner * scale[:, None] * scale, rtol=1e-10, hermitian=True) @ (cross * scale)
    return ScalarFit(solved * scale, mean)
