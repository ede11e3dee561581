"""What a component is worth: its direct effect beside the total effect of taking it away.

`direct` is what the component's write adds along the metric, later components as they were and norms frozen;
`total = metric(clean) - metric(ablated)`, everything downstream recomputed. Both are positive where the
component helps the metric, and `difference = direct - total` is positive where the rest of the model makes
up for the loss (self-repair; McGrath et al. 2023), the final norm's change of scale included (Rushing and
Nanda 2024). All three are in logits before any final soft-cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError, UsageError
from mechview.models.capture import AttentionCapture
from mechview.models.intervene import BATCH, Replacement, changed_passes, recorded
from mechview.models.load import Model
from mechview.models.norms import centred, fold_write, norm_scale
from mechview.models.trace import Trace, as_added
from mechview.models.tracing import Bos, Prompt
from mechview.models.weights import AttentionWeights, NormWeights, Stack
from mechview.residual.components import (
    Component,
    Metric,
    Named,
    component,
    components_of,
    metric_of,
    put_back,
    value_of,
)
from mechview.residual.donors import Donors, Values, checked_positions, donors_of
from mechview.residual.readout import Target, logit_direction
from mechview.residual.rows import mlp_added
from mechview.results import Result, check_count

NAN = float("nan")
SIGN = (
    "direct: along the metric with norms frozen; total: metric of the clean pass less that of the ablated one; "
    "difference = direct - total, positive where later components make up for the loss"
)


@dataclass(frozen=True)
class EffectRow:
    """One component. `direct` and `difference` are None where the model's head is not linear in the stream."""

    component: str
    stack: Stack
    layer: int
    head: int | None
    direct: float | None
    total: float
    difference: float | None


@dataclass(frozen=True)
class Effects(Result):
    """Effects on `metric` at `position`, in logits. `error` is of a pass with all values put back as they were."""

    rows: tuple[EffectRow, ...]
    clean: float
    error: float
    metric: str
    position: int
    method: str
    notes: tuple[str, ...] = (SIGN,)
    model: str = ""
    revision: str | None = None

    def row(self, name: str) -> EffectRow:
        found = next((row for row in self.rows if row.component == name), None)
        if found is None:
            raise UsageError(f"no effect of {name} was measured")
        return found

    def top(self, k: int | Any = 10) -> list[EffectRow]:
        """The k components with the largest total effect, by size."""
        check_count(k)
        return sorted(self.rows, key=lambda row: -abs(row.total))[:k]

    def records(self) -> list[dict[str, Any]]:
        """The table `effects`, one component a row."""
        shared = {"method": self.method, "metric": self.metric, "position": self.position}
        return [asdict(row) | shared for row in self.rows]


def effects(
    model: Model | Any,
    prompt: Prompt,
    target: Target | Any,
    against: Target | None = None,
    components: Sequence[Named] | None = None,
    position: int | Any = -1,
    method: str = "zero",
    prompts: Sequence[Prompt] | Donors | None = None,
    by: str = "head",
    *,
    positions: Sequence[int] | None = None,
    per_position: bool = False,
    decoder: Prompt | None = None,
    bos: Bos = "auto",
    batch_size: int = BATCH,
) -> Effects:
    """Direct and total effect of components on a logit, or on a difference of logits.

    A head is ablated by replacing its `z`: the value-bias path goes with it, `b_O` stays. Attention layers
    and MLPs are ablated whole, biases included. For `mean` and `resample` both effects are of the exchange,
    so `direct` is of the difference between the component's write and what is put in its place.

    Args:
        components: names (`L5H1`, `L5.attn`, `L5.mlp`) or `(layer, head)`; all of `by` unless given.
        position: where the metric is read.
        method: `zero`; `mean` over `prompts` and their positions; `resample` from each of `prompts`, position by
            position, effects averaged over them.
        by: `head` (heads and MLPs) or `layer` (attention layers and MLPs).
        positions: where the component is ablated, in its own stack's tokens; everywhere unless given.
            Prompts that serve many calls can be prepared once: `donors_of`.
        per_position: take the mean at each position by itself; the prompts must then be of one length.

    Raises:
        UsageError: an unknown component, position or target, or `prompts` that do not fit the method.
    """
    base = recorded(model, prompt, bos=bos, decoder=decoder)
    metric = metric_of(base, target, against, position)
    donors = prompts if isinstance(prompts, Donors) else donors_of(
        model, method, prompts, per_position=per_position, decoder=decoder, bos=bos, like=base
    )  # fmt: skip
    parts = _chosen(model, components, by)
    places = [(part, checked_positions(positions, base, part.stack)) for part in parts]
    counted, notes = _weighing(base, target, against, metric)
    clean = metric.of(base)
    null = changed_passes(model, base, [put_back(base, model.shape)], metric)
    exchange = partial(_exchanged, model, base, counted, metric, places, batch_size)
    kept = list(map(exchange, donors.rounds(base)))  # a map lets go of one donor before the next is run
    direct, total = torch.tensor(kept, dtype=torch.float64).mean(0).unbind(0)
    found = [_row(*each) for each in zip(parts, direct.tolist(), (clean - total).tolist(), strict=True)]
    size = max(abs(clean), *(abs(row.total) for row in found), 1e-30)
    error = abs(float(null[0]) - clean) / size
    return Effects(
        rows=tuple(found),
        clean=clean,
        error=error,
        metric=metric.name,
        position=metric.position,
        method=donors.method,
        notes=(SIGN, *notes),
        model=base.model,
        revision=base.revision,
    )


