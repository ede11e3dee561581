"""A transformer's memory over depth, with nulls: gates, erasure, retention, half-lives, dilution, causal retention.

Every number here is a function of Gram matrices of the writes (see `stream`), so intervals come from sums over
prompts, the null of other tokens from mixed Gram matrices (20 draws), and the null of weights from permuted
copies of the model. Values are energy-weighted (sums over tokens); the sign must hold with every token counting
alike before a number is called informative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.recurrent.ablation import CausalRetention, causal_retention
from mechview.recurrent.depth import Writes, depth_stream, writes_of
from mechview.recurrent.forgetting import ForgetMatrix, forget_matrix
from mechview.recurrent.rows import MemoryRow, plain
from mechview.recurrent.stream import (
    Stream,
    dilution,
    erasure,
    forget_gates,
    grams,
    mixed_gram,
    other_tokens,
    retention_curves,
    write_half_lives,
)
from mechview.recurrent.verdicts import Measured, bootstrap, null_of

SHUFFLES = 20
DIGITS = 5  # of a completeness error of float32 passes


@dataclass(frozen=True)
class Depth:
    """Numbers of one model on its prompts: `kept[k, m]` with nulls of the same shape and a leading axis of draws."""

    stream: Stream
    written: Writes
    gram: Float[Tensor, "write later"]
    causal: CausalRetention | None
    forget: tuple[ForgetMatrix, ...]
    remarks: tuple[str, ...] = ()


def depth_of(model: Model, traces: Sequence[Trace], causal: bool, generator: torch.Generator) -> Depth:
    """One model, without nulls."""
    written = writes_of(traces)
    stream, remarks, found = depth_stream(written), [], None
    if causal:
        try:
            found = causal_retention(model, traces, written, generator)
        except UnsupportedError as error:
            remarks.append(f"causal retention was not measured: {error}")
    return Depth(
        stream, written, grams(stream).sum(0), found, block_forgetting(traces, stream, written), tuple(remarks)
    )


def block_forgetting(traces: Sequence[Trace], stream: Stream, written: Writes) -> tuple[ForgetMatrix, ...]:
    """The linear forget matrix of each block: its writes on the stream it starts from."""
    W, trace = stream.writes, traces[0]
    layers = [int(name.split("L")[1].split(".")[0]) for name in stream.names[1:]]
    raw = torch.cat([rows[:, keep] for rows, keep in zip(written.rows, written.keep, strict=True)], 1).cumsum(0)
    found = []
    for layer in sorted(set(layers)):
        own = [n for n, at in enumerate(layers, 1) if at == layer]
        found.append(forget_matrix(raw[own[0] - 1], W[own].sum(0), layer, trace.weights.shape.norm == "layer"))
    return tuple(found)


Statistic = Callable[[Tensor, Tensor | None], Tensor]


def measured(
    real: Depth,
    statistic: Statistic,
    mixed: Sequence[Tensor],
    permuted: Sequence[Depth],
    generator: torch.Generator,
) -> list[Measured]:
    """A statistic of Gram matrices (a vector), with interval and both nulls."""
    each = grams(real.stream)
    value, even = statistic(real.gram, None), statistic(grams(real.stream, even=True).sum(0), None)
    lo, hi = bootstrap(each, lambda total: statistic(total, None), generator)
    tokens = [statistic(real.gram, one).tolist() for one in mixed]
    weights = [statistic(one.gram, None).tolist() for one in permuted]
    return [
        Measured(
            float(value[n]), float(lo[n]), float(hi[n]), null_of([draw[n] for draw in tokens]),
            null_of([draw[n] for draw in weights]), float(even[n]),
        )
        for n in range(len(value))
    ]  # fmt: skip


def same_layer_erasure(gram: Tensor, products: Tensor | None = None) -> Tensor:
    """`e` of each write by the very next one: attention's by its own layer's MLP, and so on."""
    return erasure(gram, products).diagonal(1)[1:]


def start_retention(gram: Tensor, products: Tensor | None = None) -> Tensor:
    return retention_curves(gram, products)[0]


def final_retention(gram: Tensor, products: Tensor | None = None) -> Tensor:
    return retention_curves(gram, products)[:, -1]


def mean_mlp_forgetting(names: Sequence[str]) -> Statistic:
    """Mean of `1 - f` over the MLPs' writes: one number a model."""
    mlps = [n for n, name in enumerate(names[1:]) if name.endswith(".mlp")]

    def statistic(gram: Tensor, products: Tensor | None = None) -> Tensor:
        return 1.0 - forget_gates(gram, products)[mlps].mean()[None]

    return statistic


def mean_attention_erasure(names: Sequence[str]) -> Statistic:
    """Mean share of attention's writes that the next MLP takes back."""
    pairs = [n for n, (a, b) in enumerate(pairwise(names[1:])) if "attn" in a and b.endswith(".mlp")]

    def statistic(gram: Tensor, products: Tensor | None = None) -> Tensor:
        return same_layer_erasure(gram, products)[pairs].mean()[None]

    return statistic


