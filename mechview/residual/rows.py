"""What is added to the stream, in the order it is added, at a chosen grain.

A `Write` adds named rows to the stream; a `Transport` is a norm that the whole stream passes (post-norm
models, embedding norms): with its scale frozen at each position it is linear, so every earlier row is
carried through it and its bias becomes a row of its own. Families differ only in which steps they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError, UsageError
from mechview.factors import head_label
from mechview.models.capture import MlpCapture
from mechview.models.neurons import activations, expert_writes
from mechview.models.norms import centred, fold_write, norm_scale
from mechview.models.trace import Trace, as_added
from mechview.models.weights import AttentionWeights, MlpWeights, NormWeights, Stack
from mechview.residual.grains import Split


@dataclass(frozen=True)
class Write:
    """Rows `[component, pos, d_model]` that are added to the stream."""

    names: tuple[str, ...]
    values: Float[Tensor, "component pos d_model"]


@dataclass(frozen=True)
class Transport:
    """A norm of the whole stream, frozen at the scale it had; `matrix` maps an embedding to `d_model`."""

    norm: NormWeights
    scale: Float[Tensor, "pos 1"]
    bias_name: str
    matrix: Float[Tensor, "d_embed d_model"] | None = None

    def carry(self, values: Float[Tensor, "component pos d_in"]) -> Float[Tensor, "component pos d_out"]:
        """Rows through the frozen norm: centred, divided, times gain; without its bias."""
        if self.matrix is not None:
            return values @ self.matrix.to(values)
        return fold_write(centred(values, self.norm) / self.scale, self.norm)


Step = Write | Transport


def middle_steps(trace: Trace, layer: int, split: Split, stack: Stack) -> Iterator[Step]:
    """Steps of a block before its MLP: attention, cross-attention, and the norms of the stream between."""
    yield from attention_steps(trace, layer, split, stack)
    if len(trace.weights.shape.stacks) > 1 and stack == "decoder":
        yield from attention_steps(trace, layer, split, "cross")


def block_steps(trace: Trace, layer: int, split: Split, stack: Stack) -> Iterator[Step]:
    """All steps of one block."""
    yield from middle_steps(trace, layer, split, stack)
    yield from mlp_steps(trace, layer, split, stack)


def attention_steps(trace: Trace, layer: int, split: Split, stack: Stack) -> Iterator[Step]:
    weights = trace.weights.attention(layer, stack)
    yield attention_write(trace, layer, split, stack, weights)
    if weights.stream_norm.kind != "none":
        seen = trace.attention(layer, stack)
        before = seen.stream + as_added(seen.written, seen, weights)
        yield from transport(weights.stream_norm, before, f"L{layer}.attn_norm_bias")


def attention_write(trace: Trace, layer: int, split: Split, stack: Stack, weights: AttentionWeights) -> Write:
    several = len(trace.weights.shape.stacks) > 1
    place = head_label(layer, 0, stack, several).removesuffix("H0")
    seen = trace.attention(layer, stack)
    if split.by == "layer":
        return Write((f"{place}.attn",), as_added(seen.written, seen, weights)[None])
    bias = trace.bias_write(layer, stack)[None]
    names = tuple(head_label(layer, h, stack, several) for h in range(len(weights.W_Q)))
    if split.by == "source":
        parts = as_added(source_writes(trace, layer, stack, weights).flatten(0, 1), seen, weights)
        keys = range(seen.pattern.shape[-1])
        names = tuple(f"{name}<-{key}" for name in names for key in keys)
        return Write((*names, f"{place}.attn_bias"), torch.cat([parts, bias]))
    heads = trace.head_writes(layer, stack)
    if split.by != "bias":
        return Write((*names, f"{place}.attn_bias"), torch.cat([heads, bias]))
    values = as_added(value_bias_writes(seen.pattern, weights), seen, weights)
    rows = torch.cat([heads - values, values.sum(0, keepdim=True), bias])
    return Write((*names, f"{place}.value_bias", f"{place}.attn_bias"), rows)


def source_writes(
    trace: Trace, layer: int, stack: Stack, weights: AttentionWeights
) -> Float[Tensor, "head k_pos q_pos d_model"]:
    """Each source token's message to each query, `A[i, j] (y_j W_V + b_V) W_O`, before any post-norm."""
    seen = trace.attention(layer, stack)
    sent = values_of(seen.source, weights)
    message = einsum(sent, weights.W_O.to(sent), "head k_pos d_head, head d_head d_model -> head k_pos d_model")
    return einsum(seen.pattern, message, "head q_pos k_pos, head k_pos d_model -> head k_pos q_pos d_model")


