"""How what one head writes reaches what another reads: which comes first, and which norms stand between.

Heads of one layer never meet, in parallel blocks or others. A decoder's self-attention feeds the queries of the
cross-attention of its own layer; encoder heads feed its keys and values through the encoder's final norm. In
pre-norm models the norm between belongs to the reader (folded into it), in post-norm models the write passes gain
and centring of every norm of the stream up to the reader; scales are frozen and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import HeadFactors, factor_head
from mechview.heads.composing import Ends, read, spans, written
from mechview.lowrank import LowRank
from mechview.models.norms import centred, fold_write
from mechview.models.weights import ModelShape, ModelWeights, NormWeights, Stack


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
    kernel = definition == "kernel"
    readers = [
        _readers(weights, kinds, offset, layer, stack, fold, kernel) for layer in range(weights.shape.layers(stack))
    ]
    messages = (_maps([f.message for f in heads]) for heads in _layers(weights, source, fold))
    if fold and weights.attention(0, source).stream_norm.kind != "none":
        yield from _carried(weights, list(messages), readers, stack, kernel)
        return
    final = weights.ends().encoder_final_norm if fold and (source, stack) == ("encoder", "cross") else None
    senders = joined([_writers(low if final is None else through(low, final), kernel) for low in messages])
    together = {kind: joined([layer[kind] for layer in readers]) for kind in kinds}
    yield slice(0, len(readers)), senders, together


def _carried(
    weights: ModelWeights, messages: list[LowRank], readers: list[dict[str, Ends]], stack: Stack, kernel: bool
) -> Iterator[Meeting]:
    for layer, receivers in enumerate(readers):
        if layer:
            norms = weights.attention(layer - 1, stack).stream_norm, weights.mlp(layer - 1, stack).stream_norm
            for n in range(layer):
                messages[n] = through(through(messages[n], norms[0]), norms[1])
        yield slice(layer, layer + 1), joined([_writers(low, kernel) for low in messages]), receivers


def through(low: LowRank, norm: NormWeights) -> LowRank:
    """A map whose output passes a norm of the stream: centred and times its gain, the scale left out."""
    return LowRank(low.left, fold_write(centred(low.right.double(), norm), norm).to(low.right.dtype))


def _layers(weights: ModelWeights, stack: Stack, fold: bool) -> Iterator[list[HeadFactors]]:
    for layer in range(weights.shape.layers(stack)):
        attention = weights.attention(layer, stack)
        yield [factor_head(attention, head, fold) for head in range(weights.shape.n_heads)]


def _readers(
    weights: ModelWeights, kinds: Sequence[str], offset: int, layer: int, stack: Stack, fold: bool, kernel: bool
) -> dict[str, Ends]:
    attention = weights.attention(layer, stack)
    heads = [factor_head(attention, head, fold) for head in range(weights.shape.n_heads)]
    found = {}
    for kind in kinds:
        low = _maps([_reader(f, kind, offset) for f in heads])
        found[kind] = spans(low.left.mT) if kernel else read(low)
    return found


def _reader(factors: HeadFactors, kind: str, offset: int) -> LowRank:
    """The receiver's map with the input that the sender feeds on its left."""
    if kind == "V":
        return factors.message
    pattern = factors.pattern(offset if factors.needs_offset else None)
    return pattern if kind == "Q" else pattern.mT


def _writers(low: LowRank, kernel: bool) -> Ends:
    return spans(low.right) if kernel else written(low)


def _maps(maps: list[LowRank]) -> LowRank:
    return LowRank(torch.stack([m.left for m in maps]), torch.stack([m.right for m in maps]))


def joined(parts: Sequence[Ends]) -> Ends:
    return Ends(torch.cat([p.sides for p in parts]), torch.cat([p.spread for p in parts]))
