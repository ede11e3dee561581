"""How people write the name of a head, and what is meant: `L5H1`, `5.1`, `L5.H1`, `(5, 1)`.

Layers and heads count from 0. Models with two stacks have prefixes: `E.` encoder, `X.` cross-attention;
a name without one means the decoder, or the only stack. Layers are listed (`0,3`) or given as Python
slices (`0:4` is 0, 1, 2, 3); a slice that goes beyond the model is an error, not a shorter slice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mechview.errors import HeadError, UsageError
from mechview.factors import check_head
from mechview.models.weights import ModelShape, Stack

NUMBERS = r"(?:L([0-9]{1,6})\.?H([0-9]{1,6})|([0-9]{1,6})\.([0-9]{1,6})|\(\s*([0-9]{1,6})\s*,\s*([0-9]{1,6})\s*\))"
HEAD = re.compile(rf"(?:([EX])\.)?{NUMBERS}", re.IGNORECASE | re.ASCII)
LAYERS = re.compile(r"(?P<one>[0-9]{1,6})|(?P<start>[0-9]{0,6}):(?P<stop>[0-9]{0,6})", re.ASCII)
Placed = tuple[Stack, int, int]
STACKS: dict[str, Stack] = {"E": "encoder", "X": "cross"}


@dataclass(frozen=True)
class HeadName:
    """A head somebody named; `stack` is None where no prefix was written."""

    layer: int
    head: int
    stack: Stack | None = None

    def __str__(self) -> str:
        prefix = {"encoder": "E.", "cross": "X."}.get(self.stack or "", "")
        return f"{prefix}L{self.layer}H{self.head}"


def is_head(text: str) -> bool:
    """Whether the text is a head's name rather than a model's."""
    return HEAD.fullmatch(text.strip()) is not None


def parse_head(text: str) -> HeadName:
    """The head that a name means.

    Raises:
        UsageError: the text is no head's name in any accepted spelling.
    """
    match = HEAD.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not the name of a head; write it as L5H1")
    layer, head = (int(number) for number in match.groups()[1:] if number is not None)
    return HeadName(layer, head, STACKS.get((match[1] or "").upper()))


def parse_heads(text: str) -> tuple[HeadName, ...]:
    """Names separated by commas; commas inside brackets belong to a name."""
    return tuple(parse_head(name) for name in re.split(r",(?![^(]*\))", text))


def placed_heads(
    heads: Iterable[str | HeadName | tuple[int, int]], shape: ModelShape, stack: Stack | None = None
) -> list[Placed]:
    """Stack, layer and head of heads given as labels, names or pairs.

    A name without a prefix means the decoder or the only stack (or `stack`); a bare pair the heads of that number in
    every stack (or in `stack`).

    Raises:
        HeadError: a stack, layer or head that the model does not have, or a name of another stack than `stack`.
    """
    found: list[Placed] = []
    for head in heads:
        name = parse_head(head) if isinstance(head, str) else head
        if isinstance(name, HeadName):
            if stack is not None and name.stack not in (None, stack):
                raise HeadError(f"{name} is a head of the {name.stack}, and heads of the {stack} are asked for")
            found.append((check_head(shape, name.layer, name.head, name.stack or stack), name.layer, name.head))
            continue
        count = max(shape.n_layers, shape.n_encoder_layers)
        there = [one for one in ([stack] if stack else shape.stacks) if name[0] not in range(shape.layers(one), count)]
        found += [(check_head(shape, name[0], name[1], one), name[0], name[1]) for one in there]
    return list(dict.fromkeys(found))


def parse_layers(text: str, count: int) -> tuple[int, ...]:
    """Layer numbers of a list of numbers and slices, in order and without repetition.

    Args:
        count: how many layers the model has.

    Raises:
        HeadError: a layer that the model does not have. UsageError: neither a number nor a slice.
    """
    found: set[int] = set()
    for part in text.split(","):
        found |= set(_layers(part.strip(), count))
    return tuple(sorted(found))


def _layers(part: str, count: int) -> range:
    match = LAYERS.fullmatch(part)
    if match is None:
        raise UsageError(f"{part!r} is not a layer; write 3, or 0:4 for layers 0 to 3")
    if match["one"]:
        chosen = range(int(match["one"]), int(match["one"]) + 1)
    else:
        chosen = range(int(match["start"] or 0), int(match["stop"] or count))
    if chosen and chosen[-1] >= count:
        raise HeadError(f"layer {chosen[-1]} does not exist: this model has layers 0 to {count - 1}")
    if not chosen:
        raise UsageError(f"{part!r} holds no layers: this model has layers 0 to {count - 1}")
    return chosen
