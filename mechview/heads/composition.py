"""Who composes with whom: Q-, K- and V-composition of all pairs of heads, beside two nulls.

Definition (full factor, Elhage et al. 2021), sender 1 in an earlier layer than receiver 2, Frobenius norms:

    Q: |M1 P2| / (|M1| |P2|)      K: |M1 P2^T| / (|M1| |P2|)      V: |M1 M2| / (|M1| |M2|)

with `M = W_V W_O` and `P = W_Q R(offset) W_K^T`, norms folded unless asked otherwise. Other tools take W_Q alone; such
numbers cannot be compared. `definition="kernel"` ignores the maps' singular values: overlap of the span written with
the span read, `|U^T V|^2 / sqrt(r1 r2)`, null `r/d`. Order is the order of execution: heads of one layer never
compose, parallel blocks included; a decoder's self-attention feeds the cross-attention of its own layer; encoder
heads feed keys and values of cross-attention through the encoder's final norm. In post-norm models a write is
carried to its reader through gain and centring of every norm between, their scales frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechview.errors import UsageError
from mechview.heads.composing import Ends, null_squares, scores, shuffled
from mechview.heads.meetings import earlier, meetings
from mechview.models.reader import check_layer
from mechview.models.weights import HasWeights, ModelWeights, Stack, weights_of
from mechview.results import Result

KINDS, DEFINITIONS = ("Q", "K", "V"), ("full", "kernel")
BAND = 1.959964  # 95 % of a normal distribution
SHUFFLES = 4
FORMULAS = {
    "Q": "|M1 P2| / (|M1| |P2|)",
    "K": "|M1 P2^T| / (|M1| |P2|)",
    "V": "|M1 M2| / (|M1| |M2|)",
    "kernel": "|U^T V|^2 / sqrt(r1 r2), U written span, V read span",
}
Values = Float[Tensor, "src_layer src_head dst_layer dst_head"]


@dataclass(frozen=True)
class Composition(Result):
    """`values[src_layer, src_head, dst_layer, dst_head]`, NaN where the sender does not come before the receiver.

    `null` is the value of a writer turned at random (root mean square, of the kernel the mean), `spread` the standard
    deviation of its squared score (of the kernel itself), `shuffled` the mean over `shuffles` draws in which every
    writer's output coordinates were permuted, NaN without draws.
    """

    kind: str
    definition: str
    values: Values = field(repr=False)
    null: Values = field(repr=False)
    spread: Values = field(repr=False)
    shuffled: Values = field(repr=False)
    shuffles: int
    offset: int | None
    source: Stack
    stack: Stack
    source_kv: Int[Tensor, "head"] = field(repr=False)
    kv: Int[Tensor, "head"] = field(repr=False)
    several: bool
    folded: bool
    model: str = "arrays"
    revision: str | None = None

    @property
    def formula(self) -> str:
        return FORMULAS[self.kind if self.definition == "full" else "kernel"]

    @cached_property
    def z(self) -> Values:
        """Distance from the rotation null in its standard deviations, where it is normal: squared scores."""
        if self.definition == "kernel":
            return (self.values - self.null) / self.spread
        return (self.values.square() - self.null.square()) / self.spread

    @property
    def excess(self) -> Values:
        return self.values - self.null

    def band(self) -> tuple[Values, Values]:
        """Scores between which 95 % of random writers fall."""
        if self.definition == "kernel":
            return (self.null - BAND * self.spread).clamp_min(0), self.null + BAND * self.spread
        middle = self.null.square()
        low, high = middle - BAND * self.spread, middle + BAND * self.spread
        return low.clamp_min(0).sqrt(), high.sqrt()


def compose(
    weights: ModelWeights | HasWeights,
    kind: str = "K",
    offset: int = 0,
    *,
    definition: str = "full",
    stack: Stack | None = None,
    source: Stack | None = None,
    fold: bool = True,
    shuffles: int = SHUFFLES,
    seed: int = 0,
) -> Composition:
    """Composition of every head with every later one.

    Args:
        kind: which input of the receiver the sender feeds: `Q`, `K` or `V`.
        offset: `q_pos - k_pos` at which rotary patterns are taken.
        definition: `full` or `kernel`; see the module's text.
        stack: the receivers' stack (`decoder`, or the only one); `source`: the senders', the same unless given.
        shuffles: draws of the second null; 0 leaves it out.

    Raises:
        UsageError: a kind, definition or pair of stacks that does not exist.
    """
    return compositions(
        weights, (kind,), offset, definition=definition, stack=stack, source=source, fold=fold, shuffles=shuffles,
        seed=seed,
    )[kind]  # fmt: skip


@torch.no_grad()
def compositions(
    weights: ModelWeights | HasWeights,
    kinds: Sequence[str] = KINDS,
    offset: int = 0,
    *,
    definition: str = "full",
    stack: Stack | None = None,
    source: Stack | None = None,
    fold: bool = True,
    shuffles: int = SHUFFLES,
    seed: int = 0,
) -> dict[str, Composition]:
    """Several kinds at once: every layer is read once, and the writers' side is worked out once."""
    about, weights = getattr(weights, "source", None), weights_of(weights)
    _check(kinds, definition, offset, shuffles)
    stack = check_layer(weights.shape, 0, stack)
    source = stack if source is None else check_layer(weights.shape, 0, source)
    before = {kind: earlier(weights.shape, source, stack, kind) for kind in kinds}
    shape = (weights.shape.layers(source), weights.shape.n_heads, weights.shape.layers(stack), weights.shape.n_heads)
    fields, nan = ("values", "spread", "null", "shuffled"), torch.nan
    found: dict[str, dict[str, Any]] = {
        kind: {name: torch.full(shape, nan, dtype=torch.float64) for name in fields} for kind in kinds
    }
    generator, kernel = torch.Generator().manual_seed(seed), definition == "kernel"
    for layers, senders, receivers in meetings(weights, kinds, offset, definition, stack, source, fold):
        pairs = {kind: _spread_out(before[kind][:, layers], weights.shape.n_heads) for kind in kinds}
        met = _met(senders, receivers, pairs, weights.shape.d_model, kernel, shuffles, generator)
        for kind in kinds:
            _put(found[kind], layers, met[kind])
    first, then = weights.attention(0, source), weights.attention(0, stack)
    shared: dict[str, Any] = dict(
        definition=definition, offset=None if then.rotary is None else offset, source=source, stack=stack,
        source_kv=first.kv_head, kv=then.kv_head, folded=fold, shuffles=shuffles, several=len(weights.shape.stacks) > 1,
        model=getattr(about, "name", "arrays"), revision=getattr(about, "revision", None),
    )  # fmt: skip
    return {kind: Composition(kind=kind, **shared, **found[kind]) for kind in kinds}


