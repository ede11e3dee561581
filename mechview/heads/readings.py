"""What each singular component of a head reads and writes, as tokens (Millidge and Black 2022).

Of the message `M = sum sigma u v^T`: tokens whose rows lie along u are read, tokens whose logits lie along v are
written; of the pattern, query tokens along u and key tokens along v. The sign of a component is free, so both ends
are listed, and the ends of one sign belong together. Components whose singular values lie within 1 % of a neighbour
are flagged: only the span of such a group is determined, not its directions. Control: `coherence` is the mean cosine
between the (centred) embeddings of the listed tokens; beside it the same for lists of tokens in a shuffled
vocabulary, and for the lists of random directions of the stream. A list no more coherent than those of random
directions says nothing about the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import head_factors
from mechview.heads.meetings import close_pairs
from mechview.heads.vocabulary import Reading, embedding, kept_ids, key_rows, query_rows, unembedding
from mechview.heads.weight_scores import named
from mechview.models.weights import AttentionWeights, HasWeights, ModelWeights, Stack, weights_of
from mechview.results import Result
from mechview.tokens import Token, describe

ENDS = {"message": ("read", "written"), "pattern": ("query", "key")}
DRAWS = 32


@dataclass(frozen=True)
class TokenList:
    """Tokens at one end and of one sign of one component, strongest first, and how alike their embeddings are."""

    index: int
    sigma: float
    share: float
    degenerate: bool
    end: str
    sign: int
    ids: Int[Tensor, "token"]
    values: Float[Tensor, "token"]
    coherence: float
    shuffled_mean: float
    shuffled_sd: float
    random_mean: float
    random_sd: float


@dataclass(frozen=True)
class Readings(Result):
    """Token lists of the largest components of one head's pattern or message."""

    side: str
    label: str
    layer: int
    head: int
    kv_head: int
    stack: Stack
    offset: int | None
    reading: Reading
    lists: tuple[TokenList, ...]
    tokens: dict[int, Token] = field(repr=False)
    excluded: int
    n: int
    model: str = "arrays"
    revision: str | None = None


@torch.no_grad()
def svd_readings(
    model: ModelWeights | HasWeights, *, layer: int, head: int, side: str = "message", components: int = 4, k: int = 8,
    offset: int = 0, space: str = "embed", rows: str = "raw", centre: bool = True, fold: bool = True,
    stack: Stack = "decoder", draws: int = DRAWS, seed: int = 0,
) -> Readings:  # fmt: skip
    """Tokens along the largest components of a head's message or pattern, at both ends.

    Raises:
        UsageError: a side that does not exist, or counts below 1. UnsupportedError: a message without linear logits.
    """
    if side not in ENDS:
        raise UsageError(f"side={side!r} is not a side of a head; use pattern or message")
    if min(components, k, draws) < 1:
        raise UsageError("components, k and draws count things: they must be at least 1")
    weights, reading = weights_of(model), Reading(space, rows, centre).checked()
    factors = head_factors(weights, layer=layer, head=head, fold=fold, stack=stack)
    attention, tokenizer = weights.attention(layer, factors.stack), getattr(model, "tokenizer", None)
    ids = kept_ids(weights.shape.d_vocab, tokenizer)
    at = offset if factors.needs_offset and side == "pattern" else None
    U, S, Vh = (factors.message if side == "message" else factors.pattern(at)).svd()
    readers = _readers(weights, side, ids, reading, attention, fold)
    names = _unit_embedding(weights, ids)
    made = _Listing(ids, names, k, draws, torch.Generator().manual_seed(seed))
    degenerate, total, found = close_pairs(S[None])[0], float(S.double().square().sum()), []
    for end, read, directions in zip(ENDS[side], readers, (U.mT, Vh), strict=True):
        count = min(components, len(S))
        found += made.lists(end, read, directions[:count].double(), S.double(), degenerate, total)
    shown = sorted({i for part in found for i in part.ids.tolist()})
    return Readings(
        side=side, label=factors.label, layer=layer, head=head, kv_head=factors.kv_head, stack=factors.stack, offset=at,
        reading=reading, lists=tuple(sorted(found, key=lambda part: (part.index, part.end, -part.sign))),
        tokens={token.id: token for token in describe(shown, tokenizer)}, excluded=weights.shape.d_vocab - len(ids),
        n=draws, **named(model),
    )  # fmt: skip


Read = Callable[[Float[Tensor, "n d_model"]], Float[Tensor, "n token"]]


def _readers(
    weights: ModelWeights, side: str, ids: Tensor, reading: Reading, attention: AttentionWeights, fold: bool
) -> tuple[Read, Read]:
    """For each end, what takes directions `[n, d_model]` to values `[n, token]`."""
    keys = key_rows(weights, ids, reading, attention, fold)
    if side == "message":
        readout = unembedding(weights, weights.ends(), ids, attention.stack, reading, fold)
        return (lambda D: keys.through(lambda x: x @ D.mT).mT), readout.read
    queries = query_rows(weights, ids, reading, attention, fold)
    return (lambda D: queries.through(lambda x: x @ D.mT).mT), (lambda D: keys.through(lambda x: x @ D.mT).mT)


def _unit_embedding(weights: ModelWeights, ids: Tensor) -> Float[Tensor, "token d_model"]:
    """Centred embeddings of norm 1, in float32: what lists are compared by, whatever they were read with."""
    ends = weights.ends()
    rows = torch.cat([embedding(ends, part).float() for part in ids.split(4096)])
    rows -= rows.mean(0)
    return rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-30)


@dataclass(frozen=True)
class _Listing:
    """Makes token lists and holds them against their two controls."""

    ids: Int[Tensor, "token"]
    names: Float[Tensor, "token d_model"]
    k: int
    draws: int
    generator: torch.Generator

    def lists(
        self, end: str, read: Read, directions: Tensor, S: Tensor, degenerate: Tensor, total: float
    ) -> list[TokenList]:
        k = min(self.k, len(self.ids))
        random = torch.randn(self.draws, directions.shape[1], generator=self.generator, dtype=torch.float64)
        control = _moments(
            [self._coherence(row.topk(k).indices) for row in read(random / random.norm(dim=-1, keepdim=True))]
        )
        chance = _moments(
            [self._coherence(torch.randperm(len(self.ids), generator=self.generator)[:k]) for _ in range(self.draws)]
        )
        found = []
        for index, values in enumerate(read(directions)):
            for sign in (1, -1):
                top = (sign * values).topk(k)
                share = float(S[index] ** 2) / total if total > 0 else 0.0
                found.append(TokenList(
                    index, float(S[index]), share, bool(degenerate[index]), end, sign, self.ids[top.indices],
                    sign * top.values, self._coherence(top.indices), *chance, *control,
                ))  # fmt: skip
        return found

    def _coherence(self, places: Tensor) -> float:
        """Mean cosine between different tokens of a list; NaN for a single one."""
        rows = self.names[places].double()
        count = len(rows)
        if count < 2:
            return float("nan")
        return float((rows.sum(0).square().sum() - rows.square().sum()) / (count * (count - 1)))


def _moments(values: list[float]) -> tuple[float, float]:
    found = torch.tensor(values, dtype=torch.float64)
    return float(found.mean()), float(found.std()) if len(values) > 1 else float("nan")
