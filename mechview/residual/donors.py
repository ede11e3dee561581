"""What a component is replaced by: nothing, its mean over prompts, or its value on other prompts.

Values are gathered or put in one prompt at a time, so memory does not grow with the number of prompts: a mean is a
running sum, and prompts to resample from are run again by each use, one pass beside the many that the use makes.
Resampling, and a mean at each position by itself, need prompts of the same length as the one they are put into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import PromptError, UsageError
from mechview.models.intervene import recorded
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.models.tracing import Bos, Prompt, decoder_ids, encode
from mechview.models.weights import Stack
from mechview.reprs import short_repr
from mechview.residual.components import Component, Kind, components_of, value_of
from mechview.residual.places import checked_position

METHODS = ("zero", "mean", "resample")
EVERY: tuple[Kind, ...] = ("head", "attention", "mlp")


Values = Callable[[Component], Float[Tensor, "pos _width"]]


@dataclass(frozen=True)
class Donors:
    """Replacements of every component: `means` by name, or prompts to resample from, run anew for each use.

    `lengths` are those of the prompts' tokens where values belong to positions (own tokens, encoder's tokens).
    """

    __repr__ = short_repr

    method: str
    means: dict[str, Float[Tensor, "*pos _width"]] = field(default_factory=dict)
    model: Model | None = None
    prompts: tuple[Any, ...] = ()
    decoder: Any = None
    bos: Bos = "auto"
    lengths: tuple[int, int] | None = None

    def rounds(self, base: Trace) -> Iterator[Values]:
        """What is put in a component's place, once for each replacement; one donor's pass is alive at a time.

        Raises:
            PromptError: values at positions, from a prompt of another length.
        """
        if self.lengths is not None:
            check_lengths(lengths_of(base), self.lengths)
        if self.method != "resample":
            return iter([lambda part: self._constant(part, value_of(base, part))])
        others = passes(self.model, self.prompts, self.decoder, self.bos)  # type: ignore[arg-type]
        return map(partial(partial, value_of), others)  # unlike a loop, a map keeps nothing of what it gave

    def _constant(self, part: Component, own: Float[Tensor, "pos _width"]) -> Float[Tensor, "pos _width"]:
        return torch.zeros_like(own) if self.method == "zero" else self.means[part.name].to(own).expand_as(own)


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
    if method == "mean" and not per_position:
        return Donors(method, _means(model, passes(model, prompts or (), decoder, bos)))
    if prompts is None:
        return Donors(method)
    lengths = _one_length(model, prompts, decoder, bos, None if like is None else lengths_of(like))
    if per_position:
        found = _means(model, passes(model, prompts, decoder, bos), per_position=True)
        return Donors(method, found, lengths=lengths)
    return Donors(method, model=model, prompts=tuple(prompts), decoder=decoder, bos=bos, lengths=lengths)


def passes(model: Model, prompts: Sequence[Prompt], decoder: Prompt | None, bos: Bos) -> Iterator[Trace]:
    """The donors' passes, one at a time."""
    return (recorded(model, prompt, bos=bos, decoder=decoder) for prompt in prompts)


def _means(model: Model, donors: Iterator[Trace], per_position: bool = False) -> dict[str, Tensor]:
    """Means over all passes, which are dropped one by one, and over their positions unless these are kept apart."""
    parts = components_of(model.shape, EVERY)
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def add(seen: Trace) -> None:
        for part in parts:
            value = value_of(seen, part).double()
            summed = value if per_position else value.sum(0)
            sums[part.name] = sums[part.name] + summed if part.name in sums else summed
            counts[part.name] = counts.get(part.name, 0) + (1 if per_position else len(value))

    for _ in map(add, donors):
        pass  # a map lets go of each pass before the next begins
    return {name: total / counts[name] for name, total in sums.items()}


def _one_length(
    model: Model, prompts: Sequence[Prompt], decoder: Prompt | None, bos: Bos, like: tuple[int, int] | None
) -> tuple[int, int]:
    """The length that all donors share, read before any of them is run."""
    counts = [len(encode(model, prompt, bos)) for prompt in prompts]
    own = len(decoder_ids(model, decoder)) if model.shape.n_encoder_layers else 0
    found = [(own, count) if model.shape.n_encoder_layers else (count, 0) for count in counts]
    for each in found:
        check_lengths(like or found[0], each)
    return found[0]


def checked_positions(positions: Sequence[Any] | None, base: Trace, stack: Stack) -> tuple[int, ...] | None:
    """Positions of a stack's own tokens counted from 0.

    Raises:
        UsageError: a position that the prompt does not have.
    """
    if positions is None:
        return None
    length = len(base.tokens_of(stack)[0])
    return tuple(checked_position(n, length) for n in positions)


def lengths_of(trace: Trace) -> tuple[int, int]:
    """Numbers of the pass's own tokens and of its encoder's."""
    return len(trace.tokens), len(trace.source_tokens)


def check_same_length(one: Trace, other: Trace) -> None:
    """Raises PromptError: the prompts differ in length, so positions do not correspond."""
    check_lengths(lengths_of(one), lengths_of(other))


def check_lengths(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Raises PromptError: the prompts differ in length, so positions do not correspond."""
    for a, b in zip(one, other, strict=True):
        if a != b:
            raise PromptError(
                f"the prompts have {a} and {b} tokens; values are exchanged position by position, "
                "so they must have the same number"
            )
