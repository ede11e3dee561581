"""Controls: what a quantity would be if the structure that it claims were not there.

N1 shuffles each row of the pattern, key 0 staying where it is, so that the row's entropy and the sink are
kept and only *which* tokens couple is lost. N2 takes the pattern of another sequence, or of the layer
before. N3 destroys one structure on real activations and keeps its statistics: keys turned by a random
orthogonal `d_head x d_head` matrix (QK; norms kept), values turned likewise (OV; both subspaces and all
singular values of `W_V` and `W_O` kept), hidden units of the MLP exchanged before `W_down`, entries of
`W_Q` and `W_K` permuted, keys of another key/value group. One N3 draw is the same for every sequence.
A draw that costs as much as the rung itself (H5 to H7, WRITE, M2, M3) is taken 8 times, every other 20 times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.spins.layers.site import Layer, Site, turned

DEAR = 8  # draws of what costs as much as the rung itself
REAL = ""
SHUFFLE = "N1 within-row shuffle"
OTHER = "N2 pattern of another sequence"
BEFORE = "N2 pattern of the layer before"
KEYS = "N3 rotated keys"
VALUES = "N3 rotated values"
HIDDEN = "N3 permuted hidden units"
GROUP = "N3 keys of another group"
ENTRIES = "N3 permuted entries of W_Q and W_K"
BOTH = "N3 rotated keys and values"
ALL = "N3 rotated keys and values, permuted hidden units"
RANDOM = "N3 random write of the same norm"
OTHER_HEAD = "N3 write of another head, same norm"
TOKEN = "N3 update of another token, same norm"
PERMUTED = "N4 every matrix permuted"
INITIAL = "N5 random initialisation"
LAYERS = "N6 layers in another order"
WITHOUT = "N3 attention alone, without the rung"
SUBSPACE = "N3 random subspace of the same size"
ONE_STEP = "N3 one step instead of a resolvent"


@dataclass(frozen=True)
class Destroyed:
    """One draw of N3 for a layer."""

    keys: Float[Tensor, "head d_head d_head"]
    values: Float[Tensor, "head d_head d_head"]
    units: Int[Tensor, "d_mlp"] | None
    subspace: Float[Tensor, "d_model d_head"]
    query_entries: Float[Tensor, "head d_model d_head"] | None = None
    key_entries: Float[Tensor, "head d_model d_head"] | None = None


def destroyed(layer: Layer, draws: int, generator: torch.Generator) -> list[Destroyed]:
    """Independent draws; heads that share keys and values share their rotation."""
    w = layer.attention
    groups, size = w.W_K.shape[0], w.W_K.shape[-1]
    found = []
    for _ in range(draws):
        keys, values = (orthogonal(groups, size, generator).to(w.W_Q)[w.kv_head] for _ in range(2))
        units = None
        if layer.dense_mlp and layer.mlp is not None:
            units = torch.randperm(layer.mlp.W_out.shape[0], generator=generator).to(w.W_Q.device)
        q, k = (permuted_entries(W, generator) for W in (layer.query_read, layer.key_read))
        plane = torch.linalg.qr(torch.randn(layer.reads.shape[1:], generator=generator, dtype=torch.float64))[0]
        found.append(Destroyed(keys, values, units, plane.to(w.W_Q), q, k))
    return found


def orthogonal(count: int, size: int, generator: torch.Generator) -> Float[Tensor, "_count d_head d_head"]:
    """Haar-distributed orthogonal matrices, in float64."""
    Q, R = torch.linalg.qr(torch.randn(count, size, size, generator=generator, dtype=torch.float64))
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None]


def permuted_entries(W: Float[Tensor, "head d_model d_head"], generator: torch.Generator) -> Tensor:
    """Each matrix with its entries in random order."""
    order = torch.stack([torch.randperm(W[0].numel(), generator=generator) for _ in W]).to(W.device)
    return W.flatten(1).gather(1, order).view_as(W)


def shuffled(
    pattern: Float[Tensor, "head q_pos k_pos"], visible: Tensor, generator: torch.Generator
) -> Float[Tensor, "head q_pos k_pos"]:
    """N1: visible keys other than key 0 change places within their row, the same way in every head."""
    size = pattern.shape[-1]
    movable = visible.clone()
    movable[:, 0] = False
    last = 2 + torch.arange(size, device=pattern.device) / size
    noise = torch.rand(movable.shape, generator=generator).to(pattern.device)
    source = torch.where(movable, noise, last).argsort(-1)
    place = torch.where(movable, last - 2, last).argsort(-1)
    index = torch.empty_like(source).scatter_(-1, place, source)
    return pattern.gather(-1, index[None].expand_as(pattern))


@dataclass(frozen=True)
class Null:
    """One draw of the controls on one sequence; each part is computed when it is asked for."""

    site: Site
    drawn: Destroyed
    generator: torch.Generator
    draw: int

    @cached_property
    def shuffled(self) -> Float[Tensor, "head q_pos k_pos"]:
        return shuffled(self.site.pattern, self.site.visible, self.generator)

    @cached_property
    def mixed(self) -> Float[Tensor, "head pos d_model"]:
        """`A^h xh` with the shuffled pattern."""
        return self.shuffled @ self.site.field

    @cached_property
    def key(self) -> Float[Tensor, "head pos d_head"]:
        return turned(self.site.key_flat @ self.drawn.keys, self.site.turns)

    @cached_property
    def content(self) -> Float[Tensor, "head q_pos k_pos"]:
        return self.site.query @ self.key.mT

    @cached_property
    def pattern(self) -> Float[Tensor, "head q_pos k_pos"]:
        """The pattern under rotated keys."""
        return self.site.pattern_of(self.content)

    @cached_property
    def writes(self) -> Float[Tensor, "head pos d_model"]:
        """Head writes under rotated values."""
        return self.site.lift(self.site.z @ self.drawn.values)

    @cached_property
    def attention_write(self) -> Float[Tensor, "pos d_model"]:
        return self.site.attention_write - self.site.writes.sum(0) + self.writes.sum(0)

    @cached_property
    def mlp_write(self) -> Float[Tensor, "pos d_model"] | None:
        """The MLP's write with its hidden units exchanged."""
        if self.site.hidden is None or self.drawn.units is None:
            return None
        return self.site.mlp_from(self.site.hidden[:, self.drawn.units])

    @cached_property
    def entry_content(self) -> Float[Tensor, "head q_pos k_pos"] | None:
        """`q k^T` from matrices whose entries were permuted, biases left out."""
        if self.drawn.query_entries is None or self.drawn.key_entries is None:
            return None
        q, k = (
            turned(self.site.field @ W, self.site.turns) for W in (self.drawn.query_entries, self.drawn.key_entries)
        )
        return q @ k.mT