Weighing = dict[str, Float[Tensor, "_width"]]


def _row(part: Component, direct: float, total: float) -> EffectRow:
    """One component; a direct effect of NaN is one that does not exist."""
    known = direct == direct
    return EffectRow(
        part.name, part.stack, part.layer, part.head, direct if known else None, total, direct - total if known else None
    )  # fmt: skip


def _exchanged(
    model: Model, base: Trace, weighing: Weighing | None, metric: Metric,
    places: Sequence[tuple[Component, tuple[int, ...] | None]], batch_size: int, values: Values,
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Direct effect of each component, and the metric without it, when it is given these values."""
    puts = [Replacement(part.place, values(part), part.head, at) for part, at in places]
    measured = changed_passes(model, base, [[put] for put in puts], metric, batch_size=batch_size)
    direct = [
        NAN if weighing is None else direct_effect(base, weighing, metric.position, part, put)
        for (part, _), put in zip(places, puts, strict=True)
    ]
    return direct, measured.tolist()


def direct_effect(base: Trace, weighing: Weighing, position: int, part: Component, put: Replacement) -> float:
    """The exchanged write along the metric at its position.

    0 for the encoder of an encoder-decoder model, which reaches the logits through other components only,
    and where the position is not among those ablated.
    """
    if part.name not in weighing or (put.positions is not None and position not in put.positions):
        return 0.0
    return float((value_of(base, part)[position].double() - put.value[position].double()) @ weighing[part.name])


def _weighing(
    base: Trace, target: Target, against: Target | None, metric: Metric
) -> tuple[Weighing | None, tuple[str, ...]]:
    """What a component's value counts for in the metric, or the sentence why that does not exist."""
    cap = base.weights.ends().softcap
    notes = () if cap is None else (f"effects are on the logit before the model's final soft-cap of {cap:g}",)
    try:
        goal = logit_direction(base, target, against, base.tokenizer)
    except UnsupportedError as error:
        return None, (*notes, f"direct effects do not exist: {error}")
    return weighing(base, goal.vectors, metric.position), notes


def weighing(trace: Trace, direction: Float[Tensor, "pos d_model"], position: int) -> Weighing:
    """By component, the vector that its value at a position is met with: `direct = value . vector`.

    A direction at the final stream is taken back through the frozen norms of the stream, a head's through
    the frozen post-norm and `W_O` too.
    """
    stack, D = trace.stack, direction
    found: Weighing = {}
    attentions: tuple[Stack, ...] = ("cross", stack) if len(trace.weights.shape.stacks) > 1 else (stack,)
    parts = components_of(trace.weights.shape, ("head", "attention", "mlp"))
    for layer in reversed(range(trace.weights.shape.layers(stack))):
        mlp, wrote = trace.weights.mlp(layer, stack), trace.capture.mlp[stack, layer]
        D = _before(mlp.stream_norm, wrote.stream.double() + mlp_added(wrote.written.double(), wrote, mlp), D)
        here = [part for part in parts if part.layer == layer]
        found |= {part.name: D[position] * mlp.multiplier for part in here if (part.kind, part.stack) == ("mlp", stack)}
        for name in attentions:
            weights, seen = trace.weights.attention(layer, name), trace.attention(layer, name)
            D = _before(weights.stream_norm, seen.stream.double() + as_added(seen.written.double(), seen, weights), D)
            back = D[position] * weights.multiplier
            each = weights.W_O.double() @ (fold_write(back, weights.post_norm) / _post_scale(seen, weights, position))
            for part in here:
                if part.kind != "mlp" and part.stack == name:
                    found[part.name] = back if part.head is None else each[part.head]
    return found


def _post_scale(seen: AttentionCapture, weights: AttentionWeights, position: int) -> Float[Tensor, "1"]:
    return norm_scale(seen.written[position].double(), weights.post_norm)


def _before(norm: NormWeights, stream: Float[Tensor, "pos d_model"], D: Tensor) -> Tensor:
    return centred(fold_write(D, norm), norm) / norm_scale(stream, norm)


def _chosen(model: Model, components: Sequence[Named] | None, by: str) -> tuple[Component, ...]:
    if by not in ("head", "layer"):
        raise UsageError(f"by={by!r} is not a grain of effects; choose head or layer")
    if components is None:
        return components_of(model.shape, ("head", "mlp") if by == "head" else ("attention", "mlp"))
    if not components:
        raise UsageError("there are no components to ablate")
    return tuple(component(model.shape, named) for named in components)
