"""From named tensors to the canonical records, one layer at a time, by a row of the layout table.

The same reader serves a checkpoint on disk and a live module: both are a `TensorSource` whose names
are those of the original library. Sizes are checked against what the configuration promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from mechview.errors import HeadError, ModelError
from mechview.models.ends import read_ends
from mechview.models.layouts import AttentionNames, Fused, Layout
from mechview.models.mlps import read_mlp
from mechview.models.shape import Config, alibi, choose_layout, layer_numbers, model_shape, norm_eps
from mechview.models.tensors import NamedTensors
from mechview.models.weights import (
    Alibi,
    AttentionWeights,
    EndWeights,
    HeadNorm,
    MlpWeights,
    ModelShape,
    RelativeBias,
    Stack,
    TensorSource,
)


@dataclass(frozen=True)
class NamedWeights:
    """`ModelWeights` over named tensors; reading a layer reads that layer's tensors and no others.

    `has_head` says whether the model has an unembedding: a bare encoder has none to tie.
    """

    source: TensorSource
    config: Config
    has_head: bool = True

    @cached_property
    def layout(self) -> Layout:
        return choose_layout(self.config)

    @cached_property
    def shape(self) -> ModelShape:
        return model_shape(self.config, self.layout)

    def attention(self, layer: int, stack: Stack | None = None) -> AttentionWeights:
        stack = check_layer(self.shape, layer, stack)
        tensors = self._tensors(stack)
        names = tensors.layout.cross if stack == "cross" and tensors.layout.cross else tensors.layout.attention
        block = block_path(self.config, tensors.layout, self.shape, layer)
        heads, kv_heads = self.shape.n_heads, self.shape.n_kv_heads
        (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = query_key_value(tensors, block, names, self.shape)
        W_O = tensors.matrix(block + names.output, finite=False)
        numbers = layer_numbers(self.config, tensors.layout, self.shape, layer)
        return AttentionWeights(
            layer=layer,
            stack=stack,
            W_Q=_split(W_Q, heads, self.shape, f"layer {layer}: W_Q"),
            W_K=_split(W_K, kv_heads, self.shape, f"layer {layer}: W_K"),
            W_V=_split(W_V, kv_heads, self.shape, f"layer {layer}: W_V"),
            W_O=_split(W_O.mT, heads, self.shape, f"layer {layer}: W_O transposed").mT,
            b_Q=_split_bias(b_Q, heads),
            b_K=_split_bias(b_K, kv_heads),
            b_V=_split_bias(b_V, kv_heads),
            b_O=tensors.optional(block + names.output + ".bias"),
            kv_head=torch.arange(heads) // (heads // kv_heads),
            scale=numbers.scale,
            norm=tensors.norm(block, names.norm),
            post_norm=tensors.norm(block, names.post_norm),
            stream_norm=tensors.norm(block, names.stream_norm),
            q_norm=_head_norm(tensors, block, names.q_norm, heads),
            k_norm=_head_norm(tensors, block, names.k_norm, kv_heads),
            rotary=numbers.rotary,
            position_bias=_position_bias(tensors, names, self.shape, stack),
            softcap=numbers.softcap,
            window=numbers.window,
            sinks=tensors.read(block + names.sinks) if names.sinks else None,
            causal=tensors.layout.causal and stack != "cross",
            multiplier=float(getattr(self.config, "residual_multiplier", 1.0)),
        )

    def mlp(self, layer: int, stack: Stack | None = None) -> MlpWeights:
        stack = check_layer(self.shape, layer, stack)
        tensors = self._tensors(stack)
        return read_mlp(tensors, block_path(self.config, tensors.layout, self.shape, layer), layer, stack)

    def ends(self) -> EndWeights:
        return read_ends(NamedTensors(self.source, self.layout, self.config), self.shape, self.has_head)

    def _tensors(self, stack: Stack) -> NamedTensors:
        layout = self.layout.encoder if stack == "encoder" and self.layout.encoder else self.layout
        return NamedTensors(self.source, layout, self.config)


def block_path(config: Config, layout: Layout, shape: ModelShape, layer: int) -> str:
    """Module path of a block, with its dot; ALBERT's layers share the blocks of their group."""
    if shape.family == "albert":
        layer = layer * int(config.num_hidden_groups) // shape.n_layers
    return layout.block.format(layer=layer)


