"""The predictor ladder of MLP writes and of the block's whole update: M1 to M3, and what they add to attention.

M1 a scalar Onsager term `-V xh'`; M2 the second-order Plefka basis `{xh', (sum_j A_ij^2) xh', sum_j A_ij^2
(m_i . m_j) m_j}` per head, `m = xh'/sqrt(d)` (the large-D Onsager field with free coefficients); M3 the
coupling term of equation (8) per head, `B = A o (C - rowsum(A o C))`, `C = xh xh^T/d`, brought back to the
stream: full (needs future tokens) and causal (row `m = i` alone). Matrix reactions are in `linear`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Null, shuffled
from mechview.spins.layers.ladder import Design, site_pullback, stacked
from mechview.spins.layers.site import Site

M1, M2 = "M1 scalar Onsager", "M2 second-order Plefka"
M3, M3C = "M3 coupling term of (8)", "M3 causal coupling term of (8)"
NMF, EXACT = "block: H3 + M1 (nMF)", "block: exact attention"
WITH_M1, WITH_M2, WITH_M3 = (f"block: exact attention + {name}" for name in ("M1", "M2", "M3"))

RUNGS = (M1, M2, M3, M3C, NMF, EXACT, WITH_M1, WITH_M2, WITH_M3)


def plefka(pattern: Float[Tensor, "head q_pos k_pos"], field: Float[Tensor, "pos d_model"]) -> Tensor:
    """The second-order basis `[field, pos, d_model]`: 1 + 2 a head."""
    squared = pattern.square()
    overlaps = field @ field.mT / field.shape[-1]
    own = squared.sum(-1, keepdim=True) * field
    return torch.cat([field[None], own, (squared * overlaps) @ field / field.shape[-1] ** 0.5])


def coupling_term(
    site: Site, overlaps: Float[Tensor, "q_pos k_pos"], causal: bool
) -> Float[Tensor, "head pos d_model"]:
    """`sum_mn C_mn dA_mn/dx_i` with `C` held fixed, in closed form; `causal` keeps the row `m = i` alone."""
    A, w = site.pattern, site.layer.attention
    B = w.scale * A * (overlaps - (A * overlaps).sum(-1, keepdim=True))
    if w.softcap is not None:
        B = B * (1 - (site.scores.masked_fill(~site.visible, 0.0) / w.softcap).square())
    as_key = B.diagonal(dim1=-2, dim2=-1)[..., None] * site.query if causal else B.mT @ site.query
    return site_pullback(site, B @ site.key, as_key)


def overlaps_of(site: Site) -> Float[Tensor, "q_pos k_pos"]:
    return site.field @ site.field.mT / site.field.shape[-1]


def mlp_designs(site: Site, nulls: Sequence[Null]) -> Iterator[Design]:
    """MLP and block rungs on one sequence; a block without an MLP has none."""
    u, a = site.mlp_write, site.attention_write
    if u is None:
        return
    bases = _bases(site)
    yield from _targets(site, bases, c.REAL, stacked(u), stacked(a + u))
    for name in (WITH_M1, WITH_M2, WITH_M3):
        yield Design(name, c.WITHOUT, 0, stacked(a), stacked(a + u))
    swapped = [null.mlp_write for null in nulls if null.mlp_write is not None]
    if swapped:
        yield from _targets(site, bases, c.HIDDEN, stacked(*swapped), stacked(*(a + other for other in swapped)))
    for null in nulls[: c.DEAR]:
        yield from _shuffled(site, null, stacked(u), stacked(a + u))


def _bases(site: Site) -> dict[str, Tensor]:
    found = {M1: site.mlp_field[None], M2: plefka(site.pattern, site.mlp_field)}
    if site.layer.closed_pullback:
        found[M3] = coupling_term(site, overlaps_of(site), causal=False)
        found[M3C] = coupling_term(site, overlaps_of(site), causal=True)
    return found


def _targets(site: Site, bases: dict[str, Tensor], control: str, u: Tensor, total: Tensor) -> Iterator[Design]:
    a = site.attention_write
    for name, basis in bases.items():
        yield Design(name, control, 0, stacked(basis), u)
    yield Design(NMF, control, 0, stacked(site.field, site.mixed, bases[M1]), total)
    yield Design(EXACT, control, 0, stacked(a), total)
    for name, rung in ((WITH_M1, M1), (WITH_M2, M2), (WITH_M3, M3)):
        if rung in bases:
            yield Design(name, control, 0, stacked(a, bases[rung]), total)


def _shuffled(site: Site, null: Null, u: Tensor, total: Tensor) -> Iterator[Design]:
    """N1: M2 and nMF with shuffled patterns; M3 with the correlations `C` shuffled."""
    A, a, n = null.shuffled, site.attention_write, null.draw
    basis = plefka(A, site.mlp_field)
    yield Design(M2, c.SHUFFLE, n, stacked(basis), u)
    yield Design(WITH_M2, c.SHUFFLE, n, stacked(a, basis), total)
    yield Design(NMF, c.SHUFFLE, n, stacked(site.field, null.mixed, site.mlp_field), total)
    if site.layer.closed_pullback:
        mixed_up = shuffled(overlaps_of(site)[None], site.visible, null.generator)[0]
        full, causal = (coupling_term(site, mixed_up, causal=own) for own in (False, True))
        yield Design(M3, c.SHUFFLE, n, stacked(full), u)
        yield Design(M3C, c.SHUFFLE, n, stacked(causal), u)
        yield Design(WITH_M3, c.SHUFFLE, n, stacked(a, full), total)
