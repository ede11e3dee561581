"""Maxwell relation: a response `m = -dF/dh` has a symmetric Jacobian; how symmetric are a block's?

Token-diagonal Jacobians `du_i/dx_i` and `da_i/dx_i` (all other tokens fixed; the others are block-triangular
under a causal mask and prove nothing). Hutchinson: `s = (1 + E[Jv . J^T v] / E|Jv|^2)/2` with Rademacher `v`,
one product with J and one with its transpose a probe. 1/2 is no structure, 1 a gradient field. The weights'
own formula is differentiated, post-norms included; a mixture of experts is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.models.neurons import activations
from mechview.models.norms import apply_norm
from mechview.models.scores import finished, pattern_of
from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Destroyed
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.moments import token_weight
from mechview.spins.layers.site import Layer, Site, heads_of, turned, values_of

MLP, ATTENTION, BLOCK = "Jacobian symmetry: MLP", "Jacobian symmetry: attention", "Jacobian symmetry: block"
LONGEST = 33  # a causal block on a prefix is the same function of it
Map = Callable[[Tensor], Tensor]


def hutchinson(
    function: Map, x: Float[Tensor, "pos d_in"], probes: Float[Tensor, "_probe pos d_in"]
) -> tuple[Float[Tensor, "pos"], Float[Tensor, "pos"]]:
    """Per token, `Jv . J^T v` and `|Jv|^2` summed over probes; exact when they are a whole basis.

    `Jv` is the derivative of the linear map `w -> J^T w` along `v`: reverse mode twice.
    """
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        y = function(at)
        dual = torch.zeros_like(y).requires_grad_()
        [pulled] = torch.autograd.grad(y, at, dual, create_graph=True)
        symmetric, size = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        for v in probes:
            [forward] = torch.autograd.grad(pulled, dual, v, retain_graph=True)
            [back] = torch.autograd.grad(y, at, v, retain_graph=True)
            symmetric = symmetric + (forward * back).sum(-1)
            size = size + forward.square().sum(-1)
    return symmetric.detach(), size.detach()


def prefix(site: Site, length: int = LONGEST) -> Site:
    """The first positions of a site, where nothing depends on what follows."""
    rows = {name: getattr(site, name)[:length] for name in (
        "stream", "field", "post_scale", "attention_write", "mlp_stream", "mlp_field", "mlp_post_scale", "after",
    )}  # fmt: skip
    heads = {name: getattr(site, name)[:, :length] for name in ("query", "key_flat", "z")}
    optional: dict[str, Any] = {
        name: None if (value := getattr(site, name)) is None else value[:length]
        for name in ("turns", "mlp_write", "hidden")
    }
    return replace(site, pattern=site.pattern[:, :length, :length], **rows, **heads, **optional)


def own_attention(site: Site, draw: Destroyed | None = None) -> Map:
    """`a_i` as a function of `x_i` alone, for all tokens at once; keys and values of a null draw are turned."""
    w = site.layer.attention
    eye = torch.eye(len(site.stream), dtype=torch.bool, device=site.stream.device)
    turn_k, turn_v = (None, None) if draw is None else (draw.keys, draw.values)
    keys = turned(_turn(site.key_flat, turn_k), site.turns)
    values = _turn(values_of(site.stream, w), turn_v)

    def function(x: Tensor) -> Tensor:
        q, k = heads_of(x, w)
        q, k = turned(q, site.turns), turned(_turn(k[w.kv_head], turn_k), site.turns)
        v = _turn(values_of(x, w), turn_v)
        content = torch.where(eye, (q * k).sum(-1, keepdim=True), q @ keys.mT)
        A = pattern_of(finished(content, w), w.sinks)
        z = A.masked_fill(eye, 0.0) @ values + A.diagonal(dim1=-2, dim2=-1)[..., None] * v
        return apply_norm(_projected(z, site.layer), w.post_norm) * w.multiplier

    return function


def mlp_map(layer: Layer, units: Int[Tensor, "d_mlp"] | None = None) -> Map:
    """The MLP's write as a function of the stream, its hidden units exchanged for a null."""
    w = layer.mlp

    def function(x: Tensor) -> Tensor:
        if w is None:
            return torch.zeros_like(x)
        h = activations(x, w)
        written = (h if units is None else h[:, units]) @ w.W_out
        written = written if w.b_out is None else written + w.b_out
        return apply_norm(written, w.post_norm) * w.multiplier

    return function


def block_map(site: Site, parallel: bool, draw: Destroyed | None = None) -> Map:
    """The whole update of a token, as a function of its own stream."""
    attend, mlp = own_attention(site, draw), mlp_map(site.layer, None if draw is None else draw.units)

    def function(x: Tensor) -> Tensor:
        a = attend(x)
        return a + mlp(x if parallel else x + a)

    return function


def measure(
    site: Site, drawn: Sequence[Destroyed], parallel: bool, generator: torch.Generator, samples: Samples
) -> None:
    """Symmetry of the three Jacobians on a prefix of the sequence, real and destroyed."""
    short = prefix(site)
    signs = torch.randint(0, 2, short.stream.shape, generator=generator).to(short.stream) * 2 - 1
    for n, draw in enumerate((None, *drawn)):
        dense = short.layer.dense_mlp
        maps = [(ATTENTION, own_attention(short, draw), short.stream, c.BOTH)]
        if dense:
            units = None if draw is None else draw.units
            maps.append((MLP, mlp_map(short.layer, units), short.mlp_stream, c.HIDDEN))
            maps.append((BLOCK, block_map(short, parallel, draw), short.stream, c.ALL))
        for name, function, at, control in maps:
            symmetric, size = hutchinson(function, at, signs[None])
            key = Key(name) if draw is None else Key(name, control=control, draw=n - 1)
            weight = token_weight(function(at)).square()
            for metric, by in (("raw", torch.ones_like(weight)), ("tw", weight)):
                num, den = float((by * symmetric)[1:].sum()), float((by * size)[1:].sum())
                samples.add(key._replace(metric=metric), (den + num) / 2, den)


def _projected(z: Float[Tensor, "head pos d_head"], layer: Layer) -> Float[Tensor, "pos d_model"]:
    w = layer.attention
    written = (z @ w.W_O).sum(0)
    return written if w.b_O is None else written + w.b_O


def _turn(x: Tensor, turn: Tensor | None) -> Tensor:
    return x if turn is None else x @ turn