def check_layer(shape: ModelShape, layer: int, stack: Stack | None) -> Stack:
    """The stack meant, after checking that it has this layer; `decoder` also means a model's only stack."""
    alone = len(shape.stacks) == 1 and stack in (None, "decoder")
    chosen: Stack = shape.stacks[0] if alone else (stack or "decoder")
    if chosen not in shape.stacks:
        raise HeadError(f"stack {chosen} does not exist: this {shape.family} has {', '.join(shape.stacks)}")
    count = shape.layers(chosen)
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise HeadError(f"layer {layer!r} is not a whole number")
    if not 0 <= layer < count:
        raise HeadError(f"layer {layer} does not exist: this model has layers 0 to {count - 1}")
    return chosen


WeightBias = tuple[Tensor, Tensor | None]


def query_key_value(
    tensors: NamedTensors, block: str, names: AttentionNames, shape: ModelShape
) -> tuple[WeightBias, WeightBias, WeightBias]:
    """Weight `[d_in, heads * d_head]` and bias of query, key and value, split where they are fused."""
    if isinstance(names.query, Fused):
        path = block + names.query.name
        W, b = tensors.matrix(path, finite=False), tensors.optional(path + ".bias")
        weights = split_fused(W, names.query, shape)
        biases = (None, None, None) if b is None else [part[0] for part in split_fused(b[None], names.query, shape)]
        q, k, v = zip(weights, biases, strict=True)
        return q, k, v
    q, k, v = (
        (tensors.matrix(f"{block}{name}", finite=False), tensors.optional(f"{block}{name}.bias"))
        for name in (names.query, names.key, names.value)
    )
    return q, k, v


def split_fused(W: Float[Tensor, "d_in d_fused"], fused: Fused, shape: ModelShape) -> tuple[Tensor, ...]:
    """Query, key and value columns of one matrix, each `[d_in, heads * d_head]`."""
    q, kv, d = shape.n_heads, shape.n_kv_heads, shape.d_head
    if W.shape[1] != (q + 2 * kv) * d:
        raise ModelError(f"{fused.name} has {W.shape[1]} columns; {q} + 2 x {kv} heads of {d} need {(q + 2 * kv) * d}")
    if fused.order == "concat":
        return W.split([q * d, kv * d, kv * d], dim=1)
    grouped = rearrange(W, "d_in (kv each d_head) -> d_in kv each d_head", kv=kv, d_head=d)
    parts = (grouped[:, :, :-2], grouped[:, :, -2:-1], grouped[:, :, -1:])
    return tuple(rearrange(part, "d_in kv each d_head -> d_in (kv each d_head)") for part in parts)


def _head_norm(tensors: NamedTensors, block: str, name: str | None, heads: int) -> HeadNorm | None:
    if name is None or getattr(tensors.config, "use_qk_norm", True) is False:  # an option of Cohere
        return None
    gain, layout = tensors.gain(block + name), tensors.layout
    per_head = gain.reshape(heads, -1) if layout.qk_norm_across_heads or gain.ndim == 2 else gain.expand(heads, -1)
    return HeadNorm(layout.norm, per_head, norm_eps(tensors.config), layout.qk_norm_across_heads)


def _position_bias(
    tensors: NamedTensors, names: AttentionNames, shape: ModelShape, stack: Stack
) -> Alibi | RelativeBias | None:
    if names.relative_bias is None:
        return alibi(tensors.config, shape)
    table = tensors.read(names.relative_bias + ".weight")
    return RelativeBias(table, int(tensors.config.relative_attention_max_distance), stack == "encoder")


def _split(
    W: Float[Tensor, "d_in d_out"], heads: int, shape: ModelShape, where: str
) -> Float[Tensor, "_head d_in d_head"]:
    promised = [shape.d_model, heads * shape.d_head]
    if list(W.shape) != promised:
        raise ModelError(f"{where} is {list(W.shape)}, but the configuration says {promised}: d_model, heads x d_head")
    split = rearrange(W, "d_in (head d_head) -> head d_in d_head", head=heads)
    if (
        not split.sum().isfinite()
    ):  # a sum is far cheaper than looking at each number, and hides none that is not finite
        _refuse_infinite(split, where)
    return split


def _refuse_infinite(split: Float[Tensor, "head d_in d_head"], where: str) -> None:
    bad = (~torch.isfinite(split)).sum((1, 2))
    if bad.any():  # a sum of finite numbers may overflow
        owners = ", ".join(str(h) for h in bad.nonzero().flatten().tolist())
        raise ModelError(f"{where} holds {int(bad.sum())} values that are NaN or infinite, in head {owners}")


def _split_bias(b: Tensor | None, heads: int) -> Tensor | None:
    return None if b is None else rearrange(b, "(head d_head) -> head d_head", head=heads)
