"""Is a block's output near a fixed point? A second step of the same block, couplings frozen or recomputed.

`x1 = x0 + block(x0)`, `x2 = x1 + block(x1)`: the ratio `|x2 - x1| / |x1 - x0|` (median token), with the pattern
of the first step kept (*frozen*) or computed anew; `contraction` is the same one step later. With the *field kept*
the first stream stays and only its answer is renewed, `x2 = x0 + block(x1)`: the iteration towards a fixed point.
The null moves a token by another token's update of the same norm: contraction towards anything is no proximity. The loss
change of K = 0 (block left out) and K = 2 is of the whole model, the later blocks recomputed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mechview.models.intervene import Place, Replacement, changed_passes
from mechview.models.load import Model
from mechview.models.norms import apply_norm
from mechview.models.scores import finished, pattern_of
from mechview.models.trace import Trace
from mechview.spins.layers import controls as c
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.maxwell import mlp_map, prefix
from mechview.spins.layers.site import Site, heads_of, turned, values_of

FROZEN, RECOMPUTED = "second step ratio, couplings frozen", "second step ratio, couplings recomputed"
HELD = "second step ratio, field and couplings kept"
CONTRACTION = "contraction after the second step"
LOSS = {
    0: "loss change, K = 0",
    1: "loss change, K = 2 recomputed",
    2: "loss change, K = 2 frozen",
    3: "loss change, K = 2 field kept",
}
LONGEST = 64
REBUILT = "error of the rebuilt block"


def update(
    site: Site, x: Float[Tensor, "pos d_model"], parallel: bool, pattern: Tensor | None = None
) -> Float[Tensor, "pos d_model"]:
    """What the block adds to a stream, by its weights; with `pattern` its couplings are those."""
    w = site.layer.attention
    if pattern is None:
        q, k = heads_of(x, w)
        content = turned(q, site.turns) @ turned(k[w.kv_head], site.turns).mT
        pattern = pattern_of(finished(content, w), w.sinks)
    written = (pattern @ values_of(x, w) @ w.W_O).sum(0)
    a = apply_norm(written if w.b_O is None else written + w.b_O, w.post_norm) * w.multiplier
    return a + mlp_map(site.layer)(x if parallel else x + a)


def possible(site: Site) -> bool:
    """Whether the block can be run from its weights: its MLP is dense or absent."""
    return site.layer.mlp is None or site.layer.dense_mlp


def measure(site: Site, parallel: bool, draws: int, generator: torch.Generator, samples: Samples) -> None:
    first = update(site, site.stream, parallel)
    error = (site.stream + first - site.after).abs().max() / site.after.abs().max()
    samples.add(Key(REBUILT), float(error))
    frozen = update(site, site.after, parallel, site.pattern)
    free = update(site, site.after, parallel)
    samples.add(Key(FROZEN), _ratio(frozen, first))
    samples.add(Key(RECOMPUTED), _ratio(free, first))
    samples.add(Key(HELD), _ratio(frozen - first, first))
    samples.add(Key(CONTRACTION), _ratio(update(site, site.after + free, parallel), free))
    for n in range(draws):
        moved = exchanged_update(first, generator)
        there = site.stream + moved
        again = update(site, there, parallel, site.pattern)
        samples.add(Key(FROZEN, control=c.TOKEN, draw=n), _ratio(again, moved))
        samples.add(Key(HELD, control=c.TOKEN, draw=n), _ratio(again - first, moved))
        samples.add(Key(RECOMPUTED, control=c.TOKEN, draw=n), _ratio(update(site, there, parallel), moved))


def exchanged_update(first: Float[Tensor, "pos d_model"], generator: torch.Generator) -> Float[Tensor, "pos d_model"]:
    """Each token other than the first takes the direction of another's update, its own norm kept."""
    order = torch.randperm(len(first) - 1, generator=generator).to(first.device) + 1
    other = torch.cat([first[:1], first[order]])
    return other * (first.norm(dim=-1) / other.norm(dim=-1).clamp(min=1e-30))[:, None]


def loss_changes(
    model: Model, trace: Trace, site: Site, parallel: bool, generator: torch.Generator, samples: Samples
) -> None:
    """Change of the mean next-token loss when the block runs not at all, or twice; nulls move tokens as far."""
    if trace.logits is None:
        return
    short = replace(trace, tokens=trace.tokens[:LONGEST])  # what follows cannot change it, and a pass is dear
    site = prefix(site, LONGEST)
    targets = torch.tensor([token.id for token in short.tokens], device=trace.logits.device)[2:]
    after, index = site.after, site.layer.index
    moves = [site.stream - after, *(update(site, after, parallel, A) for A in (None, site.pattern))]
    moves.append(site.stream + moves[2] - after)
    others = [exchanged_update(move, generator) for move in moves]
    streams = [after, *(after + move for move in (*moves, *others))]
    rows = [[Replacement(Place("post", index), value)] for value in streams]

    def reading(logits: Tensor) -> Tensor:
        left = logits[:, 1:-1].transpose(1, 2)
        return functional.cross_entropy(left, targets.expand(len(logits), -1), reduction="none").mean(-1)

    losses = changed_passes(model, short, rows, reading)
    for n, name in LOSS.items():
        samples.add(Key(name), float(losses[n + 1] - losses[0]))
        samples.add(Key(name, control=c.TOKEN), float(losses[n + 1 + len(moves)] - losses[0]))


def _ratio(second: Float[Tensor, "pos d_model"], first: Float[Tensor, "pos d_model"]) -> float:
    sizes = second.norm(dim=-1)[1:] / first.norm(dim=-1)[1:].clamp(min=1e-30)
    return float(sizes.median())
