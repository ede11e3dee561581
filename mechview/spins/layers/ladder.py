"""The predictor ladder of attention writes: H1 to H7, each with its controls.

H1 the field; H2 also its running mean; H3 scalar couplings `A^h xh`; H4 the same inside the head's read or
write subspace (the head is a block of the vector spin); H5 the gradient of the head's retrieval energy; H6
the part of the write by the symmetric or antisymmetric half of OV (their sum is exact); H7 resolvents of
the mean pattern, causal or symmetrised (a surrogate that reads future tokens). Position 0 is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Null
from mechview.spins.layers.site import Site, norm_pullback

EVERY = -1
WIDTHS = (0.2, 0.5, 0.9)
H1, H2, H3 = "H1 residual", "H2 uniform", "H3 scalar couplings"
READ, WRITE = "H4 head spins (read)", "H4 head spins (write)"
H5, SYM, ANTI = "H5 energy gradient", "H6 symmetric OV", "H6 antisymmetric OV"
H7, H7S = "H7 resolvent", "H7 symmetrised resolvent (surrogate)"
RUNGS = (H1, H2, H3, READ, WRITE, H5, SYM, ANTI, H7, H7S)


class Design(NamedTuple):
    """Predictors `[pos, field, d_model]`, and targets `[pos, draw, d_model]` that are fitted by them one by one.

    The draws of `targets` are numbered from `draw` on; `head` is that of a head fitted by itself. With `EVERY` for a
    head the axis of draws is that of heads, each with a target and a predictor of its own: `[pos, head, d_model]`.
    """

    quantity: str
    control: str
    draw: int
    predictors: Tensor
    targets: Tensor
    head: int | None = None


def stacked(*parts: Float[Tensor, "... pos d_model"]) -> Float[Tensor, "_later field d_model"]:
    """Fields one beside the other, position 0 left out; a part is one field, or `[field, pos, d_model]`."""
    laid = [part[None] if part.ndim == 2 else part for part in parts]
    return torch.cat(laid)[:, 1:].transpose(0, 1)


def energy_gradient(
    site: Site, pattern: Float[Tensor, "head q_pos k_pos"], key: Float[Tensor, "head pos d_head"]
) -> Float[Tensor, "head pos d_model"]:
    """`-dE_h/dx_i` of `E_h = -logsumexp_j score_ij`, keys fixed: through cap, rotation, norms, back to the stream."""
    w = site.layer.attention
    slope = pattern if w.softcap is None else pattern * (1 - (_seen(site) / w.softcap).square())
    return site_pullback(site, w.scale * (slope @ key))


def site_pullback(
    site: Site, query: Float[Tensor, "head pos d_head"], key: Float[Tensor, "head pos d_head"] | None = None
) -> Float[Tensor, "head pos d_model"]:
    """Slopes by a head's queries (and keys) as one slope by the stream: `J^T y = (y - xh <y, xh>/d) / rho`.

    `y = flat W^T` is never projected in the stream's space: `<y, xh> = <flat, xh W>` is taken in the head's.
    """
    layer = site.layer
    flat, folded, bare = _unturned(site, query, True), layer.query_fold, site.query_bare
    if key is not None:
        flat = torch.cat([flat, _unturned(site, key, False)], -1)
        folded, bare = torch.cat([folded, layer.key_fold], -1), torch.cat([bare, site.key_bare], -1)
    flat = flat / site.scale
    found = flat @ folded.mT
    if layer.attention.norm.kind == "none":
        return found
    along = (flat * bare).sum(-1, keepdim=True) / site.field.shape[-1]
    return found.addcmul_(along, site.field, value=-1)


def _unturned(site: Site, slope: Float[Tensor, "head pos d_head"], query: bool) -> Tensor:
    """Back over the rotary positions and the norm of queries or keys."""
    w = site.layer.attention
    b, norm, at = (w.b_Q, w.q_norm, torch.arange(len(slope))) if query else (w.b_K, w.k_norm, w.kv_head)
    flat = slope if site.turns is None else (slope.transpose(0, 1) @ site.turns.mT).transpose(0, 1)
    if norm is None:
        return flat
    inner = site.query_bare if query else site.key_bare
    if w.norm.bias is not None:
        inner = inner + (w.norm.bias @ (w.W_Q if query else w.W_K))[at][:, None]
    inner = inner if b is None else inner + b[at][:, None]
    return norm_pullback(flat, inner, norm, norm.gain.to(inner)[at][:, None])


def _seen(site: Site) -> Tensor:
    return site.scores.masked_fill(~site.visible, 0.0)


def halves(site: Site, turn: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`A^h xh` through the symmetric and the antisymmetric half of each head's OV; values turned if asked."""
    reads, outputs = site.layer.reads, site.layer.outputs
    there = site.pattern @ (site.field @ reads)
    back = site.pattern @ (site.field @ outputs.mT)
    there, back = (there, back) if turn is None else (there @ turn, back @ turn.mT)
    forward, backward = there @ outputs / site.post_scale, back @ reads.mT / site.post_scale
    return (forward + backward) / 2, (forward - backward) / 2


