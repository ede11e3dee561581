"""What a comparison says: rows of two sides, what they were asked for, and who differs most.

A row holds one quantity of one component on both sides. `delta` is b - a (what happens on the way from a to
b), except for `difference`, `pattern`, `message` and other vectors or maps, where it is the norm of the
difference. A quantity of both sides together (a cosine, an angle) has a against itself in `side_a` and a
against b in `side_b`, so that its delta is 0 for equal sides too. `rel` is delta / side_a. Position 0, where
attention sinks and their huge norms live, is kept apart in every summary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.models.load import Model
from mechview.models.one_stack import encoder_side
from mechview.models.trace import Trace
from mechview.models.tracing import Bos, Prompt, trace
from mechview.models.weights import ModelWeights, Stack
from mechview.residual.align import Alignment
from mechview.residual.grains import GRAINS, Grain
from mechview.residual.places import checked_position
from mechview.residual.readout import Target
from mechview.results import Result

NAME = re.compile(r"(?:([EX])\.)?L(\d+)(?:H(\d+))?(?:[.~<]|$)")
STACKS: dict[str, Stack] = {"E": "encoder", "X": "cross"}
NAN = float("nan")
Comparing = Literal["prompts", "positions", "sets", "models", "models by depth"]


@dataclass(frozen=True)
class Question:
    """What a comparison of passes is about: the grain, and the value of a component at a position.

    With a target (against another) or a direction the value is a share along it, otherwise a norm.
    """

    by: Grain = "head"
    target: Target | None = None
    against: Target | None = None
    direction: Float[Tensor, "d_model"] | None = None
    position: int | Any = -1
    bos: Bos = "auto"
    decoder: Prompt | None = None
    stack: Stack | None = None

    def __post_init__(self) -> None:
        if self.by not in GRAINS:
            raise UsageError(f"by={self.by!r} is not a grain; choose one of {', '.join(GRAINS)}")
        if self.by == "neuron":
            raise UsageError(
                "neurons have no rows to compare: a ledger keeps those that write most in its own prompt; "
                "compare by head or by layer, then read ledger(trace, by='neuron') of each side"
            )

        if self.stack == "cross":
            raise UsageError("cross-attention writes into the decoder's stream: compare the decoder")
        if self.stack not in (None, "encoder", "decoder"):
            raise UsageError(f"stack={self.stack!r} has no stream to compare; use encoder or decoder")
        if self.target is not None and self.direction is not None:
            raise UsageError("give a target token or a direction, one of the two")
        if self.against is not None and self.target is None:
            raise UsageError("against= needs a target: the difference of two logits is asked for")

    def of(self, seen: Trace) -> Trace:
        """The pass, or the encoder's part of it, if that is what is compared."""
        if self.stack == "encoder":
            return encoder_side(seen)
        if self.stack is not None and self.stack not in seen.weights.shape.stacks:
            raise UsageError(f"this {seen.weights.shape.family} has no {self.stack}")
        return seen

    def passed(self, model: Model, prompt: Prompt) -> Trace:
        """A pass over a prompt, as it is compared."""
        return self.of(trace(model, prompt, bos=self.bos, decoder=self.decoder))

    @property
    def quantity(self) -> Literal["share", "norm"]:
        return "norm" if self.target is None and self.direction is None else "share"


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of one component (at one pair of positions) on both sides; NaN where a side has none.

    `lo` and `hi` bound delta, `p` and `p_adjusted` are of a permutation test; `aligned` says how the two
    sides came to stand together (`same`, `substituted`, `inserted`, `deleted`, `depth`, `paired`, ...).
    """

    component: str
    quantity: str
    side_a: float
    side_b: float
    delta: float
    rel: float
    layer: int | None = None
    head: int | None = None
    kv_head: int | None = None
    position_a: int | None = None
    position_b: int | None = None
    lo: float = NAN
    hi: float = NAN
    p: float = NAN
    p_adjusted: float = NAN
    aligned: str = "same"


COLUMNS = (
    "model_a", "model_b", "component", "layer", "head", "kv_head", "position_a", "position_b",
    "quantity", "side_a", "side_b", "delta", "rel", "lo", "hi", "p", "p_adjusted", "aligned",
)  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """A component's place: the size of its difference away from position 0, and (NaN if none) at it."""

    component: str
    size: float
    first: float = NAN