def values_of(source: Float[Tensor, "k_pos d_model"], weights: AttentionWeights) -> Float[Tensor, "head k_pos d_head"]:
    """Values per query head, bias included."""
    W_V = weights.W_V.to(source)
    values = einsum(source, W_V, "k_pos d_model, kv_head d_model d_head -> kv_head k_pos d_head")
    values = values if weights.b_V is None else values + weights.b_V.to(source)[:, None]
    return values[weights.kv_head]


def value_bias_writes(
    pattern: Float[Tensor, "head q_pos k_pos"], weights: AttentionWeights
) -> Float[Tensor, "head q_pos d_model"]:
    """`rowsum(A_i) b_V W_O`: depends on the position where sinks make rows sum to less than 1."""
    if weights.b_V is None:
        return pattern.new_zeros(len(pattern), pattern.shape[1], weights.W_O.shape[-1])
    sent = einsum(
        weights.b_V[weights.kv_head].to(pattern),
        weights.W_O.to(pattern),
        "head d_head, head d_head d_model -> head d_model",
    )
    return pattern.sum(-1, keepdim=True) * sent[:, None]


def mlp_steps(trace: Trace, layer: int, split: Split, stack: Stack) -> Iterator[Step]:
    weights, seen = trace.weights.mlp(layer, stack), trace.capture.mlp[stack, layer]
    yield mlp_write(
        seen, weights, layer, split, "E." if stack == "encoder" and len(trace.weights.shape.stacks) > 1 else ""
    )
    if weights.stream_norm.kind != "none":
        before = seen.stream + mlp_added(seen.written, seen, weights)
        yield from transport(weights.stream_norm, before, f"L{layer}.mlp_norm_bias")


def mlp_write(seen: MlpCapture, weights: MlpWeights, layer: int, split: Split, prefix: str) -> Write:
    place = f"{prefix}L{layer}"
    whole = mlp_added(seen.written, seen, weights)[None]
    if split.by == "neuron":
        return neuron_write(seen, weights, place, whole, split.neurons or 0)
    if split.by == "expert":
        if weights.router is None:
            raise UsageError("this model has no experts: use by='neuron' or by='head'")
        parts = mlp_added(expert_writes(seen.stream, weights), seen, weights)
        return Write(tuple(f"{place}.expert{n}" for n in range(len(parts))), parts)
    if split.by == "bias" and weights.b_out is not None and weights.router is None:
        bias = mlp_added(weights.b_out.to(whole).expand_as(whole[0]), seen, weights)[None]
        return Write((f"{place}.mlp", f"{place}.mlp_bias"), torch.cat([whole - bias, bias]))
    return Write((f"{place}.mlp",), whole)


def neuron_write(seen: MlpCapture, weights: MlpWeights, place: str, whole: Tensor, most: int) -> Write:
    """The neurons that write most (largest norm at any position), and the remainder as one row."""
    if weights.router is not None:
        raise UnsupportedError("neurons of a mixture of experts are not split: use by='expert'")
    act = activations(seen.stream, weights)
    size = act.abs().amax(0) * weights.W_out.to(act).norm(dim=-1)
    top = size.topk(min(most, len(size))).indices
    parts = mlp_added(act.mT[top][..., None] * weights.W_out.to(act)[top][:, None], seen, weights)
    names = [f"{place}.n{n}" for n in top.tolist()]
    return Write((*names, f"{place}.mlp_rest"), torch.cat([parts, whole - parts.sum(0, keepdim=True)]))


def mlp_added(
    write: Float[Tensor, "*part pos d_model"], seen: MlpCapture, weights: MlpWeights
) -> Float[Tensor, "*part pos d_model"]:
    """A part of the MLP's output as it reaches the stream: frozen post-norm scale, gain, multiplier."""
    return fold_write(write / norm_scale(seen.written, weights.post_norm), weights.post_norm) * weights.multiplier


def transport(norm: NormWeights, before: Float[Tensor, "pos d_model"], bias_name: str) -> Iterator[Step]:
    """The norm as a step, then its bias as a row."""
    yield Transport(norm, norm_scale(before, norm), bias_name)
    if norm.bias is not None:
        yield Write((bias_name,), norm.bias.to(before).expand_as(before)[None])
