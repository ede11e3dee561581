"""The parts of a model that can be taken away or exchanged: heads, attention layers, MLPs.

Names are those of the ledger (`L5H1`, `L5.attn`, `L5.mlp`, with `E.` and `X.` in encoder-decoder models).
A head's value is its `z`, so an exchange takes the value-bias path along and leaves `b_O`; the value of a
whole layer is what it adds to the stream, biases included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from mechview.errors import HeadError, UsageError
from mechview.factors import head_label
from mechview.models.intervene import Place, Replacement
from mechview.models.trace import Trace, as_added
from mechview.models.weights import ModelShape, Stack
from mechview.residual.places import checked_position
from mechview.residual.readout import Target, as_target, before_cap, direction_name, vocabulary_weights
from mechview.residual.rows import mlp_added

Kind = Literal["head", "attention", "mlp"]
Named = str | tuple[int, int]


@dataclass(frozen=True)
class Component:
    """One head, attention layer or MLP."""

    name: str
    kind: Kind
    layer: int
    stack: Stack
    head: int | None = None

    @property
    def place(self) -> Place:
        return Place("z" if self.kind == "head" else self.kind, self.layer, self.stack)


def components_of(shape: ModelShape, kinds: Sequence[Kind]) -> tuple[Component, ...]:
    """All components of these kinds, in the order in which they write."""
    several = len(shape.stacks) > 1
    found: list[Component] = []
    for stream in shape.stacks[:2]:
        attentions: tuple[Stack, ...] = ("decoder", "cross") if several and stream == "decoder" else (stream,)
        for layer in range(shape.layers(stream)):
            for stack in attentions:
                found += _attention_parts(shape, layer, stack, several)
            place = head_label(layer, 0, stream, several).removesuffix("H0")
            found.append(Component(f"{place}.mlp", "mlp", layer, stream))
    return tuple(part for part in found if part.kind in kinds)


def _attention_parts(shape: ModelShape, layer: int, stack: Stack, several: bool) -> list[Component]:
    labels = [head_label(layer, head, stack, several) for head in range(shape.n_heads)]
    heads = [Component(label, "head", layer, stack, head) for head, label in enumerate(labels)]
    return [*heads, Component(f"{labels[0].removesuffix('H0')}.attn", "attention", layer, stack)]


def component(shape: ModelShape, named: Named) -> Component:
    """The component of a name, or of `(layer, head)`.

    Raises:
        HeadError: the model has no such component.
    """
    every = {part.name: part for part in components_of(shape, ("head", "attention", "mlp"))}
    name = named if isinstance(named, str) else f"L{named[0]}H{named[1]}"
    if name not in every:
        names = list(every)
        raise HeadError(f"component {name} does not exist: this model has {names[0]} to {names[-1]}")
    return every[name]


def value_of(trace: Trace, part: Component) -> Float[Tensor, "pos _width"]:
    """What the component had in this pass, in the units of its place: `z`, or what is added to the stream."""
    if part.kind == "mlp":
        seen, weights = trace.capture.mlp[part.stack, part.layer], trace.weights.mlp(part.layer, part.stack)
        return mlp_added(seen.written, seen, weights) / weights.multiplier
    attended = trace.attention(part.layer, part.stack)
    if part.head is not None:
        return attended.z[:, part.head]
    attention = trace.weights.attention(part.layer, part.stack)
    return as_added(attended.written, attended, attention) / attention.multiplier


def put_back(trace: Trace, shape: ModelShape) -> list[Replacement]:
    """Every head and MLP given what it has anyway: a pass that must come out unchanged."""
    return [Replacement(part.place, value_of(trace, part), part.head) for part in components_of(shape, ("head", "mlp"))]


@dataclass(frozen=True)
class Metric:
    """A logit, or a difference of logits, before any final soft-cap, at one position."""

    trace: Trace
    name: str
    weight: Float[Tensor, "d_vocab"]
    position: int

    def __call__(self, logits: Float[Tensor, "_row pos d_vocab"]) -> Float[Tensor, "_row"]:
        return before_cap(logits[:, self.position], self.trace.weights.ends()) @ self.weight.to(logits.device)

    def of(self, trace: Trace) -> float:
        """The metric in a recorded pass."""
        return float(self(trace.capture.logits[None])[0])  # type: ignore[index]


def metric_of(trace: Trace, target: Target | Any, against: Target | None, position: int | Any) -> Metric:
    """The metric of a target on a prompt.

    Raises:
        UsageError: no such position, or the model has no logits.
    """
    position = checked_position(position, len(trace.tokens))
    if as_target(target) is None:
        raise UsageError("say which token's logit is measured: target=")
    if trace.logits is None:
        raise UsageError("this model has no unembedding: there is no logit to measure")
    weight = vocabulary_weights(trace, target, against, trace.tokenizer)
    return Metric(trace, direction_name(target, against), weight, position)