def _check(kinds: Sequence[str], definition: str, offset: int, shuffles: int) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"kind={kind!r} is not a kind of composition; use Q, K or V")
    if definition not in DEFINITIONS:
        raise UsageError(f"definition={definition!r} is not a definition; use {' or '.join(DEFINITIONS)}")
    if isinstance(shuffles, bool) or not isinstance(shuffles, int) or shuffles < 0:
        raise UsageError(f"shuffles={shuffles!r} counts draws: 0 or more")


def _spread_out(before: Tensor, heads: int) -> Bool[Tensor, "sender receiver"]:
    return before.repeat_interleave(heads, 0).repeat_interleave(heads, 1)


Met = dict[str, Tensor]


def _met(
    senders: Ends, receivers: dict[str, Ends], pairs: dict[str, Tensor], d_model: int, kernel: bool, shuffles: int,
    generator: torch.Generator,
) -> dict[str, Met]:  # fmt: skip
    """Values, nulls and spreads of one meeting, kind by kind."""
    kinds, wanted = list(receivers), torch.stack(list(pairs.values())).any(0)
    ends = [receivers[kind] for kind in kinds]
    values = scores(senders, ends, wanted)
    totals = [torch.zeros_like(value) for value in values]
    for _ in range(shuffles):
        drawn = scores(shuffled(senders, generator), ends, wanted)
        totals = [total + (x.square() if kernel else x) for total, x in zip(totals, drawn, strict=True)]
    found = {}
    for kind, readers, value, total in zip(kinds, ends, values, totals, strict=True):
        mean, spread = null_squares(senders, readers, d_model)
        met = {"values": value, "spread": spread, "null": torch.full_like(value, mean**0.5)}
        if kernel:  # a span of rank r has spread 1/r
            size = 1 / (senders.spread[:, None] * readers.spread[None, :]).sqrt()
            met = {"values": value.square() * size, "spread": spread * size, "null": mean * size}
            total = total * size
        met["shuffled"] = total / max(shuffles, 1) if shuffles else torch.full_like(value, torch.nan)
        found[kind] = {name: x.masked_fill(~pairs[kind], torch.nan) for name, x in met.items()}
    return found


def _put(whole: dict[str, Tensor], layers: slice, met: Met) -> None:
    for name, part in met.items():
        place = whole[name][:, :, layers]
        place.copy_(part.view(place.shape))