@dataclass(frozen=True)
class Comparison(Result):
    """Rows, most of them one per component and aligned position.

    `leading` are the quantities that `ranked` uses, on their `delta` or `rel`. `aligned` is how two prompts
    were aligned, `asked` the pair of positions that a target was read at, `totals` the model's own value of
    it on each side, `error` the largest completeness error of both. `method` says how intervals and p values
    were made, `notes` what a reader must know, `tokens` both prompts as they are shown.
    """

    kind: Comparing
    model_a: str
    model_b: str
    by: Grain
    rows: tuple[Row, ...]
    identical: bool
    leading: tuple[str, ...]
    ranked_on: Literal["delta", "rel"] = "delta"
    aligned: Alignment | None = None
    asked: tuple[int, int] | None = None
    totals: tuple[float, float] | None = None
    error: float = 0.0
    method: str = ""
    notes: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    def of(self, quantity: str) -> tuple[Row, ...]:
        """The rows of one quantity.

        Raises:
            UsageError: the comparison does not have it.
        """
        found = tuple(row for row in self.rows if row.quantity == quantity)
        if not found:
            have = ", ".join(dict.fromkeys(row.quantity for row in self.rows))
            raise UsageError(f"this comparison of {self.kind} has no {quantity}; it has {have}")
        return found

    def ranked(self, quantity: str | None = None) -> tuple[Standing, ...]:
        """Components by the size of their difference, largest first.

        The root mean square over aligned positions, the first apart; at the asked positions alone for
        shares; the largest of several quantities where `leading` has several.
        """
        sizes: dict[str, Standing] = {}
        for name in (quantity,) if quantity else self.leading:
            for component, rows in self._by_component(name).items():
                best = sizes.get(component)
                one = _standing(component, rows, self.ranked_on)
                sizes[component] = one if best is None or one.size > best.size else best
        return tuple(sorted(sizes.values(), key=lambda standing: -standing.size))

    def records(self) -> list[dict[str, Any]]:
        """Rows as plain values, with exactly `COLUMNS`; missing numbers None or NaN."""
        sides = {"model_a": self.model_a, "model_b": self.model_b}
        plain = ({**sides, **asdict(row)} for row in self.rows)
        return [{column: record[column] for column in COLUMNS} for record in plain]

    def _by_component(self, quantity: str) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.of(quantity):
            here = quantity != "share" or self.asked is None or (row.position_a, row.position_b) == self.asked
            if here and not math.isnan(row.delta):
                found.setdefault(row.component, []).append(row)
        return found


def _standing(component: str, rows: Sequence[Row], on: Literal["delta", "rel"]) -> Standing:
    first = [row for row in rows if 0 in (row.position_a, row.position_b)]
    rest = [row for row in rows if 0 not in (row.position_a, row.position_b)]
    if not rest:
        return Standing(component, _size(first, on))
    return Standing(component, _size(rest, on), _size(first, on) if first else NAN)


def _size(rows: Sequence[Row], on: Literal["delta", "rel"]) -> float:
    return math.sqrt(sum(getattr(row, on) ** 2 for row in rows) / len(rows))


def relative_to(delta: float, reference: float) -> float:
    """`delta / reference`; 0 for no difference, infinite where the reference is 0."""
    if delta == 0.0:
        return 0.0
    return delta / abs(reference) if reference else math.copysign(math.inf, delta)


Placer = Callable[[str], dict[str, Any]]


def placer(weights: ModelWeights) -> Placer:
    """Layer, head and key/value head that a component's name means in a model; each layer is read once."""

    @cache
    def groups(layer: int, stack: Stack | None) -> list[int]:
        return weights.attention(layer, stack).kv_head.tolist()

    def place(component: str) -> dict[str, Any]:
        match = NAME.match(component)
        if match is None:
            return {"layer": None, "head": None, "kv_head": None}
        layer, head = int(match[2]), None if match[3] is None else int(match[3])
        kv_head = None if head is None else groups(layer, STACKS.get(match[1]))[head]
        return {"layer": layer, "head": head, "kv_head": kv_head}

    return cache(place)


def position_in(trace: Trace, position: int | Any) -> int:
    """A position counted from the start.

    Raises:
        UsageError: the prompt does not have it.
    """
    return checked_position(position, len(trace.tokens))


def alike(a: ModelWeights, b: ModelWeights) -> bool:
    """Whether layers and heads of two models stand one by one, in streams of one width."""
    shapes = a.shape, b.shape
    sizes = [(s.stacks, s.n_layers, s.n_encoder_layers, s.n_heads, s.d_model) for s in shapes]
    return sizes[0] == sizes[1]
