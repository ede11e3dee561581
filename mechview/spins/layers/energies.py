"""Energies of heads on real text: does a write lower its head's energy, and do couplings join aligned spins?

Descent: the share of tokens with `E_h(q(x + o^h)) < E_h(q(x))`, `E_h = -logsumexp_j score_j`, keys fixed. (That
retrieval of *keys* descends is a theorem and is never counted.) Interaction energy: `-(1/N) sum A_ij cos(xh_i,
xh_j)` less its value under the within-row shuffle; negative couples aligned tokens, and with `(A + A^T)/2` it
is the interaction part of a symmetrised surrogate. Same-layer erasure: the MLP's write along its own layer's
attention write, centred over tokens, `median <u, a>/|a|^2`.
"""

from __future__ import annotations

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechview.models.norms import apply_norm
from mechview.models.scores import finished, normed
from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Null, shuffled
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.site import Site, turned

DESCENT, INTERACTION, ERASURE = "energy descent share", "interaction energy", "same-layer erasure"


def descent(site: Site, writes: Float[Tensor, "head pos d_model"]) -> Float[Tensor, "head"]:
    """Share of tokens, the first left out, whose query moves to a lower energy when its head's write is added."""
    w = site.layer.attention
    n = apply_norm(site.stream + writes, w.norm)
    q = einsum(n, w.W_Q, "head pos d_model, head d_model d_head -> head pos d_head")
    q = normed(q if w.b_Q is None else q + w.b_Q[:, None], w.q_norm)
    after = finished(turned(q, site.turns) @ site.key.mT, w)
    lower = -torch.logsumexp(after, -1) < -torch.logsumexp(site.scores, -1)
    return lower[:, 1:].to(site.stream).mean(-1)


def interaction(pattern: Float[Tensor, "head q_pos k_pos"], field: Float[Tensor, "pos d_model"]) -> Tensor:
    unit = field / field.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    return -(pattern * (unit @ unit.mT))[:, 1:].sum(-1).mean(-1)


def erasure(u: Float[Tensor, "pos d_model"], a: Float[Tensor, "pos d_model"]) -> float:
    u, a = (x[1:] - x[1:].mean(0) for x in (u, a))
    return float(((u * a).sum(-1) / a.square().sum(-1).clamp(min=1e-30)).median())


def measure(site: Site, nulls: list[Null], samples: Samples) -> None:
    _interactions(site, nulls, samples)
    if site.layer.closed_pullback:
        _descents(site, nulls, samples)
    if site.mlp_write is None:
        return
    samples.add(Key(ERASURE), erasure(site.mlp_write, site.attention_write))
    for null in nulls:
        if null.mlp_write is not None:
            value = erasure(null.mlp_write, site.attention_write)
            samples.add(Key(ERASURE, control=c.HIDDEN, draw=null.draw), value)


def _interactions(site: Site, nulls: list[Null], samples: Samples) -> None:
    """Real and shuffled less the mean of the shuffles; rotated keys less their own shuffle."""
    own = interaction(site.pattern, site.field)
    mixed = [interaction(null.shuffled, site.field) for null in nulls]
    base = torch.stack(mixed).mean(0) if mixed else torch.zeros_like(own)
    samples.add_mean(Key(INTERACTION), (own - base).tolist())
    for null, value in zip(nulls, mixed, strict=True):
        key = Key(INTERACTION, control=c.SHUFFLE, draw=null.draw)
        samples.add_mean(key, (value - base).tolist())
        scrambled = interaction(shuffled(null.pattern, site.visible, null.generator), site.field)
        excess = interaction(null.pattern, site.field) - scrambled
        samples.add_mean(key._replace(control=c.KEYS), excess.tolist())


def _descents(site: Site, nulls: list[Null], samples: Samples) -> None:
    sizes = site.writes.norm(dim=-1, keepdim=True)
    samples.add_mean(Key(DESCENT), descent(site, site.writes).tolist())
    for null in nulls:
        noise = torch.randn(site.writes.shape, generator=null.generator).to(site.writes)
        samples.add_mean(Key(DESCENT, control=c.RANDOM, draw=null.draw), descent(site, _scaled(noise, sizes)).tolist())
    for shift in range(1, min(len(site.writes), 1 + len(nulls))):
        other = _scaled(site.writes.roll(shift, 0), sizes)
        samples.add_mean(Key(DESCENT, control=c.OTHER_HEAD, draw=shift - 1), descent(site, other).tolist())


def _scaled(write: Tensor, sizes: Tensor) -> Tensor:
    return write / write.norm(dim=-1, keepdim=True).clamp(min=1e-30) * sizes
