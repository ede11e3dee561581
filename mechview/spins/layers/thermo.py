"""Thermodynamics of attention rows: each row is a Boltzmann law over its keys, energy `-score`, at beta = 1.

`ln Z = logsumexp(l)`, `U = -<l>`, `S = ln Z + U` (nats), heat capacity `C = Var(l)`, participation
`1 / sum A^2`. These are exact statements about one row and need no symmetric couplings; they are *not* an
equilibrium of the tokens, which a causal pattern does not have. Heat curve: `C(tau l)` over temperatures.
Isothermal fit: `beta_h = argmin_t sum_i KL(A_i || softmax(t cos(q_i, k_j)))`, convex, by bisection. A row's
`ln Z` includes the key 0 and a learned sink, which is one more state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.models.scores import finished
from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Null
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.site import Site

TEMPERATURES = tuple(2.0 ** (n / 2) for n in range(-6, 11))
LARGEST_BETA, HALVINGS = 1e4, 36  # leaves 1e-7
CURVES = 5  # null draws on which the dear numbers (heat curve, isothermal fit) are taken


@dataclass(frozen=True)
class RowThermo:
    """One number a row, `[head, q_pos]`."""

    ln_z: Tensor
    energy: Tensor
    entropy: Tensor
    heat: Tensor
    participation: Tensor


def row_thermo(scores: Float[Tensor, "*batch k_pos"]) -> RowThermo:
    """Of scores before softmax; masked ones are -inf and no state at all."""
    ln_z = torch.logsumexp(scores, -1)
    weight = (scores - ln_z[..., None]).exp()
    level = scores.masked_fill(weight == 0, 0.0)
    mean = (weight * level).sum(-1)
    heat = (weight * (level - mean[..., None]).square()).sum(-1)
    return RowThermo(ln_z, -mean, ln_z - mean, heat, 1 / weight.square().sum(-1))


def with_sink(site: Site, scores: Float[Tensor, "head q_pos k_pos"]) -> Float[Tensor, "head q_pos _states"]:
    """Scores with a learned sink as one more state."""
    sinks = site.layer.attention.sinks
    if sinks is None:
        return scores
    return torch.cat([scores, sinks.to(scores)[:, None, None].expand(-1, scores.shape[1], 1)], -1)


def heat_curve(scores: Float[Tensor, "head q_pos _states"]) -> Float[Tensor, "temperature head"]:
    """Mean heat capacity of rows whose scores are multiplied by each `tau`."""
    return torch.stack([row_thermo(tau * scores).heat.mean(-1) for tau in TEMPERATURES])


def isothermal(
    pattern: Float[Tensor, "head q_pos k_pos"], cosines: Float[Tensor, "head q_pos k_pos"], visible: Tensor
) -> tuple[Float[Tensor, "head"], Float[Tensor, "head"]]:
    """`beta_h`, and the share of the KL from even attention that one temperature explains."""
    wanted = (pattern * cosines).sum((-1, -2))
    levels = cosines.masked_fill(~visible, -torch.inf)
    mass = pattern.sum(-1)

    def mean_cosine(beta: Tensor) -> Tensor:
        weight = (beta[:, None, None] * levels).masked_fill(~visible, -torch.inf).softmax(-1)
        return (mass * (weight * cosines).sum(-1)).sum(-1)

    low, high = torch.zeros_like(wanted), torch.full_like(wanted, LARGEST_BETA)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = mean_cosine(middle) < wanted
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    beta = (low + high) / 2
    fitted, even = (_divergence(pattern, t, levels, visible) for t in (beta, torch.zeros_like(beta)))
    return beta, 1 - fitted / even.clamp(min=1e-30)


def _divergence(pattern: Tensor, beta: Tensor, levels: Tensor, visible: Tensor) -> Float[Tensor, "head"]:
    log_q = (beta[:, None, None] * levels).masked_fill(~visible, -torch.inf).log_softmax(-1)
    terms = torch.special.xlogy(pattern, pattern) - pattern * log_q.masked_fill(~visible, 0.0)
    return terms.sum((-1, -2))


def keys_for(pattern: Float[Tensor, "head q_pos k_pos"], visible: Tensor, mass: float = 0.9) -> Float[Tensor, "head"]:
    """Mean share of a row's keys that hold this much of its mass."""
    ordered = pattern.sort(-1, descending=True).values.cumsum(-1)
    needed = (ordered < mass * pattern.sum(-1, keepdim=True)).sum(-1) + 1
    return (needed / visible.sum(-1)).mean(-1)


def measure(site: Site, nulls: list[Null], samples: Samples) -> None:
    """Thermodynamics of every head, real and under rotated keys."""
    _rows(site, site.scores, site.pattern, Key(""), samples)
    _curves(site, site.scores, site.pattern, site.key, Key(""), samples)
    for null in nulls:
        scores, key = finished(null.content, site.layer.attention), Key("", control=c.KEYS, draw=null.draw)
        _rows(site, scores, null.pattern, key, samples)
        if null.draw < CURVES:
            _curves(site, scores, null.pattern, null.key, key, samples)


def _rows(site: Site, scores: Tensor, pattern: Tensor, key: Key, samples: Samples) -> None:
    """Means over rows; that of position 0 sees one key and is left out."""
    found = row_thermo(with_sink(site, scores)[:, 1:])
    numbers = {
        "ln Z": found.ln_z.mean(-1),
        "energy U": found.energy.mean(-1),
        "entropy S": found.entropy.mean(-1),
        "heat capacity C": found.heat.mean(-1),
        "participation": found.participation.mean(-1),
        "k90 / row": keys_for(pattern[:, 1:], site.visible[1:]),
    }
    for name, values in numbers.items():
        samples.add_mean(key._replace(quantity=name), values.tolist())


def _curves(site: Site, scores: Tensor, pattern: Tensor, keys: Tensor, key: Key, samples: Samples) -> None:
    """Numbers of whole temperature curves: where heat capacity peaks, and the best single temperature."""
    visible = site.visible[1:]
    curve = heat_curve(with_sink(site, scores)[:, 1:])
    cosines = _cosines(site.query, keys)[:, 1:].masked_fill(~visible, 0.0)
    beta, explained = isothermal(pattern[:, 1:], cosines, visible)
    sizes = site.query.norm(dim=-1)[:, :, None] * keys.norm(dim=-1)[:, None] * site.layer.attention.scale
    numbers = {
        "heat ratio C(1)/C(tau*)": curve[TEMPERATURES.index(1.0)] / curve.amax(0).clamp(min=1e-30),
        "tau*": torch.tensor(TEMPERATURES).to(curve)[curve.argmax(0)],
        "beta_eff": torch.stack([size[site.visible].median() for size in sizes]),
        "beta_h": beta,
        "KL explained": explained,
    }
    for name, values in numbers.items():
        samples.add_mean(key._replace(quantity=name), values.tolist())


def _cosines(query: Tensor, key: Tensor) -> Float[Tensor, "head q_pos k_pos"]:
    q, k = (x / x.norm(dim=-1, keepdim=True).clamp(min=1e-30) for x in (query, key))
    return q @ k.mT
