"""Two models of different shape, from their weights: whole layers at equal relative depth.

Heads of different models have no common numbering and their streams no common coordinates, so nothing is
subtracted: each side gives the mean over the heads of a layer of what exists in any model, the Frobenius norm
and the effective rank of pattern and message. Every layer of the deeper model stands beside the layer of the
other whose span of relative depth holds its middle.
"""

from __future__ import annotations

from collections.abc import Iterator

from mechview.factors import layer_factors
from mechview.lowrank import effective_ranks, frobenius_norms
from mechview.models.weights import ModelWeights, Stack
from mechview.residual.compare_maps import stack_maps
from mechview.residual.compare_rows import Row, relative_to
from mechview.residual.partners import depth_label, layer_pairs


def depth_rows(a: ModelWeights, b: ModelWeights, offset: int, fold: bool) -> Iterator[Row]:
    """Rows `L3~1.attn` of layer 3 of a beside layer 1 of b; the stacks that have the logits."""
    stacks = logit_stack(a), logit_stack(b)
    for i, j in layer_pairs(a.shape.layers(stacks[0]), b.shape.layers(stacks[1])):
        sides = layer_summary(a, i, stacks[0], offset, fold), layer_summary(b, j, stacks[1], offset, fold)
        for quantity, side_a in sides[0].items():
            delta = sides[1][quantity] - side_a
            yield Row(
                f"L{depth_label(i, j)}.attn", quantity, side_a, sides[1][quantity], delta,
                relative_to(delta, side_a), layer=i, aligned="depth",
            )  # fmt: skip


def layer_summary(weights: ModelWeights, layer: int, stack: Stack, offset: int, fold: bool) -> dict[str, float]:
    """Means over the heads of one layer."""
    heads = layer_factors(weights, layer=layer, fold=fold, stack=stack)
    at = offset if heads[0].needs_offset else None
    maps = {"pattern": stack_maps([h.pattern(at) for h in heads]), "message": stack_maps([h.message for h in heads])}
    found: dict[str, float] = {}
    for side, low in maps.items():
        found[f"{side}_norm"] = float(frobenius_norms(low).mean())
        found[f"{side}_effective_rank"] = float(effective_ranks(low).mean())
    return found


def logit_stack(weights: ModelWeights) -> Stack:
    """The stack that has the logits, or the only one."""
    stacks = weights.shape.stacks
    return stacks[0] if len(stacks) == 1 else "decoder"