def last_start_retention(gram: Tensor, products: Tensor | None = None) -> Tensor:
    return start_retention(gram, products)[-1:]


def depth_headline(real: Depth, permuted: Sequence[Depth], generator: torch.Generator) -> dict[str, Measured]:
    """The few numbers that stand for the whole stack."""
    mixed = mixed_grams(real.stream, generator)
    wanted: dict[str, Statistic] = {
        "mlp_forgetting": mean_mlp_forgetting(real.stream.names),
        "embedding_retention": last_start_retention,
        "attention_erased_by_next_mlp": mean_attention_erasure(real.stream.names),
    }
    found = {name: measured(real, statistic, mixed, permuted, generator)[0] for name, statistic in wanted.items()}
    if real.causal is not None:
        mean = lambda each: each.mean()[None]  # noqa: E731
        [found["causal_retention"]] = causal_measured(real.causal, permuted, generator, mean)
    exact = [round(1.0 - one.stream.error, DIGITS) for one in (real, *permuted)]
    found["algebraic_forget_gate"] = Measured(exact[0], weights=null_of(exact[1:]))
    return found


def causal_measured(
    causal: CausalRetention,
    permuted: Sequence[Depth],
    generator: torch.Generator,
    over: Callable[[Tensor], Tensor] = lambda each: each,
) -> list[Measured]:
    """A statistic of the writes' causal retentions (all of them, unless said), with interval and both nulls."""
    both = torch.stack([causal.met, causal.size], 1)
    value = over(causal.values)
    lo, hi = bootstrap(both, lambda total: over(total[0] / total[1]), generator)
    tokens = [over(draw).tolist() for draw in causal.null]
    weights = [over(one.causal.values).tolist() for one in permuted if one.causal is not None]
    even = over(causal.even)
    return [
        Measured(
            float(value[n]), float(lo[n]), float(hi[n]), null_of([draw[n] for draw in tokens]),
            null_of([draw[n] for draw in weights]), float(even[n]),
        )
        for n in range(len(value))
    ]  # fmt: skip


def mixed_grams(stream: Stream, generator: torch.Generator) -> list[Tensor]:
    """Products of writes with later writes of other tokens, one matrix a draw."""
    count = stream.writes.shape[1]
    return [mixed_gram(stream, other_tokens(count, generator)) for _ in range(SHUFFLES)]


def depth_rows(real: Depth, permuted: Sequence[Depth], generator: torch.Generator) -> list[MemoryRow]:
    """Every number over depth as rows."""
    mixed, names, count = mixed_grams(real.stream, generator), real.stream.names, real.stream.writes.shape[1]

    def rows(
        statistic: Statistic, places: Sequence[str], quantity: str, later: Sequence[str | None]
    ) -> list[MemoryRow]:
        found = measured(real, statistic, mixed, permuted, generator)
        return [
            MemoryRow("transformer", "depth", place, quantity, one, at, index=n, n=count, judged=True)
            for n, (place, one, at) in enumerate(zip(places, found, later, strict=True))
        ]

    nothing = [None] * (len(names) - 1)
    found = rows(forget_gates, names[1:], "forget_gate", nothing)
    found += rows(same_layer_erasure, names[1:-1], "erasure", names[2:])
    found += rows(start_retention, [names[0]] * len(names), "embedding_retention", names)
    found += rows(final_retention, names, "final_retention", [names[-1]] * len(names))
    if real.causal is not None:
        each = zip(real.causal.names, causal_measured(real.causal, permuted, generator), strict=True)
        found += [
            MemoryRow("transformer", "depth", name, "causal_retention", one, names[-1], index=n, n=count, judged=True)
            for n, (name, one) in enumerate(each)
        ]
    return found + described(real, permuted)


def described(real: Depth, permuted: Sequence[Depth]) -> list[MemoryRow]:
    """Matrices and numbers that are shown rather than judged one by one."""
    names, kept, thinned = real.stream.names, retention_curves(real.gram), dilution(real.stream.rms)
    found: list[MemoryRow] = []
    for k, name in enumerate(names):
        for m in range(k, len(names)):
            found.append(plain("transformer", "depth", name, "retention", float(kept[k, m]), later=names[m], lag=m - k))
        found.append(plain("transformer", "depth", name, "dilution", float(thinned[k, -1]), later=names[-1]))
    for name, life in zip(names, write_half_lives(kept), strict=True):
        found.append(plain("transformer", "depth", name, "half_life", float("inf") if life is None else float(life)))
    return found + forget_rows(real, permuted)


def forget_rows(real: Depth, permuted: Sequence[Depth]) -> list[MemoryRow]:
    found = []
    for n, one in enumerate(real.forget):
        for quantity in ("r2", "r2_symmetric", "symmetric", "forgotten"):
            null = null_of([getattr(other.forget[n], quantity) for other in permuted])
            value = Measured(float(getattr(one, quantity)), weights=null)
            found.append(MemoryRow("transformer", "depth", f"L{one.layer}", f"forget_matrix_{quantity}", value))
    return found
