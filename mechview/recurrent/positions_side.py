"""A transformer's memory over positions, with nulls: splits, coherence and lag profiles of every head."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechview.factors import head_label
from mechview.models.trace import Trace
from mechview.recurrent.positions import (
    DRAWS,
    HeadGates,
    coherence_of,
    correlation,
    emission_split,
    half_lag,
    head_gates,
    lag_mass,
    pair_split,
    row_orders,
    shuffled,
)
from mechview.recurrent.retention import Split
from mechview.recurrent.rows import GateRow, MemoryRow, plain
from mechview.recurrent.stream import blocks
from mechview.recurrent.verdicts import Measured, bootstrap, jackknife, null_of


@dataclass(frozen=True)
class Positions:
    """All layers' heads on all prompts: `heads[prompt][layer]`."""

    labels: tuple[tuple[str, ...], ...]
    heads: tuple[tuple[HeadGates, ...], ...]
    causal: bool


def positions_of(traces: Sequence[Trace], generator: torch.Generator) -> Positions:
    """Self-attention of the stack that has the logits."""
    weights, stack = traces[0].weights, traces[0].stack
    shape, causal = weights.shape, weights.attention(0, stack).causal
    several = len(shape.stacks) > 1
    orders = [row_orders(len(trace.tokens), causal, DRAWS, generator) for trace in traces]
    layers = range(shape.layers(stack))
    return Positions(
        labels=tuple(tuple(head_label(n, h, stack, several) for h in range(shape.n_heads)) for n in layers),
        heads=tuple(
            tuple(head_gates(trace, layer, order) for layer in layers)
            for trace, order in zip(traces, orders, strict=True)
        ),
        causal=causal,
    )


def every(found: Positions) -> list[HeadGates]:
    return [layer for prompt in found.heads for layer in prompt]


def shuffled_once(one: HeadGates, draw: int) -> HeadGates:
    """The same heads with their attention rows shuffled."""
    A = shuffled(one.pattern, one.shuffled[draw])
    gathered = torch.einsum("hqk,hk->hq", A, one.message)
    return replace(one, pattern=A, coherence=coherence_of(A, one.products), gathered=gathered)


def scalars(layers: Sequence[HeadGates], causal: bool) -> dict[str, float]:
    """The numbers that stand beside an LSTM's, pooled over heads."""
    written = merged(
        [pair_split(one.pattern, one.message, causal) for one in layers], [one.pattern.numel() for one in layers]
    )
    emitted = merged([emission_split([one]) for one in layers], [one.coherence.numel() for one in layers])
    profile = mean_profile([lag_mass(one.pattern) for one in layers])
    return {
        "gate_share": written.gate_share,
        "gate_content_correlation": correlation(written),
        "coherence_share": emitted.content + emitted.covariance / 2,
        "coherence": float(torch.cat([one.coherence[:, 1:].flatten() for one in layers]).nanmean()),
        "half_lag": float(half_lag(profile)),
    }


def merged(splits: Sequence[Split], sizes: Sequence[int]) -> Split:
    """Splits of several layers as one: variances weighted by how many writes they are of."""
    kept = [(split, size) for split, size in zip(splits, sizes, strict=True) if split.variance > 0]
    total = sum(split.variance * size for split, size in kept)
    gate, content, covariance = (
        sum(getattr(split, part) * split.variance * size for split, size in kept) / total if total else float("nan")
        for part in ("gate", "content", "covariance")
    )
    dropped = sum(split.dropped for split in splits)
    return Split(gate, content, covariance, total / max(sum(size for _, size in kept), 1), dropped)


def mean_profile(profiles: Sequence[Float[Tensor, "head _lag"]]) -> Float[Tensor, "_lag"]:
    """Mean over heads and prompts; shorter prompts have nothing at the longer lags."""
    longest = max(part.shape[1] for part in profiles)
    filled = [torch.nn.functional.pad(part, (0, longest - part.shape[1])) for part in profiles]
    return torch.cat(filled).nanmean(0)


def positions_headline(
    real: Positions, permuted: Sequence[Positions], generator: torch.Generator
) -> dict[str, Measured]:
    """Pooled numbers with interval over prompts and both nulls."""
    value = scalars(every(real), real.causal)
    ends = interval_of(real, value, generator)
    tokens = [scalars([shuffled_once(one, draw) for one in every(real)], real.causal) for draw in range(DRAWS)]
    weights = [scalars(every(one), one.causal) for one in permuted]
    return {
        name: Measured(
            number, *ends[name], null_of([one[name] for one in tokens]), null_of([one[name] for one in weights]),
        )
        for name, number in value.items()
    }  # fmt: skip