def resolvents(mean: Float[Tensor, "q_pos k_pos"], field: Float[Tensor, "pos d_model"], symmetric: bool) -> Tensor:
    """`(I - w A)^-1 xh - xh` for three couplings; the symmetrised pattern is scaled by its largest eigenvalue."""
    eye = torch.eye(len(mean)).to(mean)
    if symmetric:
        mean = symmetrised(mean)
    return torch.stack([torch.linalg.solve(eye - w * mean, field) - field for w in WIDTHS])


def symmetrised(mean: Float[Tensor, "q_pos k_pos"]) -> Float[Tensor, "q_pos k_pos"]:
    even = (mean + mean.mT) / 2
    return even / torch.linalg.eigvalsh(even.double())[-1].to(even)


def attention_designs(
    site: Site, nulls: Sequence[Null], other: Tensor | None, before: Tensor | None
) -> Iterator[Design]:
    """Every rung on one sequence, real and under its controls."""
    a = stacked(site.attention_write)
    for control, pattern in ((c.OTHER, other), (c.BEFORE, before)):
        if pattern is not None and pattern.shape == site.pattern.shape:
            yield Design(H3, control, 0, stacked(site.field, pattern @ site.field), a)
    yield from real_designs(site, nulls)
    for null in nulls:
        yield from shuffled_designs(site, null, a)
        if null.draw >= c.DEAR:
            continue
        for name, part in zip((SYM, ANTI), halves(site, null.drawn.values), strict=True):
            yield Design(name, c.VALUES, null.draw, stacked(part), stacked(null.attention_write))
        if site.layer.closed_pullback:
            gradient = energy_gradient(site, site.pattern, null.key)
            yield Design(H5, c.KEYS, null.draw, stacked(gradient), a)


def real_designs(site: Site, nulls: Sequence[Null] = ()) -> Iterator[Design]:
    """Real rungs; where a control changes the target alone (rotated values) its draws share the predictors."""
    x, A, mean = site.field, site.pattern, site.pattern.mean(0)
    a, turned = stacked(site.attention_write), _targets([null.attention_write for null in nulls])
    count = torch.arange(1, len(x) + 1).to(x)[:, None]
    scalar = {H1: (x,), H2: (x, x.cumsum(0) / count), H3: (x, site.mixed)}
    for name, parts in scalar.items():
        yield from _both(name, stacked(*parts), a, turned)
    yield from spin_designs(site, A, c.REAL, 0, a, site.writes[None])
    if turned is not None:
        yield from spin_designs(site, A, c.VALUES, 0, turned, torch.stack([null.writes for null in nulls]))
    if site.layer.closed_pullback:
        yield Design(H5, c.REAL, 0, stacked(energy_gradient(site, A, site.key)), a)
    for name, part in zip((SYM, ANTI), halves(site), strict=True):
        yield Design(name, c.REAL, 0, stacked(part), a)
    for name, even in ((H7, False), (H7S, True)):
        yield Design(name, c.REAL, 0, stacked(resolvents(mean, x, even)), a)
        yield Design(name, c.ONE_STEP, 0, stacked((symmetrised(mean) if even else mean) @ x), a)


def _targets(writes: list[Tensor]) -> Float[Tensor, "pos draw d_model"] | None:
    return stacked(*writes) if writes else None


def _both(
    name: str, predictors: Tensor, real: Tensor, null: Tensor | None, control: str = c.VALUES
) -> Iterator[Design]:
    yield Design(name, c.REAL, 0, predictors, real)
    if null is not None:
        yield Design(name, control, 0, predictors, null)


def spin_designs(
    site: Site,
    pattern: Float[Tensor, "head q_pos k_pos"],
    control: str,
    draw: int,
    totals: Float[Tensor, "_later draw d_model"],
    writes: Float[Tensor, "draw head pos d_model"],
) -> Iterator[Design]:
    """H4: all heads' weights at once against the layer's write, and each head's READ against its own write."""
    read = (pattern @ site.read_field) @ site.layer.read_basis.mT
    yield Design(READ, control, draw, stacked(site.field, read), totals)
    if draw < c.DEAR:
        write = (pattern @ site.write_field) @ site.layer.write_basis.mT
        yield Design(WRITE, control, draw, stacked(site.field, write), totals)
    if control == c.SHUFFLE:
        yield Design(READ, control, draw, stacked(read), stacked(writes[0]), EVERY)
        return
    for head in range(len(read)):
        yield Design(READ, control, draw, stacked(read[head]), stacked(writes[:, head]), head)


def shuffled_designs(site: Site, null: Null, a: Float[Tensor, "pos draw d_model"]) -> Iterator[Design]:
    x, A, n = site.field, null.shuffled, null.draw
    yield Design(H3, c.SHUFFLE, n, stacked(x, null.mixed), a)
    yield from spin_designs(site, A, c.SHUFFLE, n, a, site.writes[None])
    if n >= c.DEAR:
        return
    if site.layer.closed_pullback:
        yield Design(H5, c.SHUFFLE, n, stacked(energy_gradient(site, A, site.key)), a)
    for name, even in ((H7, False), (H7S, True)):
        yield Design(name, c.SHUFFLE, n, stacked(resolvents(A.mean(0), x, even)), a)
