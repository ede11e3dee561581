"""Frozen records of a model's raw weights, in one canonical layout for every family.

Row vectors everywhere (`x @ W`). Key/value heads are kept at their own number; `kv_head[h]` is the
group that query head `h` reads. Nothing here is folded, scaled or repeated: what a family does to
these numbers (norms, positions, caps) stands beside them as data. Field meanings follow the score
`cap(scale * (x W_Q + b_Q) D_q R(i - j) D_k (x W_K + b_K)^T / (rho_q rho_k) + bias(i, j))`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from mechview.reprs import short_repr

NormKind = Literal["none", "rms", "layer"]
Stack = Literal["decoder", "encoder", "cross"]


@dataclass(frozen=True)
class NormWeights:
    """A normalisation `(x - mean?) / rho * gain + bias`; `kind="none"` is the identity."""

    __repr__ = short_repr

    kind: NormKind
    gain: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0


IDENTITY_NORM = NormWeights("none")


@dataclass(frozen=True)
class HeadNorm:
    """The norm of queries or keys inside attention.

    `gain` is `[head, d_head]` (key norms: `[kv_head, d_head]`); with `across_heads` one scale `rho`
    is shared by all heads (OLMo-2), otherwise each head has its own (Qwen-3, Gemma-3, Cohere).
    """

    __repr__ = short_repr

    kind: Literal["rms", "layer"]
    gain: Float[Tensor, "_head d_head"]
    eps: float
    across_heads: bool = False


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding of the first `width` coordinates of a head.

    `frequencies(length)` gives the inverse frequencies `[width / 2]` and the factor by which cos and
    sin are multiplied (yarn, longrope); both depend on `length` only when `length_dependent`.
    """

    width: int
    interleaved: bool
    frequencies: Callable[[int | None], tuple[Tensor, float]]
    kind: str = "default"
    length_dependent: bool = False


@dataclass(frozen=True)
class Alibi:
    """ALiBi: `slope * j` added to the scores, before (Falcon) or after (BLOOM) the attention scale.

    `half` marks that the original library computes the product in bfloat16, and is followed in it.
    """

    __repr__ = short_repr

    slopes: Float[Tensor, "head"]
    before_scale: bool
    half: bool = False


@dataclass(frozen=True)
class RelativeBias:
    """T5's learned bias by bucketed distance; one table per stack, shared by its layers."""

    __repr__ = short_repr

    table: Float[Tensor, "bucket head"]
    max_distance: int
    bidirectional: bool


@dataclass(frozen=True)
class AttentionWeights:
    """One attention layer. `norm` is applied to what it reads, `post_norm` to what it writes."""

    __repr__ = short_repr

    layer: int
    stack: Stack
    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    W_V: Float[Tensor, "kv_head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_Q: Float[Tensor, "head d_head"] | None
    b_K: Float[Tensor, "kv_head d_head"] | None
    b_V: Float[Tensor, "kv_head d_head"] | None
    b_O: Float[Tensor, "d_model"] | None
    kv_head: Int[Tensor, "head"]
    scale: float
    norm: NormWeights = IDENTITY_NORM
    post_norm: NormWeights = IDENTITY_NORM
    stream_norm: NormWeights = IDENTITY_NORM
    q_norm: HeadNorm | None = None
    k_norm: HeadNorm | None = None
    rotary: Rotary | None = None
    position_bias: Alibi | RelativeBias | None = None
    softcap: float | None = None
    window: int | None = None
    sinks: Float[Tensor, "head"] | None = None
    causal: bool = True
    multiplier: float = 1.0


@dataclass(frozen=True)
class MlpWeights:
    """One MLP, or with a leading `expert` axis on every matrix a mixture of experts."""

    __repr__ = short_repr

    layer: int
    stack: Stack
    W_in: Float[Tensor, "*expert d_model d_mlp"]
    W_out: Float[Tensor, "*expert d_mlp d_model"]
    activation: str
    W_gate: Float[Tensor, "*expert d_model d_mlp"] | None = None
    b_in: Tensor | None = None
    b_gate: Tensor | None = None
    b_out: Tensor | None = None
    norm: NormWeights = IDENTITY_NORM
    post_norm: NormWeights = IDENTITY_NORM
    stream_norm: NormWeights = IDENTITY_NORM
    router: Float[Tensor, "d_model expert"] | None = None
    router_bias: Float[Tensor, "expert"] | None = None
    experts_per_token: int | None = None
    multiplier: float = 1.0


@dataclass(frozen=True)
class EndWeights:
    """What stands before the first and after the last block of the stack that has the logits.

    `head_transform` is the dense layer, activation and norm that masked-language models put before
    the unembedding: there the logits are not linear in the stream.
    """

    __repr__ = short_repr

    W_E: Float[Tensor, "d_vocab d_embed"]
    W_pos: Float[Tensor, "_positions _d_pos"] | None = None
    W_type: Float[Tensor, "_types d_embed"] | None = None
    embed_norm: NormWeights = IDENTITY_NORM
    embed_projection: Float[Tensor, "d_embed d_model"] | None = None
    embed_projection_bias: Float[Tensor, "d_model"] | None = None
    embed_scale: float = 1.0
    final_norm: NormWeights = IDENTITY_NORM
    W_U: Float[Tensor, "_d_out d_vocab"] | None = None
    b_U: Float[Tensor, "d_vocab"] | None = None
    logit_scale: float = 1.0
    softcap: float | None = None
    head_transform: tuple[Tensor, Tensor, NormWeights, str] | None = None
    encoder_final_norm: NormWeights = IDENTITY_NORM


@dataclass(frozen=True)
class ModelShape:
    """The sizes and kinds of a model; everything a caller may ask about without reading a tensor."""

    family: str
    d_model: int
    d_head: int
    d_mlp: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_vocab: int
    n_ctx: int | None
    stacks: tuple[Stack, ...]
    norm: NormKind
    placement: Literal["pre", "post", "sandwich", "parallel", "write"]
    position: str
    n_encoder_layers: int = 0
    tied: bool = False

    def layers(self, stack: Stack) -> int:
        return self.n_encoder_layers if stack == "encoder" and len(self.stacks) > 1 else self.n_layers


@runtime_checkable
class ModelWeights(Protocol):
    """Weights read one layer at a time."""

    @property
    def shape(self) -> ModelShape: ...
    def attention(self, layer: int, stack: Stack | None = None) -> AttentionWeights: ...
    def mlp(self, layer: int, stack: Stack | None = None) -> MlpWeights: ...
    def ends(self) -> EndWeights: ...


@runtime_checkable
class TensorSource(Protocol):
    """Named tensors, read one at a time: a checkpoint on disk or a live module."""

    def names(self) -> frozenset[str]: ...
    def read(self, name: str) -> Tensor: ...


@runtime_checkable
class HasWeights(Protocol):
    """A model: anything that carries its weights."""

    @property
    def weights(self) -> ModelWeights: ...


def weights_of(model: ModelWeights | HasWeights) -> ModelWeights:
    """The weights of a model, or the weights themselves: every function takes either."""
    return cast(ModelWeights, getattr(cast(Any, model), "weights", model))
