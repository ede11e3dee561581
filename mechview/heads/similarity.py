"""How alike two heads' maps are, within a model and across models; nearest heads.

`cos = <A, B> / (|A| |B|)` (Frobenius), from r x r products. In the stream's own basis (`space="stream"`) that
compares heads of one model, or of models that share their basis: checkpoints, fine-tunes. Through the vocabulary
(`space="tokens"`) the maps compared are `E P E^T` and `E M U`, so models of different width and basis can be held
against each other if they share a tokenizer: `<L1 R1, L2 R2> = <L1^T L2, R1 R2^T>` over tokens, never `V x V`. The
null is the cosine of two unrelated maps: 0, with standard deviation `1/n`, `n` the dimension of the compared space
(exact if both sides of one map are turned at random).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import head_label
from mechview.heads.vocabulary import Reading, Rows, kept_ids, key_rows, query_rows, unembedding
from mechview.heads.weight_scores import head_factors_of, head_layers, named
from mechview.models.reader import check_layer
from mechview.models.weights import AttentionWeights, HasWeights, ModelWeights, Stack, weights_of
from mechview.results import Result

SIDES, SPACES = ("pattern", "message"), ("stream", "tokens")


@dataclass(frozen=True)
class Similarity(Result):
    """`values[sender, receiver]`: cosine of head a (rows, `labels_a`) and head b (columns, `labels_b`).

    `null_sd` is the spread of the cosine of unrelated maps, whose mean is 0. Heads that do nothing have cosine 0.
    """

    side: str
    space: str
    values: Float[Tensor, "sender receiver"] = field(repr=False)
    labels_a: tuple[str, ...]
    labels_b: tuple[str, ...]
    null_sd: float
    offset: int | None
    same_model: bool
    model: str = "arrays"
    revision: str | None = None
    model_b: str = "arrays"
    revision_b: str | None = None

    def nearest(self, label: str, k: int = 5) -> list[tuple[str, float]]:
        """The k heads of b most like one head of a; itself left out."""
        if label not in self.labels_a:
            raise UsageError(f"{label} is not among the heads compared")
        row = self.values[self.labels_a.index(label)]
        order = [
            n for n in row.argsort(descending=True).tolist() if not (self.same_model and self.labels_b[n] == label)
        ]
        return [(self.labels_b[n], float(row[n])) for n in order[:k]]


@torch.no_grad()
def similarity(
    a: ModelWeights | HasWeights, b: ModelWeights | HasWeights | None = None, *, side: str = "message",
    space: str = "stream", offset: int = 0, fold: bool = True, stack: Stack | None = None,
) -> Similarity:  # fmt: skip
    """Cosine of every head of a with every head of b (with a itself, unless given).

    Raises:
        UsageError: models that do not share the space they would be compared in.
    """
    if side not in SIDES or space not in SPACES:
        raise UsageError(f"side={side!r}, space={space!r}: use pattern or message, and stream or tokens")
    same, other = b is None, a if b is None else b
    first, second = weights_of(a).shape, weights_of(other).shape
    if space == "stream" and first.d_model != second.d_model:
        raise UsageError(f"streams of width {first.d_model} and {second.d_model} differ: compare with space='tokens'")
    if space == "tokens" and not same_vocabulary(a, other):
        raise UsageError("the models do not share a vocabulary: their heads cannot be compared through tokens")
    left = [thin_layer(a, each, side, space, offset, fold) for each in head_layers(weights_of(a), None, stack)]
    right = left if same else [
        thin_layer(other, each, side, space, offset, fold) for each in head_layers(weights_of(other), None, stack)
    ]  # fmt: skip
    rotary = weights_of(a).attention(0, check_layer(first, 0, stack)).rotary is not None
    theirs = named(other)
    return Similarity(
        side=side, space=space, values=cosines(left, right), labels_a=_labels(a, stack), labels_b=_labels(other, stack),
        null_sd=1 / (first.d_model if space == "stream" else min(first.d_model, second.d_model)),
        offset=offset if rotary and side == "pattern" else None, same_model=same, **named(a),
        model_b=str(theirs["model"]), revision_b=theirs["revision"],
    )  # fmt: skip


Sides = tuple[Float[Tensor, "head _space rank"], Float[Tensor, "head _space rank"]]


def thin_layer(
    model: ModelWeights | HasWeights,
    each: tuple[AttentionWeights, bool],
    side: str,
    space: str,
    offset: int,
    fold: bool,
) -> Sides:
    """Both sides of a layer's maps, in the stream or over the tokens, each map of norm 1."""
    attention, several = each
    heads = head_factors_of(attention, fold, several)
    maps = [f.message if side == "message" else f.pattern(offset if f.needs_offset else None) for f in heads]
    L, R = torch.stack([m.left for m in maps]).double(), torch.stack([m.right.mT for m in maps]).double()
    if space == "tokens":
        L, R = _over_tokens(model, attention, side, fold, L, R)
    norm = ((L.mT @ L) * (R.mT @ R)).sum((-2, -1)).clamp_min(0).sqrt()
    return L / norm.where(norm > 0, 1.0)[:, None, None], R


def _over_tokens(
    model: ModelWeights | HasWeights, attention: AttentionWeights, side: str, fold: bool, L: Tensor, R: Tensor
) -> Sides:
    weights = weights_of(model)
    ids, reading = kept_ids(weights.shape.d_vocab, getattr(model, "tokenizer", None)), Reading(centre=True)

    def read(rows: Rows, sides: Tensor) -> Tensor:
        flat = sides.transpose(0, 1).flatten(1)
        return rows.through(lambda x: x @ flat).unflatten(1, (len(sides), -1)).transpose(0, 1)

    keys = key_rows(weights, ids, reading, attention, fold)
    if side == "pattern":
        return read(query_rows(weights, ids, reading, attention, fold), L), read(keys, R)
    readout = unembedding(weights, weights.ends(), ids, attention.stack, reading, fold)
    written = readout.read(R.transpose(0, 1).flatten(1).mT).mT.unflatten(1, (len(R), -1)).transpose(0, 1)
    return read(keys, L), written


def cosines(left: list[Sides], right: list[Sides]) -> Float[Tensor, "sender receiver"]:
    """Inner products of all maps, one pair of layers at a time."""
    return torch.cat([torch.cat([_inner(x, y) for y in right], 1) for x in left]).clamp(-1, 1)


def _inner(x: Sides, y: Sides) -> Float[Tensor, "sender receiver"]:
    cores = []
    for a, b in zip(x, y, strict=True):
        flat_a, flat_b = a.transpose(0, 1).flatten(1), b.transpose(0, 1).flatten(1)
        cores.append((flat_a.mT @ flat_b).view(len(a), a.shape[2], len(b), b.shape[2]))
    return (cores[0] * cores[1]).sum((1, 3))


def same_vocabulary(a: object, b: object) -> bool:
    """Whether two models read the same tokens: equal tokenizers, or equal sizes where neither has one."""
    if a is b:
        return True
    first, second = (getattr(model, "tokenizer", None) for model in (a, b))
    if first is None or second is None:
        return first is second and weights_of(a).shape.d_vocab == weights_of(b).shape.d_vocab  # type: ignore[arg-type]
    return first.get_vocab() == second.get_vocab()


def _labels(model: ModelWeights | HasWeights, stack: Stack | None) -> tuple[str, ...]:
    shape = weights_of(model).shape
    place = check_layer(shape, 0, stack)
    several = len(shape.stacks) > 1
    return tuple(head_label(n, h, place, several) for n in range(shape.layers(place)) for h in range(shape.n_heads))
