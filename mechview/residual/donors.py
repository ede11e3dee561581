"""What a component is replaced by: nothing, its mean over prompts, or its value on other prompts.

Values of a mean are gathered one prompt at a time, so memory does not grow with the number of prompts; only
resampling, and a mean at each position by itself, need prompts of the same length as the one they are put into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import PromptError, UsageError
from mechview.models.intervene import recorded
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.models.tracing import Bos, Prompt
from mechview.models.weights import Stack
from mechview.residual.components import Component, Kind, components_of, mean_values, value_of

METHODS = ("zero", "mean", "resample")
EVERY: tuple[Kind, ...] = ("head", "attention", "mlp")


@dataclass(frozen=True)
class Donors:
    """Replacements of every component: `means` by name, or the traces that values are taken from."""

    method: str
    means: dict[str, Float[Tensor, "_width"]] = field(default_factory=dict)
    traces: tuple[Trace, ...] = ()
    per_position: bool = False

    def values(self, part: Component, base: Trace) -> list[Float[Tensor, "pos _width"]]:
        """What is put in the component's place in this pass, once for each replacement.

        Raises:
            PromptError: values at positions, from a prompt of another length.
        """
        own = value_of(base, part)
        if self.method == "zero":
            return [torch.zeros_like(own)]
        if self.means:
            return [self.means[part.name].to(own).expand_as(own)]
        for other in self.traces:
            check_same_length(base, other)
        if self.method == "mean":
            return [mean_values(self.traces, part, len(own), self.per_position)]
        return [value_of(donor, part) for donor in self.traces]


def donors_of(
    model: Model, method: str, prompts: Sequence[Prompt] | None = None, *, per_position: bool = False,
    decoder: Prompt | None = None, bos: Bos = "auto", like: Trace | None = None,
) -> Donors:  # fmt: skip
    """Replacements made from prompts, for use in many calls of `effects`.

    Raises:
        UsageError: an unknown method, or prompts that do not fit it. PromptError: not of the length of `like`.
    """
    if method not in METHODS:
        raise UsageError(f"method={method!r} is not an ablation; choose one of {', '.join(METHODS)}")
    if (method == "zero") != (prompts is None):
        raise UsageError(f"{method} ablation {'takes no' if method == 'zero' else 'needs'} prompts")
    if per_position and method != "mean":
        raise UsageError(f"per_position belongs to mean ablation, not to {method}")
    if prompts is not None and (isinstance(prompts, str) or not prompts):
        raise UsageError("prompts is a list of at least one prompt, not one text")
    passes = (recorded(model, prompt, bos=bos, decoder=decoder) for prompt in prompts or ())
    if method == "mean" and not per_position:
        return Donors(method, _means(model, passes))
    traces = tuple(passes)
    if like is not None:
        for other in traces:
            check_same_length(like, other)
    return Donors(method, {}, traces, per_position)


def _means(model: Model, passes: Iterator[Trace]) -> dict[str, Tensor]:
    """Means over all positions of all passes, which are dropped one by one."""
    parts = components_of(model.shape, EVERY)
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for seen in passes:
        for part in parts:
            value = value_of(seen, part).double()
            sums[part.name] = sums[part.name] + value.sum(0) if part.name in sums else value.sum(0)
            counts[part.name] = counts.get(part.name, 0) + len(value)
    return {name: total / counts[name] for name, total in sums.items()}


def checked_positions(positions: Sequence[int] | None, base: Trace, stack: Stack) -> tuple[int, ...] | None:
    """Positions of a stack's own tokens counted from 0.

    Raises:
        UsageError: a position that the prompt does not have.
    """
    if positions is None:
        return None
    length = len(base.tokens_of(stack)[0])
    outside = next((n for n in positions if not -length <= n < length), None)
    if outside is not None:
        raise UsageError(f"position {outside} does not exist: the prompt has positions 0 to {length - 1}")
    return tuple(n % length for n in positions)


def check_same_length(one: Trace, other: Trace) -> None:
    """Raises PromptError: the prompts differ in length, so positions do not correspond."""
    for a, b in ((one.tokens, other.tokens), (one.source_tokens, other.source_tokens)):
        if len(a) != len(b):
            raise PromptError(
                f"the prompts have {len(a)} and {len(b)} tokens; values are exchanged position by position, "
                "so they must have the same number"
            )
