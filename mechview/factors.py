"""Each attention head as two thin maps: the pattern (where to look) and the message (what to send).

`pattern(offset) = W_Q D_q R(offset) D_k W_K^T` and `message = W_V W_O` are `d_model x d_model`, pure:
without biases and without the attention scale. The affine forms carry the biases as one more
coordinate, so that `[x, 1]` is read. *Folding* moves the gain and centring of the norm before, and the
gain of a norm after, into the maps: folded factors read `stream / rho`, raw ones read `norm(stream)`.
All of it is computed in float64 and rounded once to the dtype of the weights; half-precision weights
stay in float64. Elhage et al. 2021 (QK and OV circuits); offset = q_pos - k_pos.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import HeadError, UsageError
from mechview.lowrank import LowRank
from mechview.models.norms import fold_read, fold_write
from mechview.models.positions import rotation
from mechview.models.reader import check_layer
from mechview.models.weights import (
    IDENTITY_NORM,
    AttentionWeights,
    HasWeights,
    HeadNorm,
    ModelShape,
    ModelWeights,
    NormWeights,
    Rotary,
    Stack,
    weights_of,
)
from mechview.results import Result

FAR = 2**31 - 1
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, repr=False)
class HeadFactors(Result):
    """One head's maps, last row of `query`, `key` and `value` being the bias.

    `query` and `key` stop before the query/key norm; its gain enters the pattern, its scale depends on
    the data and does not. `scale` is the factor of the attention scores.
    """

    label: str
    layer: int
    head: int
    kv_head: int
    stack: Stack
    scale: float
    folded: bool
    query: Float[Tensor, "d_model_plus_1 d_head"]
    key: Float[Tensor, "d_model_plus_1 d_head"]
    value: Float[Tensor, "d_model_plus_1 d_head"]
    output: Float[Tensor, "d_head d_model"]
    query_gain: Float[Tensor, "d_head d_head"] | None = None
    key_gain: Float[Tensor, "d_head d_head"] | None = None
    rotary: Rotary | None = None
    model: str = ""
    revision: str | None = None

    def pattern(self, offset: int | None = None, length: int | None = None) -> LowRank:
        """The pattern map `[d_model, d_model]`, at `offset = q_pos - k_pos` for a rotary head.

        Raises:
            UsageError: a rotary head was asked for a pattern without an offset: it has one per offset.
        """
        left, right = self._query_key(offset, length)
        return LowRank(left[:-1], right[:-1].mT)

    def pattern_affine(self, offset: int | None = None, length: int | None = None) -> LowRank:
        """The pattern map with biases, `[d_model + 1, d_model + 1]`."""
        left, right = self._query_key(offset, length)
        return LowRank(left, right.mT)

    @property
    def message(self) -> LowRank:
        """The message map `[d_model, d_model]`."""
        return LowRank(self.value[:-1], self.output)

    @property
    def message_affine(self) -> LowRank:
        """The message map with the value bias; its last column is `0 ... 0, 1`."""
        d_head, d_model = self.output.shape
        left = torch.cat([self.value, self.value.new_zeros(d_model + 1, 1)], dim=1)
        right = self.output.new_zeros(d_head + 1, d_model + 1)
        right[:-1, :-1], left[-1, -1], right[-1, -1] = self.output, 1.0, 1.0
        return LowRank(left, right)

    def __repr__(self) -> str:
        return f"HeadFactors({self.label}, kv_head {self.kv_head}, {'folded' if self.folded else 'raw'})"

    @property
    def needs_offset(self) -> bool:
        return self.rotary is not None

    @property
    def query_side(self) -> Float[Tensor, "d_model_plus_1 d_head"]:
        """`W_Q D_q` with its bias row."""
        return self.query if self.query_gain is None else self.query @ self.query_gain

    @property
    def key_side(self) -> Float[Tensor, "d_model_plus_1 d_head"]:
        """`W_K D_k` with its bias row."""
        return self.key if self.key_gain is None else self.key @ self.key_gain

    def _query_key(self, offset: int | None, length: int | None) -> tuple[Tensor, Tensor]:
        left = self.query_side
        if self.rotary is None:
            return left, self.key_side
        if offset is None:
            raise UsageError(
                f"{self.label} uses rotary positions: its pattern depends on the offset q_pos - k_pos; give offset="
            )
        check_offset(offset)
        return left @ rotation(self.rotary, offset, left.shape[-1], length).to(left), self.key_side


def head_factors(
    weights: ModelWeights | HasWeights, *, layer: int, head: int, fold: bool = True, stack: Stack = "decoder"
) -> HeadFactors:
    """Factors of one head; reads that layer's attention and nothing else.

    Args:
        weights: anything with `.attention(layer, stack)`: a model, open weights, arrays.
        fold: fold the norms around the layer into the maps (see the module's text).
        stack: `decoder`, `encoder` or `cross`; models with one stack ignore it.
    """
    source, weights = getattr(weights, "source", None), weights_of(weights)
    stack = check_head(weights.shape, layer, head, stack)
    found = factor_head(weights.attention(layer, stack), head, fold, len(weights.shape.stacks) > 1)
    return replace(found, model=getattr(source, "name", "arrays"), revision=getattr(source, "revision", None))


def check_offset(offset: object) -> None:
    """Refuse what is not a distance between positions."""
    if isinstance(offset, bool) or not isinstance(offset, int) or abs(offset) > FAR:
        raise UsageError(f"offset {offset!r} is not a distance between positions: a whole number up to {FAR}")


def check_head(shape: ModelShape, layer: int, head: int, stack: Stack | None = None) -> Stack:
    """The stack meant, after checking that it has this layer and head."""
    chosen = check_layer(shape, layer, stack)
    if isinstance(head, bool) or not isinstance(head, int):
        raise HeadError(f"head {head!r} is not a whole number")
    if not 0 <= head < shape.n_heads:
        raise HeadError(f"head {head} does not exist: layer {layer} has heads 0 to {shape.n_heads - 1}")
    return chosen


def layer_factors(
    weights: ModelWeights | HasWeights, *, layer: int, fold: bool = True, stack: Stack = "decoder"
) -> list[HeadFactors]:
    """Factors of every head of a layer, read once."""
    weights = weights_of(weights)
    attention = weights.attention(layer, check_layer(weights.shape, layer, stack))
    return [factor_head(attention, h, fold, len(weights.shape.stacks) > 1) for h in range(weights.shape.n_heads)]


def factor_head(attention: AttentionWeights, head: int, fold: bool, several_stacks: bool = False) -> HeadFactors:
    """Factors of one head of a layer already in memory."""
    group = int(attention.kv_head[head])
    read = attention.norm if fold else IDENTITY_NORM
    dtype = torch.float64 if attention.W_Q.dtype in HALF else attention.W_Q.dtype
    source = IDENTITY_NORM if attention.stack == "cross" else read  # cross keys come normed from the encoder
    output = fold_write(attention.W_O[head].double(), attention.post_norm if fold else IDENTITY_NORM)
    if fold and attention.multiplier != 1.0:
        output = output * attention.multiplier
    return HeadFactors(
        label=head_label(attention.layer, head, attention.stack, several_stacks),
        layer=attention.layer,
        head=head,
        kv_head=group,
        stack=attention.stack,
        scale=attention.scale,
        folded=fold,
        query=affine(attention.W_Q[head], _row(attention.b_Q, head), read).to(dtype),
        key=affine(attention.W_K[group], _row(attention.b_K, group), source).to(dtype),
        value=affine(attention.W_V[group], _row(attention.b_V, group), source).to(dtype),
        output=output.to(dtype),
        query_gain=None if attention.q_norm is None else head_gain(attention.q_norm, head, dtype),
        key_gain=None if attention.k_norm is None else head_gain(attention.k_norm, group, dtype),
        rotary=attention.rotary,
    )


def affine(
    W: Float[Tensor, "d_model d_head"], b: Float[Tensor, "d_head"] | None, norm: NormWeights
) -> Float[Tensor, "d_model_plus_1 d_head"]:
    """`W` with the norm folded in and the bias as its last row, in float64."""
    folded, from_norm = fold_read(W.double()[None], norm)
    bias = torch.zeros_like(folded[0, 0]) if b is None else b.double()
    return torch.cat([folded[0], (bias if from_norm is None else bias + from_norm[0])[None]])


def head_label(layer: int, head: int, stack: Stack, several_stacks: bool) -> str:
    prefix = {"encoder": "E.", "cross": "X.", "decoder": ""}[stack] if several_stacks else ""
    return f"{prefix}L{layer}H{head}"


def homogeneous(x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model_plus_1"]:
    """`[x, 1]`: what affine factors read."""
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def _row(bias: Tensor | None, index: int) -> Tensor | None:
    return None if bias is None else bias[index]


def head_gain(norm: HeadNorm, index: int, dtype: torch.dtype) -> Float[Tensor, "d_head d_head"]:
    """`D` of the score: centring (Cohere) and gain of a query or key norm, acting on row vectors."""
    gain = norm.gain[index].double()
    D = torch.diag(gain)
    if norm.kind == "layer":
        D = D - gain[None, :].expand_as(D) / len(gain)
    return D.to(dtype)
