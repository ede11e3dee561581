"""One block on one sequence, in the terms of a spin system: sites are tokens, fields the normalised stream.

`field` is `xh = norm(x)` without gain or bias: the block sees nothing else (for a block that reads the raw
stream it is the stream itself). Couplings are the attention pattern, writes are as they reach the stream,
post-norm scales frozen. `Layer` holds what depends on weights alone and is made once for all sequences.
Row vectors throughout (`x @ W`); keys and values are given per query head.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError
from mechview.models.neurons import ACTIVATIONS, activations
from mechview.models.norms import apply_norm, centred, fold_read, fold_write, norm_scale
from mechview.models.positions import rotation, visible
from mechview.models.scores import finished, normed, pattern_of
from mechview.models.trace import Trace, as_added
from mechview.models.weights import AttentionWeights, HeadNorm, MlpWeights, ModelWeights, NormWeights


@dataclass(frozen=True)
class Layer:
    """The weights of one block, in the dtype of the pass. `mlp` is None where the block has none."""

    index: int
    attention: AttentionWeights
    mlp: MlpWeights | None

    @cached_property
    def reads(self) -> Float[Tensor, "head d_model d_head"]:
        """`diag(gain) W_V` per query head, LayerNorm's centring included: what a head reads of the field."""
        return fold_read(self.attention.W_V, self.attention.norm)[0][self.attention.kv_head]

    @cached_property
    def outputs(self) -> Float[Tensor, "head d_head d_model"]:
        """`W_O` with the gain of a post-norm and the residual multiplier."""
        return fold_write(self.attention.W_O, self.attention.post_norm) * self.attention.multiplier

    @cached_property
    def query_read(self) -> Float[Tensor, "head d_model d_head"]:
        return _gained(self.query_fold, self.attention.q_norm)

    @cached_property
    def key_read(self) -> Float[Tensor, "head d_model d_head"]:
        read = _gained(fold_read(self.attention.W_K, self.attention.norm)[0], self.attention.k_norm)
        return read[self.attention.kv_head]

    @cached_property
    def query_fold(self) -> Float[Tensor, "head d_model d_head"]:
        """`W_Q` with the input norm's gain and centring, before any norm of the queries."""
        return fold_read(self.attention.W_Q, self.attention.norm)[0]

    @cached_property
    def key_fold(self) -> Float[Tensor, "head d_model d_head"]:
        """`W_K` likewise, per query head."""
        return fold_read(self.attention.W_K, self.attention.norm)[0][self.attention.kv_head]

    @cached_property
    def read_basis(self) -> Float[Tensor, "head d_model d_head"]:
        """Orthonormal basis of each head's read subspace (columns of `diag(gain) W_V`)."""
        return torch.linalg.qr(self.reads)[0]

    @cached_property
    def write_basis(self) -> Float[Tensor, "head d_model d_head"]:
        """Orthonormal basis of each head's write subspace (rows of `W_O`)."""
        return torch.linalg.qr(self.outputs.mT)[0]

    @property
    def closed_pullback(self) -> bool:
        """Whether heads can be pulled back one by one: not where one query or key scale is shared by all."""
        norms = (self.attention.q_norm, self.attention.k_norm)
        return not any(norm is not None and norm.across_heads for norm in norms)

    @property
    def dense_mlp(self) -> bool:
        """Whether the MLP has hidden units that can be exchanged: a mixture of experts has no such symmetry."""
        return self.mlp is not None and self.mlp.router is None and self.mlp.activation in ACTIVATIONS


