"""A model of plain arrays as a module with named parts, so that it can be hooked like any other.

The same forward pass as `run_arrays`, for several prompts of one length at once: what `run_arrays` lays
open as tensors, this lays open as modules (`blocks.N`, `blocks.N.out`, `blocks.N.mlp`), under the names
of the layout `ARRAYS`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechview.models.arrays import ACTIVATIONS, ArrayWeights
from mechview.models.layouts import AttentionNames, EndNames, Layout, MlpNames
from mechview.models.norms import apply_norm
from mechview.models.positions import rotation, visible
from mechview.models.weights import AttentionWeights, MlpWeights

ARRAYS = Layout(
    base="",
    block="blocks.{layer}.",
    attention=AttentionNames(query="", output="out"),
    mlp=MlpNames("mlp", down="mlp"),
    ends=EndNames(embed=""),
)


class ArrayModule(nn.Module):
    """Token ids `[row, pos]` in, `.logits` out."""

    def __init__(self, weights: ArrayWeights) -> None:
        super().__init__()
        self.weights = weights
        layers = range(weights.shape.n_layers)
        self.blocks = nn.ModuleList(Block(weights.attention(n), weights.mlp(n)) for n in layers)

    def forward(self, ids: Int[Tensor, "_row pos"], **_: Any) -> SimpleNamespace:
        ends = self.weights.ends()
        positions = 0 if ends.W_pos is None else ends.W_pos[: ids.shape[1]]
        stream = ends.W_E[ids].to(torch.promote_types(ends.W_E.dtype, torch.float32)) + positions
        for block in self.blocks:
            stream = block(stream)
        return SimpleNamespace(logits=affine(apply_norm(stream, ends.final_norm), cast(Tensor, ends.W_U), ends.b_U))


class Block(nn.Module):
    """Attention, then the MLP; norms of the stream after each in post-norm models."""

    def __init__(self, attention: AttentionWeights, mlp: MlpWeights) -> None:
        super().__init__()
        self.attention = attention
        self.out, self.mlp = Output(attention), Mlp(mlp)

    def forward(self, stream: Float[Tensor, "_row pos d_model"]) -> Float[Tensor, "_row pos d_model"]:
        z = attended(apply_norm(stream, self.attention.norm), self.attention)
        stream = apply_norm(stream + self.out(z.flatten(-2)), self.attention.stream_norm)
        return apply_norm(stream + self.mlp(stream), self.mlp.weights.stream_norm)


class Output(nn.Module):
    """The output projection, which reads all heads side by side."""

    def __init__(self, attention: AttentionWeights) -> None:
        super().__init__()
        self.W, self.b = attention.W_O.flatten(0, 1), attention.b_O

    def forward(self, z: Float[Tensor, "_row pos d_in"]) -> Float[Tensor, "_row pos d_model"]:
        return affine(z, self.W, self.b)


class Mlp(nn.Module):
    """The MLP with the norm it reads through."""

    def __init__(self, weights: MlpWeights) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, stream: Float[Tensor, "_row pos d_model"]) -> Float[Tensor, "_row pos d_model"]:
        w, act = self.weights, ACTIVATIONS[self.weights.activation]
        reads = apply_norm(stream, w.norm)
        inner = affine(reads, w.W_in, w.b_in)
        hidden = act(inner) if w.W_gate is None else act(affine(reads, w.W_gate, w.b_gate)) * inner
        return affine(hidden, w.W_out, w.b_out)


def attended(reads: Float[Tensor, "_row pos d_model"], w: AttentionWeights) -> Float[Tensor, "_row pos head d_head"]:
    """Each head's mean of the values it looks at, `z`."""
    q, k, v = (projected(reads, W, b) for W, b in ((w.W_Q, w.b_Q), (w.W_K, w.b_K), (w.W_V, w.b_V)))
    positions = torch.arange(reads.shape[1], device=reads.device)
    if w.rotary is not None:
        turns = torch.stack([rotation(w.rotary, i, q.shape[-1], root=True) for i in positions.tolist()]).to(q)
        q, k = (einsum(x, turns, "row pos head d_head, pos d_head turned -> row pos head turned") for x in (q, k))
    k, v = k[:, :, w.kv_head], v[:, :, w.kv_head]
    scores = w.scale * einsum(q, k, "row q_pos head d_head, row k_pos head d_head -> row head q_pos k_pos")
    seen = visible(positions, positions, w.causal, w.window)
    pattern = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return einsum(pattern, v, "row head q_pos k_pos, row k_pos head d_head -> row q_pos head d_head")


def projected(
    reads: Float[Tensor, "_row pos d_model"], W: Float[Tensor, "_head d_model d_head"], b: Tensor | None
) -> Float[Tensor, "_row pos _head d_head"]:
    y = einsum(reads, W.to(reads), "row pos d_model, head d_model d_head -> row pos head d_head")
    return y if b is None else y + b.to(y)


def affine(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    y = x @ W.to(x)
    return y if b is None else y + b.to(y)
