"""How far heads look: mean attention by distance, on text, beside the same for permuted weights.

`distance = q_pos − k_pos`; each distance is averaged over the queries that have a visible key there, so long
distances rest on fewer queries. Heads of a layer are pooled in the null, as in all scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.errors import UnsupportedError
from mechview.factors import head_label
from mechview.heads.batteries import Batteries
from mechview.heads.passes import LayerPass, Shared, prompt_passes
from mechview.heads.scores import COPIES, SEEDS, kept_heads
from mechview.models.load import Model
from mechview.models.permuted import permuted_copy
from mechview.models.weights import Stack
from mechview.results import Result

FARTHEST = 64
Site = tuple[Stack, int]


@dataclass(frozen=True)
class HeadProfile:
    """One head. Values are NaN at distances that no query sees."""

    stack: Stack
    layer: int
    head: int
    kv_head: int
    label: str
    distance: Int[Tensor, "distance"]
    value: Float[Tensor, "distance"]
    null_mean: Float[Tensor, "distance"]
    null_sd: Float[Tensor, "distance"]
    n: Int[Tensor, "distance"]


@dataclass(frozen=True)
class DistanceProfile(Result):
    """Profiles of heads, `n` null draws at each distance."""

    model: str
    revision: str | None
    heads: tuple[HeadProfile, ...]


def distance_profile(
    model: Model,
    *,
    seed: int = 0,
    seeds: int = SEEDS,
    copies: int = COPIES,
    layers: Sequence[int] | None = None,
    heads: Sequence[Any] | None = None,
    **drawn: Any,
) -> DistanceProfile:
    """Mean attention by distance of every head, on text.

    Args:
        seed, seeds, copies, layers, heads: as of `head_scores`.
        drawn: of the batteries: `bos`, `tokens`, `before`, `text`.

    Raises:
        UnsupportedError: the model cannot be run, or has no head whose queries and keys are the same tokens.
    """
    kept, batteries = kept_heads(model, layers, heads), Batteries(model, seed, **drawn)
    own = _profiles(model, batteries, range(seeds))
    nulls: dict[Site, list[Tensor]] = defaultdict(list)
    for number in range(copies):
        copy = permuted_copy(model, torch.Generator().manual_seed((seed * 7_919 + number + 1) % 2**63))
        for site, values in _profiles(copy, replace(batteries, model=copy), range(1)).items():
            nulls[site].append(values)
    found = [row for site, values in own.items() for row in _rows(model, site, values, nulls[site])]
    if not found:
        raise UnsupportedError(f"{model.name} has only cross-attention: its queries and keys have no distance")
    rows = tuple(row for row in found if (row.stack, row.layer, row.head) in kept)
    return DistanceProfile(model=model.name, revision=model.source.revision, heads=rows)


def _profiles(
    model: Model, batteries: Batteries, seeds: Sequence[int] | range
) -> dict[Site, Float[Tensor, "head distance"]]:
    found: dict[Site, list[Tensor]] = defaultdict(list)
    shared = Shared(model.weights.ends())
    for number in seeds:
        for prompt in batteries.draw("text", number):
            for seen in prompt_passes(model, prompt, shared):
                if seen.stack != "cross":
                    found[seen.stack, seen.layer].append(profile(seen))
    return {site: torch.stack(values).nanmean(0) for site, values in found.items()}


def distances(causal: bool) -> Int[Tensor, "distance"]:
    return torch.arange(0 if causal else -FARTHEST + 1, FARTHEST)


def profile(seen: LayerPass) -> Float[Tensor, "head distance"]:
    """Mean weight at each distance, over the queries that have a visible key there; NaN where none has."""
    place = torch.arange(seen.pattern.shape[1], device=seen.pattern.device)
    apart = place[:, None] - place[None, :]
    return torch.stack([seen.mass(apart == int(n)).cpu() for n in distances(seen.attention.causal)], dim=1)


def _rows(model: Model, site: Site, values: Tensor, nulls: list[Tensor]) -> list[HeadProfile]:
    stack, layer = site
    empty = torch.full((1, values.shape[1]), torch.nan, dtype=torch.float64)
    draws = torch.cat(nulls) if nulls else empty
    count = (~draws.isnan()).sum(0)
    mean = draws.nanmean(0)
    sd = ((draws - mean).square().nansum(0) / (count - 1).clamp(min=1)).sqrt().where(count > 1, torch.nan)
    groups, several = model.shape.n_heads // model.shape.n_kv_heads, len(model.shape.stacks) > 1
    where = distances(values.shape[1] == FARTHEST)
    return [
        HeadProfile(
            stack, layer, head, head // groups, head_label(layer, head, stack, several), where, values[head], mean, sd,
            count,
        )
        for head in range(len(values))
    ]  # fmt: skip
