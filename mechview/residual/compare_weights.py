"""Two records of weights, number by number: how far apart all their tensors are, and whether they are equal.

A record is any of the frozen records of `mechview.models.weights`; nested ones (norms, rotary embeddings) are
walked, single real numbers count as tensors, and a tensor that one side lacks counts as zeros. Words and whole
numbers (kinds of norm, windows, groups of heads) are equal or not. Tensors of different shape (a vocabulary
that grew) have no difference: they are named in a note.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from mechview.models.weights import Rotary

PLACE = ("layer", "stack")


@dataclass(frozen=True)
class Difference:
    """Norms of both sides and of their difference, over all tensors of both; `identical` is bit by bit."""

    component: str
    size_a: float
    size_b: float
    apart: float
    identical: bool
    notes: tuple[str, ...]


def record_difference(component: str, a: Any, b: Any, skip: tuple[str, ...] = ()) -> Difference:
    """Difference of two records of one kind, without the fields in `skip`."""
    parts_a, parts_b = dict(numbers(a, skip)), dict(numbers(b, skip))
    words = dict(words_of(a, skip)) == dict(words_of(b, skip))
    notes, squares, sizes = [], 0.0, [0.0, 0.0]
    for name in dict.fromkeys((*parts_a, *parts_b)):
        x, y = parts_a.get(name), parts_b.get(name)
        sizes = [size + _square(side) for size, side in zip(sizes, (x, y), strict=True)]
        if x is not None and y is not None and x.shape != y.shape:
            notes.append(f"{component}: {name} has shapes {list(x.shape)} and {list(y.shape)}: not compared")
        else:
            squares += _square(x if y is None else y if x is None else _minus(x, y))
    kept = (f"{component}: words or whole numbers of the configuration differ",) if not words else ()
    return Difference(
        component, math.sqrt(sizes[0]), math.sqrt(sizes[1]), math.sqrt(squares),
        identical=words and not notes and squares == 0.0 and parts_a.keys() == parts_b.keys(),
        notes=(*notes, *kept),
    )  # fmt: skip


def equal_fields(a: Any, b: Any, names: tuple[str, ...]) -> bool:
    """Whether tensors of two records are equal, number by number."""
    pairs = [(getattr(a, name), getattr(b, name)) for name in names]
    return all(x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)


def numbers(record: Any, skip: tuple[str, ...] = (), prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every real number of a record, by name."""
    for name, value in _fields(record, skip):
        if isinstance(value, Tensor) and value.is_floating_point():
            yield prefix + name, value
        elif isinstance(value, float):
            yield prefix + name, torch.tensor(float(value), dtype=torch.float64)
        elif is_dataclass(value):
            yield from numbers(value, prefix=f"{prefix}{name}.")
        elif isinstance(value, tuple):
            yield from numbers(dict(enumerate(value)), prefix=f"{prefix}{name}.")
    if isinstance(record, Rotary):
        frequency, factor = record.frequencies(None)
        yield f"{prefix}frequencies", frequency.double() * factor


def words_of(record: Any, skip: tuple[str, ...] = (), prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every word and whole number of a record."""
    for name, value in _fields(record, skip):
        if isinstance(value, str | int):
            yield prefix + name, str(value)
        elif isinstance(value, Tensor) and not value.is_floating_point():
            yield prefix + name, str(value.tolist())
        elif is_dataclass(value):
            yield from words_of(value, prefix=f"{prefix}{name}.")


def _fields(record: Any, skip: tuple[str, ...]) -> list[tuple[str, Any]]:
    if isinstance(record, dict):
        return [(str(name), value) for name, value in record.items()]
    return [(f.name, getattr(record, f.name)) for f in fields(record) if f.name not in (*PLACE, *skip)]


def _minus(x: Tensor, y: Tensor) -> Tensor:
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return x.to(dtype) - y.to(dtype)


def _square(x: Tensor | None) -> float:
    return 0.0 if x is None else float(torch.linalg.vector_norm(x, dtype=torch.float64).square())
