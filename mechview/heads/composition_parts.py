"""Composition taken apart: single components of a message, angles between spans, and two messages as one.

Rank-1 composition (Merullo et al. 2024) keeps one component `sigma u v^T` of the sender: the score is `|v^T P2| /
|P2|`, whatever sigma. The null is exact: a random unit vector has mean square `1/d` and variance
`2 (|G|^2/tr(G)^2 - 1/d) / (d (d + 2))`. Near-equal singular values leave single components undetermined: they are
flagged. Principal angles (Bjorck and Golub 1973) are between the span a sender writes and the span a receiver reads.
A virtual head `M1 M2` moves what the first head would send through the second (Elhage et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import check_head, factor_head, head_label
from mechview.heads.composing import null_squares, scores, spans
from mechview.heads.composition import KINDS
from mechview.heads.meetings import components_of, earlier, reader_map, readers_at, writers_at
from mechview.lowrank import LowRank
from mechview.models.reader import check_layer
from mechview.models.weights import HasWeights, ModelWeights, Stack, weights_of
from mechview.results import Result


@dataclass(frozen=True)
class ComponentComposition(Result):
    """`values[src_layer, src_head, rank]`: what one receiver reads of each component of each earlier message.

    NaN where the sender does not come first, and where a message has fewer components. `spread` is the standard
    deviation of the squared score of a random unit vector, whose root mean square is `null`.
    """

    kind: str
    label: str
    layer: int
    head: int
    stack: Stack
    source: Stack
    offset: int | None
    values: Float[Tensor, "src_layer src_head rank"] = field(repr=False)
    sigma: Float[Tensor, "src_layer src_head rank"] = field(repr=False)
    degenerate: Bool[Tensor, "src_layer src_head rank"] = field(repr=False)
    null: float
    spread: float
    source_kv: Int[Tensor, "head"] = field(repr=False)
    kv_head: int
    several: bool
    model: str = "arrays"
    revision: str | None = None

    @property
    def z(self) -> Float[Tensor, "src_layer src_head rank"]:
        return (self.values.square() - self.null**2) / self.spread


@torch.no_grad()
def compose_components(
    weights: ModelWeights | HasWeights, kind: str = "K", *, layer: int, head: int, offset: int = 0,
    stack: Stack | None = None, source: Stack | None = None, fold: bool = True,
) -> ComponentComposition:  # fmt: skip
    """Rank-1 composition of every earlier head's message components with one receiver.

    Raises:
        UsageError, HeadError: a kind, head or pair of stacks that does not exist.
    """
    about, weights = getattr(weights, "source", None), weights_of(weights)
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} is not a kind of composition; use Q, K or V")
    stack = check_head(weights.shape, layer, head, stack)
    source = stack if source is None else check_layer(weights.shape, 0, source)
    before = earlier(weights.shape, source, stack, kind)[:, layer]
    attention = weights.attention(layer, stack)
    reader = readers_at(weights, kind, offset, layer, stack, fold, [head])
    messages = writers_at(weights, source, stack, layer, fold)
    shape = (weights.shape.layers(source), weights.shape.n_heads, min(weights.shape.d_head, weights.shape.d_model))
    values, sigma = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(2))
    degenerate = torch.zeros(shape, dtype=torch.bool)
    for number in before.nonzero().flatten().tolist():
        unit, S, close = components_of(messages[number])
        found = scores(unit, [reader], torch.ones(len(unit), 1, dtype=torch.bool))[0]
        values[number] = found.view(shape[1:]).masked_fill(S == 0, torch.nan)
        sigma[number], degenerate[number] = S, close
        spread = float(null_squares(unit, reader, weights.shape.d_model)[1].max())
    return ComponentComposition(
        kind=kind, label=head_label(layer, head, stack, len(weights.shape.stacks) > 1), layer=layer, head=head,
        stack=stack, source=source, offset=None if attention.rotary is None else offset, values=values, sigma=sigma,
        degenerate=degenerate, null=weights.shape.d_model**-0.5, spread=spread if before.any() else torch.nan,
        source_kv=weights.attention(0, source).kv_head, kv_head=int(attention.kv_head[head]),
        several=len(weights.shape.stacks) > 1, model=getattr(about, "name", "arrays"),
        revision=getattr(about, "revision", None),
    )  # fmt: skip


@dataclass(frozen=True)
class Angles:
    """Principal angles between a span written and a span read, in degrees, smallest first, beside random spans.

    `null` holds the means of each angle over `n` spans drawn at random.
    """

    angles: Float[Tensor, "rank"]
    null: Float[Tensor, "rank"]
    kernel: float
    null_kernel: float
    n: int


@torch.no_grad()
def principal_angles(
    weights: ModelWeights | HasWeights, sender: tuple[int, int], receiver: tuple[int, int], kind: str = "K", *,
    offset: int = 0, stack: Stack | None = None, fold: bool = True, draws: int = 16, seed: int = 0,
) -> Angles:  # fmt: skip
    """Angles between what one head writes and what a later one reads by its input `kind`, both of one stack."""
    weights = weights_of(weights)
    M1, M2 = _pair(weights, sender, receiver, kind, offset, stack, fold)
    written, read = spans(M1.right[None]), spans(M2.left.mT[None])
    A, B = (x.sides[0].double() / x.spread[0].sqrt() for x in (written, read))
    A, B = A[A.norm(dim=-1) > 0.5], B[B.norm(dim=-1) > 0.5]
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(draws, A.shape[1], len(A), generator=generator, dtype=torch.float64)
    null = torch.stack([_angles(torch.linalg.qr(x)[0].mT, B) for x in random]).mean(0)
    size = (len(A) * len(B)) ** 0.5
    kernel = float((A @ B.mT).square().sum()) / size
    return Angles(_angles(A, B), null, kernel, size / weights.shape.d_model, draws)


def _angles(A: Float[Tensor, "_rank_a d_model"], B: Float[Tensor, "_rank_b d_model"]) -> Float[Tensor, "rank"]:
    """From sines and cosines both, so that small and right angles keep their digits (Knyazev and Argentati 2002)."""
    thin, wide = (A, B) if len(A) <= len(B) else (B, A)
    inside = thin @ wide.mT
    cosine = torch.linalg.svdvals(inside)
    sine = torch.linalg.svdvals(thin - inside @ wide).flip(0)[: len(cosine)]
    return torch.rad2deg(torch.atan2(sine, cosine))


@torch.no_grad()
def virtual_head(
    weights: ModelWeights | HasWeights, first: tuple[int, int], second: tuple[int, int], *,
    stack: Stack | None = None, fold: bool = True,
) -> LowRank:  # fmt: skip
    """`M1 M2`: what the second head sends of what the first has sent, as a thin product.

    Raises:
        UsageError: the first head does not come before the second.
    """
    M1, M2 = _pair(weights_of(weights), first, second, "V", 0, stack, fold)
    return cast(LowRank, M1 @ M2)


def _pair(
    weights: ModelWeights, sender: tuple[int, int], receiver: tuple[int, int], kind: str, offset: int,
    stack: Stack | None, fold: bool,
) -> tuple[LowRank, LowRank]:  # fmt: skip
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} is not a kind of composition; use Q, K or V")
    for layer, head in (sender, receiver):
        place = check_head(weights.shape, layer, head, stack)
    if not sender[0] < receiver[0]:
        raise UsageError(f"a head of layer {sender[0]} does not come before one of layer {receiver[0]}")
    low = writers_at(weights, place, place, receiver[0], fold)[sender[0]]
    M1 = LowRank(low.left[sender[1]], low.right[sender[1]])
    return M1, reader_map(factor_head(weights.attention(receiver[0], place), receiver[1], fold), kind, offset)
