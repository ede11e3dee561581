"""How what one head writes reaches what another reads: which comes first, and which norms stand between.

Heads of one layer never meet, in parallel blocks or others. A decoder's self-attention feeds the queries of the
cross-attention of its own layer; encoder heads feed its keys and values through the encoder's final norm. In
pre-norm models the norm between belongs to the reader (folded into it), in post-norm models the write passes gain
and centring of every norm of the stream up to the reader; scales are frozen and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import HALF, HeadFactors, factor_head
from mechview.heads.composing import Ends, from_unit, read, spans, written
from mechview.heads.layer_maps import messages, patterns
from mechview.lowrank import LowRank
from mechview.models.norms import centred, fold_write
from mechview.models.weights import AttentionWeights, ModelShape, ModelWeights, NormWeights, Stack


def earlier(shape: ModelShape, source: Stack, stack: Stack, kind: str) -> Bool[Tensor, "_src_layer _dst_layer"]:
    """Which layers of senders come before which layers of receivers, and reach that input of theirs.

    Raises:
        UsageError: writes of the one stack never reach that input of the other.
    """
    first, then = torch.arange(shape.layers(source))[:, None], torch.arange(shape.layers(stack))[None, :]
    if stack == "cross" and (kind == "Q") == (source == "encoder"):
        side = "queries read the decoder" if kind == "Q" else "keys and values read the encoder"
        raise UsageError(f"{source} heads do not feed {kind} of cross-attention: its {side}")
    if stack != "cross" and "encoder" in (source, stack) and source != stack:
        raise UsageError(f"{source} heads do not write to the stream that {stack} heads read")
    if (source, stack) == ("encoder", "cross"):
        return (first >= 0) & (then >= 0)
    return first <= then if (source, stack) == ("decoder", "cross") else first < then


Meeting = tuple[slice, Ends, dict[str, Ends]]


def meetings(
    weights: ModelWeights, kinds: Sequence[str], offset: int, definition: str, stack: Stack, source: Stack, fold: bool
) -> Iterator[Meeting]:
    """Layers of receivers with their sides, and the sides of the writers as those layers meet them.

    One meeting for all layers, except where the norms between depend on the receiver's layer (post-norm models).
    """
    kernel, count = definition == "kernel", weights.shape.layers(stack)
    if carries(weights, source, fold):
        for layer in range(count):
            senders = joined([_writers(low, kernel) for low in writers_at(weights, source, stack, layer, fold)])
            readers = {kind: readers_at(weights, kind, offset, layer, stack, fold, None, kernel) for kind in kinds}
            yield slice(layer, layer + 1), senders, readers
        return
    senders, readers = Gathered(weights.shape.layers(source)), {kind: Gathered(count) for kind in kinds}
    for layer in range(count):
        attention = weights.attention(layer, stack)
        for kind, ends in _readers(attention, kinds, offset, fold, kernel).items():
            readers[kind].add(ends, attention.W_Q.dtype)
        if source == stack:
            senders.add(_writers(messages(attention, fold), kernel), attention.W_Q.dtype)
    if source != stack:
        dtype = weights.attention(0, source).W_Q.dtype
        for low in _messages(weights, source, stack, fold):
            senders.add(_writers(low, kernel), dtype)
    yield slice(0, count), senders.ends, {kind: one.ends for kind, one in readers.items()}


def carries(weights: ModelWeights, stack: Stack, fold: bool) -> bool:
    """Whether a write meets norms of the stream on its way."""
    return fold and weights.attention(0, stack).stream_norm.kind != "none"


def writers_at(weights: ModelWeights, source: Stack, stack: Stack, layer: int, fold: bool) -> list[LowRank]:
    """Messages of every layer as the given layer's heads meet them; those of later layers as they are written."""
    sent = list(_messages(weights, source, stack, fold))
    if carries(weights, source, fold):
        for between in range(layer):
            for norm in (weights.attention(between, source).stream_norm, weights.mlp(between, source).stream_norm):
                sent[: between + 1] = [through(low, norm) for low in sent[: between + 1]]
    return sent


