"""Scores of all pairs of tokens, `rows @ columns^T`, streamed in blocks: the vocabulary's square never exists.

One pass finds the highest and lowest pairs, where each token's own column ranks in its row, and the sum of all
scores. Mean and spread of all scores also follow from r x r products alone, so the streamed sum is checked against
one that no block took part in. Ties count against the diagonal: a head that scores everything alike finds nothing.
Memory is a few blocks of `NUMBERS` scores beside the thin factors; time is one multiply of `V x r x V`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

NUMBERS = 2**23  # scores in memory at once: 32 MB in float32


@dataclass(frozen=True)
class Thin:
    """Both sides of a circuit over the kept tokens: `score[i, j] = rows[i] . columns[j]`."""

    rows: Float[Tensor, "row rank"]
    columns: Float[Tensor, "column rank"]

    def at(self, i: Tensor, j: Tensor) -> Float[Tensor, "pair"]:
        """Single scores, in float64."""
        return (self.rows[i].double() * self.columns[j].double()).sum(-1)

    def blocks(self, numbers: int = NUMBERS) -> Iterator[tuple[slice, Float[Tensor, "row column"]]]:
        """Scores, some rows at a time; each block is overwritten by the next."""
        step = max(1, min(len(self.rows), numbers // max(1, len(self.columns))))
        room = self.rows.new_empty(step, len(self.columns))
        for start in range(0, len(self.rows), step):
            part = self.rows[start : start + step]
            yield slice(start, start + len(part)), torch.mm(part, self.columns.mT, out=room[: len(part)])

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of all scores, from sums and r x r products in float64."""
        rows, columns = self.rows.double(), self.columns.double()
        mean = float(rows.mean(0) @ columns.mean(0))
        second = float(((rows.mT @ rows) * (columns.mT @ columns)).sum()) / (len(rows) * len(columns))
        return mean, math.sqrt(max(0.0, second - mean**2))


@dataclass(frozen=True)
class Pairs:
    """Some pairs of tokens (places among the kept ones) with their scores, best first."""

    row: Int[Tensor, "pair"]
    column: Int[Tensor, "pair"]
    score: Float[Tensor, "pair"]


@dataclass(frozen=True)
class Sweep:
    """What one pass over all pairs found. `above[i]`: other columns of row i that score at least as its own."""

    high: Pairs
    low: Pairs
    above: Int[Tensor, "row"] | None
    below: Int[Tensor, "row"] | None
    total: float


def sweep(thin: Thin, k: int, each: int | None = None, square: bool = True, numbers: int = NUMBERS) -> Sweep:
    """The k highest and k lowest pairs, at most `each` of one row, and ranks of the diagonal (of a square)."""
    high, low = Best(k, each, largest=True), Best(k, each, largest=False)
    above: list[Tensor] = []
    below: list[Tensor] = []
    total, room = 0.0, thin.rows.new_empty(0)
    for place, scores in thin.blocks(numbers):
        total += float(scores.sum(1).sum(dtype=torch.float64))
        if square:
            own = scores[:, place].diagonal()[:, None]
            room = room if room.numel() else torch.empty_like(scores)
            above.append(_count(torch.ge, scores, own, room))
            below.append(_count(torch.le, scores, own, room))
        high.add(place.start, scores, scores.amax(1))
        low.add(place.start, scores, scores.amin(1))
    if not square:
        return Sweep(high.pairs(), low.pairs(), None, None, total)
    return Sweep(high.pairs(), low.pairs(), torch.cat(above), torch.cat(below), total)


def _count(compare: Callable[..., Tensor], scores: Tensor, own: Tensor, room: Tensor) -> Int[Tensor, "row"]:
    """How many others of each row compare so; counted in floating point, which is exact here and five times as fast."""
    return compare(scores, own, out=room[: len(scores)]).sum(1).long() - 1


class Best:
    """The best pairs so far; a row that cannot better the worst of them is not searched."""

    def __init__(self, k: int, each: int | None, largest: bool) -> None:
        self.k, self.each, self.largest = k, each, largest
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []
        self.bound = -math.inf if largest else math.inf

    def add(self, start: int, scores: Float[Tensor, "row column"], edge: Float[Tensor, "row"]) -> None:
        """Search the next block, whose best score in each row is `edge`."""
        rows = ((edge > self.bound) if self.largest else (edge < self.bound)).nonzero().flatten()
        if len(rows) > self.k:  # a row whose best is beaten by k others has no place
            rows = rows[edge[rows].topk(self.k, largest=self.largest).indices]
        if not len(rows):
            return
        width = min(self.each or self.k, scores.shape[1])
        top = scores[rows].topk(width, dim=1, largest=self.largest)
        row = (rows + start)[:, None].expand(-1, width)
        self.found.append((row.flatten(), top.indices.flatten(), top.values.flatten()))
        self._shorten()

    def _shorten(self) -> None:
        row, column, score = (torch.cat(parts) for parts in zip(*self.found, strict=True))
        order = score.sort(descending=self.largest, stable=True).indices[: self.k]
        self.found = [(row[order], column[order], score[order])]
        if len(order) == self.k:
            self.bound = float(score[order[-1]])

    def pairs(self) -> Pairs:
        return Pairs(*self.found[0])


def best_columns(thin: Thin, rows: Int[Tensor, "row"], k: int) -> tuple[Pairs, Pairs]:
    """The k highest and k lowest columns of each of some rows, row by row."""
    scores = thin.rows[rows] @ thin.columns.mT
    found = []
    for largest in (True, False):
        top = scores.topk(min(k, scores.shape[1]), dim=1, largest=largest)
        found.append(Pairs(rows[:, None].expand_as(top.indices).flatten(), top.indices.flatten(), top.values.flatten()))
    return found[0], found[1]


def diagonal_share(above: Int[Tensor, "row"], k: int) -> float:
    """Share of tokens whose own column is among the k best of its row."""
    return float((above < k).double().mean())


def sampled_ranks(
    thin: Thin, rows: Int[Tensor, "row"], turn: Float[Tensor, "rank rank"] | None = None
) -> tuple[Int[Tensor, "row"], Int[Tensor, "row"]]:
    """Ranks of the diagonal from above and below, for some rows; `turn` comes between the two sides."""
    left = thin.rows if turn is None else thin.rows @ turn.to(thin.rows)
    above, below = [], []
    for part in rows.split(max(1, NUMBERS // len(thin.columns))):
        scores = left[part] @ thin.columns.mT
        own = scores.gather(1, part[:, None])
        above.append((scores >= own).sum(1) - 1)
        below.append((scores <= own).sum(1) - 1)
    return torch.cat(above), torch.cat(below)


def random_turn(rank: int, generator: torch.Generator) -> Float[Tensor, "rank rank"]:
    """A rotation drawn evenly from all (Haar; Mezzadri 2007)."""
    Q, R = torch.linalg.qr(torch.randn(rank, rank, generator=generator, dtype=torch.float64))
    return Q * R.diagonal().sign()
