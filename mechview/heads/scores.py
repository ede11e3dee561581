"""Scores of heads: each registered metric on seeded batteries, its spread over seeds, and its null.

The value is the mean over seeds, `seed_sd` the standard deviation between them. The null is the same metric
on copies of the model whose weights are permuted, one copy in memory at a time, each on the first seed's
prompts; heads of a layer are pooled, so `n = copies × heads`. The 95 % band is that of the next draw,
`mean ± t(n − 1) sd √(1 + 1/n)`. A metric that does not exist for a head is NaN, and a note says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mechview.errors import HeadError, MechviewError, UnsupportedError, UsageError
from mechview.factors import head_label
from mechview.heads.bands import null_band
from mechview.heads.batteries import Batteries
from mechview.heads.labels import head_pairs
from mechview.heads.passes import LayerPass, LayerWeights, Shared, called, prompt_passes
from mechview.heads.registry import WHERE, Metric, find_metrics
from mechview.models.load import Model
from mechview.models.permuted import permuted_copy
from mechview.models.tracing import Prompt
from mechview.models.weights import Stack
from mechview.results import Result

SEEDS, COPIES = 3, 5
Site = tuple[str, Stack, int]


@dataclass(frozen=True)
class Score:
    """One metric of one head. `n` counts the draws behind the null; 0 where there is none."""

    stack: Stack
    layer: int
    head: int
    kv_head: int
    label: str
    metric: str
    value: float
    null_mean: float = math.nan
    null_sd: float = math.nan
    n: int = 0
    seed_sd: float = math.nan

    @property
    def z(self) -> float:
        return (self.value - self.null_mean) / self.null_sd if self.null_sd > 0 else math.nan

    @property
    def band(self) -> tuple[float, float]:
        return null_band(self.null_mean, self.null_sd, self.n)

    @property
    def outside(self) -> bool | None:
        """Whether the value lies outside the band; None without value or null."""
        low, high = self.band
        return None if math.isnan(self.value) or math.isnan(low) else not low <= self.value <= high


@dataclass(frozen=True)
class HeadScores(Result):
    """Scores in the order of metrics, then heads; `notes` say what does not exist for this model and why."""

    model: str
    revision: str | None
    rows: tuple[Score, ...]
    notes: tuple[str, ...] = ()

    def row(self, label: str, metric: str) -> Score:
        found = next((row for row in self.rows if (row.label, row.metric) == (label, metric)), None)
        if found is None:
            raise UsageError(f"no {metric} of {label} was measured")
        return found

    def top(self, metric: str, k: int = 10) -> list[Score]:
        """The k heads with the largest values of a metric."""
        rows = [row for row in self.rows if row.metric == metric and not math.isnan(row.value)]
        return sorted(rows, key=lambda row: -row.value)[:k]

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(row.metric for row in self.rows))


@dataclass
class _Found:
    """What was measured, seed by seed, and why something was not."""

    values: dict[Site, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    refusals: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))

    def refuse(self, metric: str, stack: str, reason: str) -> None:
        self.refusals[metric][reason].add(stack)

    def notes(self, several: bool) -> tuple[str, ...]:
        return tuple(
            metric + (f" ({', '.join(sorted(stacks))})" if several else "") + f": {reason}"
            for metric, reasons in self.refusals.items()
            for reason, stacks in reasons.items()
        )


def head_scores(
    model: Model,
    metrics: Sequence[str] | None = None,
    *,
    seed: int = 0,
    seeds: int = SEEDS,
    copies: int = COPIES,
    layers: Sequence[int] | None = None,
    heads: Sequence[Any] | None = None,
    lengths: Sequence[int] | None = None,
    bos: str = "auto",
    tokens: Sequence[int] | None = None,
    before: Sequence[int] | None = None,
    text: Sequence[Prompt] | None = None,
) -> HeadScores:
    """Values of metrics for every head, beside what permuted weights give.

    Args:
        metrics: names of the registry, all unless given.
        seed: decides every draw: prompts and permutations.
        seeds: draws of each battery behind a value and its `seed_sd`.
        copies: permuted copies behind the null; 0 for none.
        layers, heads: heads to keep; passes run through the whole model all the same.
        lengths: periods of the repeated prompts.
        tokens: ids that random prompts draw from; before: ids that stand before every prompt.
        text: prompts to use in the place of the bundled text.

    Raises:
        UsageError: an unknown metric, or counts that make no sense.
        UnsupportedError: the model cannot be run, or none of the metrics exists for it.
    """
    if seeds < 1 or copies < 0:
        raise UsageError(f"seeds={seeds} and copies={copies} make no sense: at least one seed, no negative copies")
    asked, kept = find_metrics(metrics), kept_heads(model, layers, heads)
    drawn = Batteries(model, seed, lengths, bos, tokens, before, text)
    found = measure(model, drawn, [one for one in asked if one.null != "own"], seeds)
    own = {one.name: own_rows(model, one, seed, found) for one in asked if one.null == "own"}
    if not found.values and not any(own.values()):
        raise UnsupportedError(f"{model.name}: " + "; ".join(found.notes(False)))
    nulls = permuted_nulls(model, drawn, [m for m in asked if m.null == "permuted"], copies)
    every = [row for one in asked for row in (own.get(one.name) or _rows(model, one, found, nulls))]
    rows = [row for row in every if (row.layer, row.head) in kept]
    notes = found.notes(len(model.shape.stacks) > 1)
    return HeadScores(model=model.name, revision=model.source.revision, rows=tuple(rows), notes=notes)


def measure(model: Model, drawn: Batteries, metrics: Sequence[Metric], seeds: int) -> _Found:
    """Every metric of every layer, `[head]` a seed."""
    found, shared = _Found(), Shared(model.weights.ends())
    for kind in dict.fromkeys(one.needs for one in metrics):
        of_kind = [one for one in metrics if one.needs == kind]
        for number in range(1 if kind == "weights" else seeds):
            try:
                sites = _sites(model, drawn, kind, number, shared)
            except UnsupportedError as error:
                for one in of_kind:
                    found.refuse(one.name, "every stack", str(error))
                break
            for one in of_kind:
                _measure(one, sites, found)
    return found


Sites = dict[tuple[Stack, int], list[Any]]


def _sites(model: Model, drawn: Batteries, kind: str, number: int, shared: Shared) -> Sites:
    """By layer, what metrics of a kind are given: passes of one draw, or weights."""
    found: Sites = defaultdict(list)
    if kind == "weights":
        for stack in model.shape.stacks:
            for layer in range(model.shape.layers(stack)):
                found[stack, layer].append(
                    LayerWeights(layer, stack, model.weights.attention(layer, stack), model, shared)
                )
        return found
    for prompt in drawn.draw(kind, number):
        for seen in prompt_passes(model, prompt, shared):
            found[seen.stack, seen.layer].append(seen)
    return found


def _measure(one: Metric, sites: Sites, found: _Found) -> None:
    for (stack, layer), seen in sites.items():
        reason = refusal(one, stack, seen[0])
        if reason:
            found.refuse(one.name, stack, reason)
            continue
        try:
            values = [called(one, seen)] if one.per == "seed" else [called(one, each) for each in seen]
        except UnsupportedError as error:
            found.refuse(one.name, stack, str(error))
            continue
        found.values[one.name, stack, layer].append(torch.stack(values).nanmean(0))


def refusal(one: Metric, stack: Stack, seen: LayerPass | LayerWeights) -> str:
    """Why the heads of this stack do not have a metric; empty where they have it."""
    missing = (one.where == "self" and stack == "cross") or (one.where == "causal" and not seen.attention.causal)
    return WHERE[one.where] if missing else ""


def own_rows(model: Model, one: Metric, seed: int, found: _Found) -> list[Score]:
    """Rows of a metric that brings its null, where it exists; heads of other stacks are left out with a note."""
    try:
        rows = one.measure(model, seed) if one.measure else []
    except MechviewError as error:
        found.refuse(one.name, "every stack", str(error))
        return []
    names = ("stack", "layer", "head", "kv_head", "label")
    numbers = ("value", "null_mean", "null_sd", "n")
    given = {row.label: Score(**{n: getattr(row, n) for n in names + numbers}, metric=one.name) for row in rows}
    for stack in {row.stack for row in _rows(model, one, found, {})} - {row.stack for row in given.values()}:
        found.refuse(one.name, stack, "from weights, it is measured for the heads whose messages reach the logits")
    return [given.get(row.label, row) for row in _rows(model, one, found, {})]


def permuted_nulls(model: Model, drawn: Batteries, metrics: Sequence[Metric], copies: int) -> dict[Site, Tensor]:
    """Draws of the null by metric and layer, pooled over copies and heads."""
    pooled: dict[Site, list[Tensor]] = defaultdict(list)
    for number in range(copies if metrics else 0):
        generator = torch.Generator().manual_seed((drawn.seed * 7_919 + number + 1) % 2**63)
        copy = permuted_copy(model, generator)
        for site, values in measure(copy, replace(drawn, model=copy), metrics, 1).values.items():
            pooled[site] += values
    return {site: torch.cat(values) for site, values in pooled.items()}


def _rows(model: Model, one: Metric, found: _Found, nulls: dict[Site, Tensor]) -> list[Score]:
    rows = []
    for stack in model.shape.stacks:
        for layer in range(model.shape.layers(stack)):
            site = (one.name, stack, layer)
            rows += _layer_rows(model, site, found.values.get(site), nulls.get(site, torch.zeros(0)))
    return rows


def _layer_rows(model: Model, site: Site, seeds: list[Tensor] | None, null: Tensor) -> list[Score]:
    name, stack, layer = site
    heads, several = model.shape.n_heads, len(model.shape.stacks) > 1
    values = torch.full((1, heads), math.nan, dtype=torch.float64) if seeds is None else torch.stack(seeds)
    spread = values.std(0) if len(values) > 1 else torch.full((heads,), math.nan)
    draws = null[~null.isnan()]
    about: dict[str, Any] = {}
    if len(draws) > 1 and seeds is not None:
        about = {"null_mean": float(draws.mean()), "null_sd": float(draws.std()), "n": len(draws)}
    groups = model.shape.n_heads // model.shape.n_kv_heads
    return [
        Score(
            stack, layer, head, head // groups, head_label(layer, head, stack, several), name,
            float(values[:, head].mean()), seed_sd=float(spread[head]), **about,
        )
        for head in range(heads)
    ]  # fmt: skip


def kept_heads(model: Model, layers: Sequence[int] | None, heads: Sequence[Any] | None) -> set[tuple[int, int]]:
    """The heads asked for.

    Raises:
        HeadError: a layer or head that the model does not have.
    """
    count = max(model.shape.n_layers, model.shape.n_encoder_layers)
    pairs = {(layer, head) for layer in range(count) for head in range(model.shape.n_heads)}
    asked = None if heads is None else set(head_pairs(heads))
    outside = next((pair for pair in sorted(asked or ()) if pair not in pairs), None)
    if outside is not None:
        raise HeadError(
            f"head L{outside[0]}H{outside[1]} does not exist: {count} layers of {model.shape.n_heads} heads"
        )
    wrong = next((layer for layer in layers or () if not 0 <= layer < count), None)
    if wrong is not None:
        raise HeadError(f"layer {wrong} does not exist: this model has layers 0 to {count - 1}")
    return {pair for pair in asked or pairs if layers is None or pair[0] in layers}