def _messages(weights: ModelWeights, source: Stack, stack: Stack, fold: bool) -> Iterator[LowRank]:
    final = weights.ends().encoder_final_norm if fold and (source, stack) == ("encoder", "cross") else None
    for layer in range(weights.shape.layers(source)):
        low = messages(weights.attention(layer, source), fold)
        yield low if final is None else through(low, final)


def through(low: LowRank, norm: NormWeights) -> LowRank:
    """A map whose output passes a norm of the stream: centred and times its gain, the scale left out."""
    return LowRank(low.left, fold_write(centred(low.right.double(), norm), norm).to(low.right.dtype))


def components_of(low: LowRank) -> tuple[Ends, Float[Tensor, "head rank"], Bool[Tensor, "head rank"]]:
    """Output directions of a batch of maps as writers of rank 1, singular values, and which of these are close."""
    _, S, Vh = low.svd()
    alive = S[:, :1] * 1e-6 < S
    unit = from_unit((Vh * alive[..., None]).flatten(0, 1)[:, None, :])
    return unit, S.double() * alive, close_pairs(S.double())


def close_pairs(S: Float[Tensor, "head rank"], gap: float = 0.01) -> Bool[Tensor, "head rank"]:
    """Which descending values have a neighbour within `gap`, relative to the larger."""
    near = S.diff(dim=-1) >= -gap * S[:, :-1]
    edge = torch.zeros_like(near[:, :1])
    return torch.cat([edge, near], -1) | torch.cat([near, edge], -1)


def readers_at(
    weights: ModelWeights, kind: str, offset: int, layer: int, stack: Stack, fold: bool,
    heads: Sequence[int] | None = None, kernel: bool = False,
) -> Ends:  # fmt: skip
    """Input sides of one layer's heads, all of them unless `heads` are named."""
    attention = weights.attention(layer, stack)
    if heads is None:
        return _readers(attention, [kind], offset, fold, kernel)[kind]
    maps = [reader_map(factor_head(attention, head, fold), kind, offset) for head in heads]
    low = LowRank(torch.stack([m.left for m in maps]), torch.stack([m.right for m in maps]))
    return spans(low.left.mT) if kernel else read(low)


def _readers(
    attention: AttentionWeights, kinds: Sequence[str], offset: int, fold: bool, kernel: bool
) -> dict[str, Ends]:
    pattern = patterns(attention, offset, fold) if set(kinds) - {"V"} else None
    found = {}
    for kind in kinds:
        low = messages(attention, fold) if pattern is None or kind == "V" else pattern
        low = low.mT if kind == "K" else low
        found[kind] = spans(low.left.mT) if kernel else read(low)
    return found


def reader_map(factors: HeadFactors, kind: str, offset: int) -> LowRank:
    """The receiver's map with the input that the sender feeds on its left."""
    if kind == "V":
        return factors.message
    pattern = factors.pattern(offset if factors.needs_offset else None)
    return pattern if kind == "Q" else pattern.mT


def _writers(low: LowRank, kernel: bool) -> Ends:
    return spans(low.right) if kernel else written(low)


class Gathered:
    """Sides of all layers in one tensor, filled layer by layer, so that none is held twice.

    Half-precision weights are worked on in float64 and held in float32, as `composing` bounds its error there.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.spreads: list[Tensor] = []
        self.sides = torch.empty(0)

    def add(self, one: Ends, dtype: torch.dtype) -> None:
        """The next layer's sides; `dtype` is that of the weights they come from."""
        if not self.spreads:
            held = torch.float32 if dtype in HALF else one.sides.dtype
            self.sides = one.sides.new_empty(self.layers * len(one), *one.sides.shape[1:], dtype=held)
        start = len(self.spreads) * len(one)
        self.sides[start : start + len(one)] = one.sides
        self.spreads.append(one.spread)

    @property
    def ends(self) -> Ends:
        return Ends(self.sides, torch.cat(self.spreads))


def joined(parts: Sequence[Ends]) -> Ends:
    return Ends(torch.cat([p.sides for p in parts]), torch.cat([p.spread for p in parts]))
