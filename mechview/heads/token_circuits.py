"""What a head does to the vocabulary, from weights alone: full pattern `E P E^T` and full message `E M U`.

`pattern_pairs`: which query token would look at which key token, the attention scale included, biases, soft-cap and
positions beyond the rotary offset left out (`biases=True` carries the biases). `message_tokens`: which tokens a
source token promotes and suppresses, in logits before the final norm's scale. Several heads are summed before they
are read. Elhage et al. 2021; Dar et al. 2022 (embedding space); rows of tokens as in `vocabulary`.

Checks: `completeness` compares the streamed sum of all scores with one from r x r products; `error` compares the
pairs shown with float64; diagonal accuracy stands beside the same head with its two sides turned against each other
by a random rotation inside the head, which keeps what each side reads and writes and destroys how they match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import HeadFactors, factor_head, head_label, homogeneous
from mechview.heads.circuits import Pairs, Sweep, Thin, best_columns, diagonal_share, random_turn, sampled_ranks, sweep
from mechview.heads.labels import placed_heads
from mechview.heads.vocabulary import Reading, Rows, check_unembedding, kept_ids, key_rows, query_rows, unembedding
from mechview.models.reader import check_layer
from mechview.models.scores import head_scale, project
from mechview.models.weights import AttentionWeights, HasWeights, HeadNorm, ModelWeights, Stack, weights_of
from mechview.results import Result
from mechview.tokens import Token, describe

SAMPLE, DRAWS = 256, 8
CHANCE = "random rotation between the head's two sides"


@dataclass(frozen=True)
class Accuracy:
    """Share of tokens that are among the `top` of their own row, beside the rotation null and plain chance."""

    top: int
    value: float
    null_mean: float
    null_sd: float
    n: int
    chance: float


@dataclass(frozen=True)
class TokenCircuit(Result):
    """Pairs of tokens a head or a sum of heads joins; `side` is `pattern` or `message`.

    `mean` and `sd` are over all pairs of kept tokens. `asked` says that the pairs are those of given tokens, each
    with its best and worst, rather than the extremes of the whole square.
    """

    side: str
    label: str
    layer: int | None
    head: int | None
    kv_head: int | None
    stack: Stack
    offset: int | None
    reading: Reading
    folded: bool
    biases: bool
    ids: Int[Tensor, "token"] = field(repr=False)
    excluded: int
    high: Pairs = field(repr=False)
    low: Pairs = field(repr=False)
    asked: bool
    mean: float
    sd: float
    accuracy: tuple[Accuracy, ...]
    suppression: tuple[Accuracy, ...]
    completeness: float
    error: float
    tokens: dict[int, Token] = field(repr=False)
    model: str = "arrays"
    revision: str | None = None


@dataclass(frozen=True)
class Member:
    """One head of a sum, with the layer it comes from."""

    factors: HeadFactors
    attention: AttentionWeights


def pattern_pairs(
    model: ModelWeights | HasWeights,
    *,
    layer: int | None = None,
    head: int | None = None,
    heads: Sequence[str | tuple[int, int]] | None = None,
    k: int = 20,
    each: int | None = None,
    queries: Sequence[int | str] | None = None,
    offset: int = 0,
    space: str = "embed",
    rows: str = "raw",
    centre: bool = False,
    special: bool = False,
    exclude: Sequence[int] = (),
    biases: bool = False,
    fold: bool = True,
    stack: Stack = "decoder",
    seed: int = 0,
) -> TokenCircuit:
    """Top (query token, key token) pairs of one head, or of several summed, over the whole vocabulary.

    Args:
        heads: heads to sum, as `"L5H1"` or `(5, 1)`, instead of `layer` and `head`.
        k: how many pairs; with `queries`, how many keys for each.
        each: at most so many pairs of one query token.
        queries: tokens (text or id) whose best and worst keys are wanted instead of the extremes of all pairs.
        space, rows, centre, special, exclude: how tokens become rows, and which take part; see `vocabulary`.

    Raises:
        UsageError, HeadError: what does not exist. UnsupportedError: an embedding that cannot be computed.
    """
    weights, reading = weights_of(model), Reading(space, rows, centre).checked()
    members = chosen_members(weights, layer, head, heads, fold, stack)
    ids = kept_ids(weights.shape.d_vocab, getattr(model, "tokenizer", None), special, exclude)
    sides = [_pattern_sides(weights, ids, reading, member, offset, biases) for member in members]
    thin = Thin(torch.cat([left for left, _ in sides], 1), torch.cat([right for _, right in sides], 1))
    at = offset if any(member.factors.needs_offset for member in members) else None
    return _circuit("pattern", model, members, thin, ids, reading, k, each, queries, at, fold, biases, seed)


def message_tokens(
    model: ModelWeights | HasWeights,
    *,
    layer: int | None = None,
    head: int | None = None,
    heads: Sequence[str | tuple[int, int]] | None = None,
    k: int = 20,
    each: int | None = None,
    sources: Sequence[int | str] | None = None,
    space: str = "embed",
    rows: str = "raw",
    centre: bool = False,
    special: bool = False,
    exclude: Sequence[int] = (),
    fold: bool = True,
    stack: Stack = "decoder",
    seed: int = 0,
) -> TokenCircuit:
    """Source tokens and what they promote and suppress, of one head or of several summed.

    With `sources`, the k most promoted and most suppressed tokens of each; otherwise the extremes of all pairs.
    Other arguments and errors as in `pattern_pairs`; a model whose logits are not linear in the stream is refused.
    """
    weights, reading = weights_of(model), Reading(space, rows, centre).checked()
    members = chosen_members(weights, layer, head, heads, fold, stack)
    ends = weights.ends()
    check_unembedding(weights, ends, members[0].attention.stack)
    ids = kept_ids(weights.shape.d_vocab, getattr(model, "tokenizer", None), special, exclude)
    readout = unembedding(weights, ends, ids, members[0].attention.stack, reading, fold)
    sources_of = [key_rows(weights, ids, reading, member.attention, fold) for member in members]
    left = [
        _narrow(rows_.through(lambda x, m=m: x @ m.factors.message.left.double()), m)
        for rows_, m in zip(sources_of, members, strict=True)
    ]
    right = [_narrow(readout.read(m.factors.output).mT, m) for m in members]
    thin = Thin(torch.cat(left, 1), torch.cat(right, 1))
    return _circuit("message", model, members, thin, ids, reading, k, each, sources, None, fold, False, seed)


def chosen_members(
    weights: ModelWeights,
    layer: int | None,
    head: int | None,
    heads: Sequence[str | tuple[int, int]] | None,
    fold: bool,
    stack: Stack,
) -> list[Member]:
    """The heads meant, each with its layer, read once a layer."""
    if (heads is None) == (layer is None or head is None):
        raise UsageError("say which head: layer= and head=, or heads= for a sum of several")
    only = check_layer(weights.shape, 0, stack)
    checked = placed_heads(heads if heads is not None else [(layer or 0, head or 0)], weights.shape, only)
    if not checked:
        raise UsageError("heads is empty: name at least one head")
    several = len(weights.shape.stacks) > 1
    layers = {number: weights.attention(number, place) for place, number, _ in checked}
    return [Member(factor_head(layers[number], h, fold, several), layers[number]) for _, number, h in checked]


def _narrow(side: Tensor, member: Member) -> Tensor:
    return side.to(member.factors.output.dtype).contiguous()


def _pattern_sides(
    weights: ModelWeights, ids: Tensor, reading: Reading, member: Member, offset: int, biases: bool
) -> tuple[Tensor, Tensor]:
    """Query side (scaled) and key side of one head over the tokens."""
    factors, w = member.factors, member.attention
    affine = factors.pattern_affine(offset if factors.needs_offset else None)
    queries, keys = (make(weights, ids, reading, w, factors.folded) for make in (query_rows, key_rows))
    q_scale = rho_of(queries, reading, w.q_norm, w.W_Q, w.b_Q, factors.head)
    k_scale = rho_of(keys, reading, w.k_norm, w.W_K, w.b_K, factors.kv_head)
    q = queries.through(lambda x: _read(x, affine.left, biases) / q_scale(x)) * factors.scale
    k = keys.through(lambda x: _read(x, affine.right.mT, biases) / k_scale(x))
    return _narrow(q, member), _narrow(k, member)


def _read(x: Tensor, side: Tensor, biases: bool) -> Tensor:
    return homogeneous(x) @ side.double() if biases else x @ side[:-1].double()


def rho_of(
    rows: Rows, reading: Reading, norm: HeadNorm | None, W: Tensor, b: Tensor | None, head: int
) -> Callable[[Tensor], Tensor | float]:
    """The scale of a query or key norm for each token, which only `normed` rows have; 1 otherwise."""
    if norm is None or reading.rows != "normed":
        return lambda x: 1.0
    part = slice(None) if norm.across_heads else slice(head, head + 1)
    return lambda x: head_scale(project(rows.reads(x), W[part], None if b is None else b[part]), norm)[0]


def _circuit(
    side: str, model: ModelWeights | HasWeights, members: list[Member], thin: Thin, ids: Tensor, reading: Reading,
    k: int, each: int | None, asked: Sequence[int | str] | None, offset: int | None, fold: bool, biases: bool, seed: int,
) -> TokenCircuit:  # fmt: skip
    if k < 1 or (each is not None and each < 1):
        raise UsageError("k and each count pairs: they must be at least 1")
    weights, tokenizer = weights_of(model), getattr(model, "tokenizer", None)
    places = None if asked is None else asked_places(asked, ids, tokenizer, weights.shape.d_vocab)
    found = sweep(thin, k, each)
    high, low = (found.high, found.low) if places is None else best_columns(thin, places, k)
    mean, sd = thin.moments()
    shown = torch.cat([ids[torch.cat([p.row, p.column])] for p in (high, low)]).unique().tolist()
    one = members[0].factors if len(members) == 1 else None
    several = len(weights.shape.stacks) > 1
    generator = torch.Generator().manual_seed(seed)
    accuracy, suppression = accuracies(thin, found, generator)
    return TokenCircuit(
        side=side, label="+".join(head_label(m.factors.layer, m.factors.head, m.factors.stack, several) for m in members),
        layer=one.layer if one else None, head=one.head if one else None, kv_head=one.kv_head if one else None,
        stack=members[0].factors.stack,
        offset=offset, reading=reading, folded=fold, biases=biases, ids=ids, excluded=weights.shape.d_vocab - len(ids),
        high=high, low=low, asked=asked is not None, mean=mean, sd=sd, accuracy=accuracy, suppression=suppression,
        completeness=_completeness(thin, found.total, mean, sd), error=_error(thin, high, low),
        tokens={token.id: token for token in describe(shown, tokenizer)},
        model=getattr(getattr(model, "source", None), "name", "arrays"),
        revision=getattr(getattr(model, "source", None), "revision", None),
    )  # fmt: skip


def _completeness(thin: Thin, total: float, mean: float, sd: float) -> float:
    count = len(thin.rows) * len(thin.columns)
    size = max(abs(mean), sd)
    return abs(total / count - mean) / size if size > 0 else 0.0


def _error(thin: Thin, *parts: Pairs) -> float:
    exact = torch.cat([thin.at(p.row, p.column) for p in parts])
    found = torch.cat([p.score for p in parts]).double()
    return float((found - exact).abs().max() / exact.abs().max().clamp_min(1e-300))


def accuracies(
    thin: Thin, found: Sweep, generator: torch.Generator, tops: tuple[int, ...] = (1, 5), lowest: int = 10
) -> tuple[tuple[Accuracy, ...], tuple[Accuracy, ...]]:
    """Diagonal accuracy at each of `tops`, and the share among the `lowest`, with the rotation null on a sample."""
    if found.above is None or found.below is None:
        return (), ()
    count = len(thin.rows)
    sample = torch.randperm(count, generator=generator)[:SAMPLE]
    draws = [sampled_ranks(thin, sample, random_turn(thin.rows.shape[1], generator)) for _ in range(DRAWS)]

    def stated(top: int, ranks: Tensor, which: int) -> Accuracy:
        null = torch.tensor([diagonal_share(draw[which], top) for draw in draws], dtype=torch.float64)
        value = diagonal_share(ranks, top)
        return Accuracy(top, value, float(null.mean()), float(null.std()), DRAWS, min(1.0, top / count))

    return tuple(stated(top, found.above, 0) for top in tops), (stated(lowest, found.below, 1),)


def asked_places(asked: Sequence[int | str], ids: Tensor, tokenizer: object, size: int) -> Int[Tensor, "row"]:
    """Places among the kept tokens of tokens given as text or id."""
    from mechview.heads.words import token_id

    wanted = [token_id(token, tokenizer, size) for token in asked]
    where = torch.searchsorted(ids, torch.tensor(wanted)).clamp_max(len(ids) - 1)
    for token, place, number in zip(asked, where.tolist(), wanted, strict=True):
        if int(ids[place]) != number:
            raise UsageError(
                f"token {token!r} takes no part: it is special, unused or excluded (special=True keeps it)"
            )
    return where