@dataclass(frozen=True)
class Site:
    """What one block did on one sequence. `mlp_write` and `hidden` are None where there is no (dense) MLP."""

    layer: Layer
    stream: Float[Tensor, "pos d_model"]
    field: Float[Tensor, "pos d_model"]
    pattern: Float[Tensor, "head q_pos k_pos"]
    query: Float[Tensor, "head pos d_head"]
    key_flat: Float[Tensor, "head pos d_head"]
    turns: Float[Tensor, "pos d_head d_head"] | None
    z: Float[Tensor, "head pos d_head"]
    post_scale: Float[Tensor, "pos 1"]
    attention_write: Float[Tensor, "pos d_model"]
    mlp_stream: Float[Tensor, "pos d_model"]
    mlp_field: Float[Tensor, "pos d_model"]
    mlp_write: Float[Tensor, "pos d_model"] | None
    mlp_post_scale: Float[Tensor, "pos 1"]
    hidden: Float[Tensor, "pos d_mlp"] | None
    after: Float[Tensor, "pos d_model"]

    @cached_property
    def key(self) -> Float[Tensor, "head pos d_head"]:
        return turned(self.key_flat, self.turns)

    @cached_property
    def writes(self) -> Float[Tensor, "head pos d_model"]:
        """Head writes, value bias included, `b_O` not."""
        return self.lift(self.z)

    @cached_property
    def content(self) -> Float[Tensor, "head q_pos k_pos"]:
        """`q k^T` before scale, bias, cap and mask; defined for future keys too."""
        return self.query @ self.key.mT

    @cached_property
    def read_field(self) -> Float[Tensor, "head pos d_head"]:
        """The field in each head's read subspace."""
        return self.field @ self.layer.read_basis

    @cached_property
    def write_field(self) -> Float[Tensor, "head pos d_head"]:
        """The field in each head's write subspace."""
        return self.field @ self.layer.write_basis

    @cached_property
    def query_bare(self) -> Float[Tensor, "head pos d_head"]:
        """What `W_Q` makes of the field, before bias, norm and rotation."""
        return self.field @ self.layer.query_fold

    @cached_property
    def key_bare(self) -> Float[Tensor, "head pos d_head"]:
        """What `W_K` makes of the field, per query head, before bias, norm and rotation."""
        return self.field @ self.layer.key_fold

    @cached_property
    def scale(self) -> Float[Tensor, "pos 1"]:
        """What the input norm divides a token by."""
        return norm_scale(self.stream, self.layer.attention.norm)

    @cached_property
    def mixed(self) -> Float[Tensor, "head pos d_model"]:
        """`A^h xh`: the field that scalar couplings bring to each token."""
        return self.pattern @ self.field

    @cached_property
    def scores(self) -> Float[Tensor, "head q_pos k_pos"]:
        return finished(self.content, self.layer.attention)

    def lift(self, z: Float[Tensor, "head pos d_head"]) -> Float[Tensor, "head pos d_model"]:
        """Head-space vectors as they would be added to the stream."""
        return z @ self.layer.outputs / self.post_scale

    def pattern_of(self, content: Float[Tensor, "head q_pos k_pos"]) -> Float[Tensor, "head q_pos k_pos"]:
        return pattern_of(finished(content, self.layer.attention), self.layer.attention.sinks)

    @cached_property
    def visible(self) -> Tensor:
        places = torch.arange(len(self.stream), device=self.stream.device)
        return visible(places, places, self.layer.attention.causal, self.layer.attention.window)

    def mlp_from(self, hidden: Float[Tensor, "pos d_mlp"]) -> Float[Tensor, "pos d_model"]:
        """The MLP's write for other hidden activations, its post-norm's scale frozen."""
        w = cast(MlpWeights, self.layer.mlp)
        written = hidden @ w.W_out if w.b_out is None else hidden @ w.W_out + w.b_out
        return fold_write(written / self.mlp_post_scale, w.post_norm) * w.multiplier


def refuse(weights: ModelWeights) -> None:
    """Models on which the correspondence is not defined.

    Raises:
        UnsupportedError: no stream that writes add to (post-norm), no causal order, or two stacks.
    """
    shape = weights.shape
    if len(shape.stacks) > 1 or shape.stacks[0] != "decoder":
        raise UnsupportedError(f"the spin correspondence is of causal decoders; {shape.family} is not one")
    if shape.placement == "post":
        raise UnsupportedError(
            f"{shape.family} normalises the stream after adding to it: a block's update is no sum of writes to fit"
        )


def layer_of(weights: ModelWeights, index: int, dtype: torch.dtype, device: str = "cpu") -> Layer:
    """The block's weights, cast once."""
    attention = _cast(weights.attention(index), dtype, device)
    mlp = weights.mlp(index)
    return Layer(index, attention, None if mlp.W_in.shape[-1] == 0 else _cast(mlp, dtype, device))


