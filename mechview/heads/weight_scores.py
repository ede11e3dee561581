"""Scores of heads from weights alone, as rows of the `heads` table, and the random heads they are held against.

A random head has Gaussian matrices in place of the trained ones, behind the same norms: what the score is when
nothing was learned but the gains. Definitions and sources stand in `notes_weights`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mechview.factors import HeadFactors, factor_head
from mechview.models.reader import check_layer
from mechview.models.weights import AttentionWeights, HasWeights, ModelWeights, Stack
from mechview.results import Result


@dataclass(frozen=True)
class WeightScore:
    """One measurement of one head beside its null, of `n` draws."""

    label: str
    layer: int
    head: int
    kv_head: int
    stack: Stack
    offset: int | None
    metric: str
    value: float
    null_mean: float
    null_sd: float
    n: int

    @property
    def z(self) -> float:
        return (self.value - self.null_mean) / self.null_sd if self.null_sd > 0 else float("nan")


@dataclass(frozen=True)
class WeightScores(Result):
    """Measurements of many heads; `about` says what decided them, in words."""

    rows: tuple[WeightScore, ...]
    about: str
    model: str = "arrays"
    revision: str | None = None

    def of(self, label: str, metric: str) -> WeightScore:
        """The row of one head and metric."""
        return next(row for row in self.rows if row.label == label and row.metric == metric)


def score_row(
    factors: HeadFactors, metric: str, value: float, null: Tensor, offset: int | None = None, n: int | None = None
) -> WeightScore:
    """A row from a value and its null's draws (mean and standard deviation where `n` counts other draws)."""
    mean, sd = (null.double().mean(), null.double().std()) if n is None else null.double()
    return WeightScore(
        factors.label, factors.layer, factors.head, factors.kv_head, factors.stack, offset, metric, value,
        float(mean), float(sd), len(null) if n is None else n,
    )  # fmt: skip


def head_layers(
    weights: ModelWeights, layers: Sequence[int] | None, stack: Stack | None
) -> Iterator[tuple[AttentionWeights, bool]]:
    """Attention of the layers asked for (all unless given), one stack, and whether the model has several stacks."""
    place = check_layer(weights.shape, 0, stack)
    for layer in range(weights.shape.layers(place)) if layers is None else layers:
        yield weights.attention(layer, check_layer(weights.shape, layer, stack)), len(weights.shape.stacks) > 1


def head_factors_of(attention: AttentionWeights, fold: bool, several: bool) -> list[HeadFactors]:
    return [factor_head(attention, head, fold, several) for head in range(len(attention.W_Q))]


def random_heads(attention: AttentionWeights, draws: int, fold: bool, generator: torch.Generator) -> list[HeadFactors]:
    """Heads of Gaussian matrices behind the layer's own norms, one a draw, without biases."""

    def drawn(W: Tensor) -> Tensor:
        return torch.randn(draws, *W.shape[1:], generator=generator, dtype=torch.float64).to(W.device)

    random = replace(
        attention, W_Q=drawn(attention.W_Q), W_K=drawn(attention.W_K), W_V=drawn(attention.W_V),
        W_O=drawn(attention.W_O), b_Q=None, b_K=None, b_V=None, b_O=None, kv_head=torch.arange(draws),
        q_norm=None if attention.q_norm is None else replace(attention.q_norm, gain=attention.q_norm.gain[:1].expand(draws, -1)),
        k_norm=None if attention.k_norm is None else replace(attention.k_norm, gain=attention.k_norm.gain[:1].expand(draws, -1)),
    )  # fmt: skip
    return [factor_head(random, head, fold) for head in range(draws)]


def named(model: ModelWeights | HasWeights) -> dict[str, Any]:
    """Name and revision of a model, for a result to carry."""
    source = getattr(model, "source", None)
    return {"model": getattr(source, "name", "arrays"), "revision": getattr(source, "revision", None)}