def interval_of(
    real: Positions, value: Mapping[str, float], generator: torch.Generator
) -> dict[str, tuple[float, float]]:
    """Bootstrap over prompts; of a single prompt, the jackknife that leaves out 16 queries at a time."""
    if len(real.heads) > 1:
        prompts = [scalars(prompt, real.causal) for prompt in real.heads]
        return {name: _interval([one[name] for one in prompts], generator) for name in value}
    [layers] = real.heads
    group = blocks([layers[0].pattern.shape[1]])
    count = int(group.max()) + 1
    if count < 2:
        return dict.fromkeys(value, (math.nan, math.nan))
    without = [scalars([of_queries(one, group != block) for one in layers], real.causal) for block in range(count)]
    return {name: jackknife(number, [one[name] for one in without]) for name, number in value.items()}


def of_queries(one: HeadGates, kept: Bool[Tensor, "q_pos"]) -> HeadGates:
    """The same heads as some queries saw them: what the others gathered counts nowhere."""
    return replace(
        one,
        pattern=one.pattern * kept[:, None],
        gathered=one.gathered * kept,
        coherence=one.coherence.masked_fill(~kept, math.nan),
    )


def _interval(values: Sequence[float], generator: torch.Generator) -> tuple[float, float]:
    each = torch.tensor(values, dtype=torch.float64)[:, None] / len(values)
    lo, hi = bootstrap(each, lambda total: total, generator)
    return float(lo), float(hi)


def head_rows(real: Positions, permuted: Sequence[Positions], generator: torch.Generator) -> Iterator[MemoryRow]:
    """Each head's coherence (with nulls) and half-lag, and the pooled lag profile beside even attention's."""
    row = partial(MemoryRow, "transformer", "positions")
    for layer, labels in enumerate(real.labels):
        own = [prompt[layer] for prompt in real.heads]
        draws = [_coherences([shuffled_once(one, draw) for one in own]) for draw in range(DRAWS)]
        copies = [_coherences([prompt[layer] for prompt in one.heads]) for one in permuted]
        profile = [mean_profile([lag_mass(one.pattern)[h : h + 1] for one in own]) for h in range(len(labels))]
        lo, hi = coherence_ends(own, generator)
        for head, (label, value) in enumerate(zip(labels, _coherences(own), strict=True)):
            tokens, weights = null_of([d[head] for d in draws]), null_of([c[head] for c in copies])
            found = Measured(value, float(lo[head]), float(hi[head]), tokens, weights)
            yield row(label, "coherence", found, judged=True)
            yield plain("transformer", "positions", label, "half_lag", float(half_lag(profile[head])))
    pooled = mean_profile([lag_mass(one.pattern) for one in every(real)])
    even = mean_profile([lag_mass(even_attention(one.pattern[:1], real.causal)) for one in (p[0] for p in real.heads)])
    yield plain("transformer", "positions", "even attention", "half_lag", float(half_lag(even)))
    for lag, (value, null) in enumerate(zip(pooled.tolist(), even.tolist(), strict=True)):
        yield plain("transformer", "positions", "all", "lag_mass", value, lag=lag)
        yield plain("transformer", "positions", "even attention", "lag_mass", null, lag=lag)


def coherence_ends(
    prompts: Sequence[HeadGates], generator: torch.Generator
) -> tuple[Float[Tensor, "head"], Float[Tensor, "head"]]:
    """Bootstrap interval of each head's mean coherence, over prompts or over blocks of one prompt's queries."""
    values = torch.cat([one.coherence[:, 1:] for one in prompts], 1)
    there = torch.isfinite(values)
    group = blocks([one.coherence.shape[1] - 1 for one in prompts])
    sums = torch.stack([values.nan_to_num(), there.double()], 1).mT  # [head, query, 2]
    each = sums.new_zeros(int(group.max()) + 1, len(values), 2).index_add_(0, group, sums.transpose(0, 1))
    return bootstrap(each, lambda total: total[:, 0] / total[:, 1], generator)


def _coherences(layers: Sequence[HeadGates]) -> list[float]:
    return torch.cat([one.coherence[:, 1:] for one in layers], 1).nanmean(1).tolist()


def even_attention(A: Float[Tensor, "head q_pos k_pos"], causal: bool) -> Float[Tensor, "head q_pos k_pos"]:
    """The same weight on every key that can be seen."""
    seen = torch.ones_like(A).tril() if causal else torch.ones_like(A)
    return seen / seen.sum(-1, keepdim=True)


def token_rows(trace: Trace, heads: Sequence[HeadGates], number: int) -> list[GateRow]:
    """Pattern as input gate over text: mean weight a token is read with, and coherence of what is emitted to it."""
    found = []
    for one in heads:
        length = one.pattern.shape[-1]
        readers = torch.ones(one.pattern.shape[1], length).tril().sum(0).clamp(min=1)
        received = one.pattern.sum(1) / readers.to(one.pattern)
        for gate, values in (("pattern", received), ("coherence", one.coherence)):
            quartiles = torch.nanquantile(values, torch.tensor([0.25, 0.75], dtype=values.dtype), dim=0)
            found += [
                GateRow("transformer", number, pos, token.shown, f"L{one.layer}", gate, mean, low, high, len(values))
                for pos, (token, mean, low, high) in enumerate(
                    zip(trace.tokens, values.nanmean(0).tolist(), *quartiles.tolist(), strict=True)
                )
            ]
    return found