def site_of(trace: Trace, layer: Layer) -> Site:
    """The block on the sequence of a trace, in the layer's dtype."""
    w, dtype = layer.attention, layer.attention.W_Q.dtype
    seen = trace.attention(layer.index)
    x, written = seen.stream.to(dtype), seen.written.to(dtype)
    seen = replace(seen, stream=x, written=written)
    turns = turns_of(w, len(x))
    query, key = heads_of(x, w)
    mlp_stream, mlp_write, scale, hidden = _mlp_of(trace, layer)
    return Site(
        layer=layer,
        stream=x,
        field=bare(x, w.norm),
        pattern=seen.pattern.to(dtype),
        query=turned(query, turns),
        key_flat=key[w.kv_head],
        turns=turns,
        z=seen.z.to(dtype).transpose(0, 1),
        post_scale=norm_scale(written, w.post_norm),
        attention_write=as_added(written, seen, w),
        mlp_stream=mlp_stream,
        mlp_field=mlp_stream if layer.mlp is None else bare(mlp_stream, layer.mlp.norm),
        mlp_write=mlp_write,
        mlp_post_scale=scale,
        hidden=hidden,
        after=trace.stream(layer.index).to(dtype),
    )


def _mlp_of(trace: Trace, layer: Layer) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    seen = trace.capture.mlp[trace.stack, layer.index]
    dtype = layer.attention.W_Q.dtype
    stream, w = seen.stream.to(dtype), layer.mlp
    if w is None:
        return stream, None, torch.ones_like(stream[:, :1]), None
    written = seen.written.to(dtype)
    scale = norm_scale(written, w.post_norm)
    write = fold_write(written / scale, w.post_norm) * w.multiplier
    return stream, write, scale, activations(stream, w) if layer.dense_mlp else None


def bare(x: Float[Tensor, "*batch d"], norm: NormWeights) -> Float[Tensor, "*batch d"]:
    """The norm without gain and bias."""
    return centred(x, norm) / norm_scale(x, norm)


def heads_of(
    x: Float[Tensor, "pos d_model"], w: AttentionWeights
) -> tuple[Float[Tensor, "head pos d_head"], Float[Tensor, "kv_head pos d_head"]]:
    """Queries and keys of a stream before rotary positions; differentiable in `x`."""
    n = apply_norm(x, w.norm)
    q, k = (_project(n, W, b) for W, b in ((w.W_Q, w.b_Q), (w.W_K, w.b_K)))
    return normed(q, w.q_norm), normed(k, w.k_norm)


def values_of(x: Float[Tensor, "pos d_model"], w: AttentionWeights) -> Float[Tensor, "head pos d_head"]:
    """Values of a stream, per query head."""
    return _project(apply_norm(x, w.norm), w.W_V, w.b_V)[w.kv_head]


def turns_of(w: AttentionWeights, length: int) -> Float[Tensor, "pos d_head d_head"] | None:
    if w.rotary is None:
        return None
    size = w.W_Q.shape[-1]
    return torch.stack([rotation(w.rotary, i, size, length, root=True) for i in range(length)]).to(w.W_Q)


def turned(
    q: Float[Tensor, "_head pos d_head"], turns: Float[Tensor, "pos d_head d_head"] | None
) -> Float[Tensor, "_head pos d_head"]:
    """Rows turned by the rotary matrix of their position."""
    return q if turns is None else torch.matmul(q.transpose(0, 1), turns).transpose(0, 1)


def norm_pullback(
    y: Float[Tensor, "*any d"], x: Float[Tensor, "*some d"], norm: NormWeights | HeadNorm | None, gain: Tensor | None
) -> Float[Tensor, "*any d"]:
    """`J^T y` of a norm at `x`: `(g y - xh <g y, xh>/d) / rho`, centred for LayerNorm."""
    if norm is None or norm.kind == "none":
        return y
    xh, y = centred(x, norm) / norm_scale(x, norm), y if gain is None else y * gain
    return centred((y - xh * (y * xh).mean(-1, keepdim=True)) / norm_scale(x, norm), norm)


def _project(n: Tensor, W: Tensor, b: Tensor | None) -> Float[Tensor, "_head pos d_head"]:
    y = einsum(n, W, "pos d_model, head d_model d_head -> head pos d_head")
    return y if b is None else y + b[:, None]


def _gained(W: Float[Tensor, "_head d_model d_head"], norm: HeadNorm | None) -> Float[Tensor, "_head d_model d_head"]:
    return W if norm is None else centred(W, norm) * norm.gain.to(W)[:, None]


def _cast(record: Any, dtype: torch.dtype, device: str) -> Any:
    """The record with its floating tensors, and those of the records in it, in one dtype."""
    changed = {}
    for entry in fields(record):
        value = getattr(record, entry.name)
        if isinstance(value, Tensor):
            changed[entry.name] = value.to(device, dtype if value.is_floating_point() else value.dtype)
        elif isinstance(value, (NormWeights, HeadNorm)):
            changed[entry.name] = _cast(value, dtype, device)
    return replace(record, **changed)
