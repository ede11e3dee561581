"""The vocabulary as heads meet it: a stream row for each token, and the unembedding seen from the stream.

A row is what the residual stream would be if its token stood alone: embedding with its multiplier, token type 0,
embedding norm and projection, positions left out. `space="mlp0"` lets the first block's MLP write once (its norms,
experts and multiplier included) with attention silent: the effective embedding of McDougall et al. 2023. Rows are
`raw`, `unit` (divided by their norm) or `normed` (as the head's own norm leaves them, the only choice that gives
scores of a real pass). Centring comes first: rows lose their mean over the tokens kept. The unembedding carries the
final norm's gain and centring and the logit multiplier; its scale, bias and soft-cap stay out. Cross-attention
reads the encoder's rows behind the encoder's final norm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.errors import UnsupportedError, UsageError
from mechview.models.neurons import activations, expert_writes
from mechview.models.norms import apply_norm, centred, fold_write, norm_scale
from mechview.models.weights import IDENTITY_NORM, AttentionWeights, EndWeights, ModelWeights, NormWeights, Stack

BLOCK = 4096
SPACES, ROWS = ("embed", "mlp0"), ("raw", "unit", "normed")
UNUSED = re.compile(r"\[unused\d+\]|<unused_?\d+>|<extra_id_\d+>|<\|reserved[^>]*\|>|<reserved[^>]*>", re.IGNORECASE)


@dataclass(frozen=True)
class Reading:
    """How tokens become rows: see the module's text."""

    space: str = "embed"
    rows: str = "raw"
    centre: bool = False

    def checked(self) -> Reading:
        for name, value, known in (("space", self.space, SPACES), ("rows", self.rows, ROWS)):
            if value not in known:
                raise UsageError(f"{name}={value!r} is not a choice; use {', '.join(known)}")
        return self

    def __str__(self) -> str:
        where = "embedding" if self.space == "embed" else "embedding after the first MLP"
        return f"{where}, {self.rows} rows{', centred' if self.centre else ''}"


def kept_ids(
    d_vocab: int, tokenizer: object, special: bool = False, exclude: Sequence[int] = ()
) -> Int[Tensor, "token"]:
    """Ids of the tokens that take part; special, reserved and unused ones do not unless asked for.

    Unused are ids that the tokenizer does not know (rows that pad the embedding) and names reserved for later use.

    Raises:
        UsageError: nothing is left, or an id to exclude does not exist.
    """
    if outside := [i for i in exclude if not 0 <= i < d_vocab]:
        raise UsageError(f"token id {outside[0]} does not exist: the vocabulary has ids 0 to {d_vocab - 1}")
    left_out = set(exclude) | (set() if special or tokenizer is None else unused_ids(d_vocab, tokenizer))
    kept = [i for i in range(d_vocab) if i not in left_out]
    if not kept:
        raise UsageError("no token is left: all are special, unused or excluded")
    return torch.tensor(kept)


def unused_ids(d_vocab: int, tokenizer: object) -> set[int]:
    names: list[str | None] = tokenizer.convert_ids_to_tokens(list(range(min(d_vocab, len(tokenizer)))))  # type: ignore[attr-defined, arg-type]
    absent = {i for i, name in enumerate(names) if name is None or UNUSED.fullmatch(str(name))}
    added: dict[int, object] = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {i for i, token in added.items() if getattr(token, "special", False)}
    return absent | marked | set(getattr(tokenizer, "all_special_ids", ())) | set(range(len(names), d_vocab))


@dataclass(frozen=True)
class Rows:
    """Stream rows of tokens, made block by block; `norm` is what the head reads through, if rows are `normed`."""

    weights: ModelWeights
    ends: EndWeights
    ids: Int[Tensor, "token"]
    reading: Reading
    stack: Stack
    norm: NormWeights
    behind: NormWeights = IDENTITY_NORM
    folded: bool = True

    def reads(self, rows: Float[Tensor, "token d_model"]) -> Float[Tensor, "token d_model"]:
        """What the attention's own matrices are given, from rows that folded factors read."""
        if not self.folded:
            return rows
        reads = fold_write(rows, self.norm)
        return reads if self.norm.bias is None else reads + self.norm.bias.to(reads)

    def through(self, read: Callable[[Tensor], Tensor]) -> Tensor:
        """`read(rows)` of all tokens, in float64, without holding the rows."""
        return torch.cat([read(part) for part in self.parts()])

    def parts(self) -> Iterator[Float[Tensor, "token d_model"]]:
        """The rows, some at a time."""
        mean = self._mean() if self.reading.centre else None
        for rows in self._blocks():
            yield self._finished(rows, mean)

    def _finished(self, rows: Tensor, mean: Tensor | None) -> Float[Tensor, "token d_model"]:
        rows = rows if mean is None else rows - mean
        if self.reading.rows == "unit":
            size = rows.norm(dim=-1, keepdim=True)
            return rows / size.where(size > 0, 1.0)
        if self.reading.rows == "raw":
            return rows
        normed = apply_norm(rows, self.norm) if not self.folded else centred(rows, self.norm)
        return normed if not self.folded else normed / norm_scale(rows, self.norm)

    def _mean(self) -> Float[Tensor, "d_model"]:
        return sum(rows.sum(0) for rows in self._blocks()) / len(self.ids)  # type: ignore[return-value]

    def _blocks(self) -> Iterator[Float[Tensor, "token d_model"]]:
        first = self._first_block()
        for ids in self.ids.split(BLOCK):
            yield self._behind(first(embedding(self.ends, ids)))

    def _first_block(self) -> Callable[[Tensor], Tensor]:
        return first_mlp(self.weights, self.stack) if self.reading.space == "mlp0" else lambda rows: rows

    def _behind(self, rows: Tensor) -> Tensor:
        """The encoder's final norm before cross-attention; its scale only where rows are `normed`."""
        if self.behind.kind == "none":
            return rows
        return apply_norm(rows, self.behind) if self.reading.rows == "normed" else fold_write(rows, self.behind)


def query_rows(
    weights: ModelWeights, ids: Int[Tensor, "token"], reading: Reading, attention: AttentionWeights, folded: bool = True
) -> Rows:
    """Rows on the side that looks; `folded` says what factors will read them."""
    stack: Stack = "decoder" if attention.stack == "cross" else attention.stack
    return Rows(weights, weights.ends(), ids, reading.checked(), stack, attention.norm, folded=folded)


def key_rows(
    weights: ModelWeights, ids: Int[Tensor, "token"], reading: Reading, attention: AttentionWeights, folded: bool = True
) -> Rows:
    """Rows on the side that is looked at, which is also what messages read."""
    if attention.stack != "cross":
        return query_rows(weights, ids, reading, attention, folded)
    ends, own = weights.ends(), IDENTITY_NORM
    return Rows(weights, ends, ids, reading.checked(), "encoder", own, ends.encoder_final_norm, folded)


def embedding(ends: EndWeights, ids: Int[Tensor, "token"]) -> Float[Tensor, "token d_model"]:
    """The stream before the first block with positions left out, in float64."""
    rows = ends.W_E[ids].double() * ends.embed_scale
    projects_first = ends.embed_projection is not None and ends.embed_norm.kind == "none"
    if projects_first:
        rows = _projected(rows, ends)
    if ends.W_type is not None:
        rows = rows + ends.W_type[0].double()
    rows = apply_norm(rows, ends.embed_norm)
    return rows if projects_first or ends.embed_projection is None else _projected(rows, ends)


def _projected(rows: Tensor, ends: EndWeights) -> Tensor:
    W, b = ends.embed_projection, ends.embed_projection_bias
    rows = rows if W is None else rows @ W.double()
    return rows if b is None else rows + b.double()


def first_mlp(weights: ModelWeights, stack: Stack) -> Callable[[Tensor], Tensor]:
    """What the first block makes of a stream row when its attention writes nothing.

    Raises:
        UnsupportedError: the first block has no MLP.
    """
    attention, mlp = weights.attention(0, stack), weights.mlp(0, stack)
    if mlp.W_in.shape[-1] == 0:
        raise UnsupportedError("the first block has no MLP: there is no embedding after it; use space='embed'")

    def write(rows: Tensor) -> Tensor:
        rows = apply_norm(rows, attention.stream_norm)
        if mlp.router is not None:
            written = expert_writes(rows, mlp).sum(0)
        else:
            written = activations(rows, mlp) @ mlp.W_out.double()
            written = written if mlp.b_out is None else written + mlp.b_out.double()
        written = apply_norm(written, mlp.post_norm) * mlp.multiplier
        return apply_norm(rows + written, mlp.stream_norm)

    return write


def check_unembedding(weights: ModelWeights, ends: EndWeights, stack: Stack) -> Float[Tensor, "d_model d_vocab"]:
    """The unembedding that writes of this stack reach linearly.

    Raises:
        UnsupportedError: there is none.
    """
    if stack == "encoder" and len(weights.shape.stacks) > 1:
        raise UnsupportedError("the encoder's stream has no unembedding; ask for decoder or cross-attention heads")
    if ends.W_U is None:
        raise UnsupportedError("this model has no unembedding: its messages promote no tokens")
    if ends.head_transform is not None:
        raise UnsupportedError(
            "this model's head is not linear in the stream: its messages have no logits of their own"
        )
    return ends.W_U


@dataclass(frozen=True)
class Unembedding:
    """Directions of the stream to logits of the tokens kept, some columns at a time, in float64."""

    W_U: Float[Tensor, "d_model d_vocab"]
    ids: Int[Tensor, "token"]
    scale: float
    norm: NormWeights
    reading: Reading

    def columns(self, part: Int[Tensor, "token"]) -> Float[Tensor, "token d_model"]:
        """What each token's logit reads from the stream."""
        U = self._plain(part)
        U = U - self._mean if self.reading.centre else U
        if self.reading.rows != "unit":
            return U
        size = U.norm(dim=-1, keepdim=True)
        return U / size.where(size > 0, 1.0)

    def read(self, directions: Float[Tensor, "rank d_model"]) -> Float[Tensor, "rank token"]:
        return torch.cat([directions.double() @ self.columns(part).mT for part in self.ids.split(BLOCK)], dim=-1)

    def _plain(self, part: Tensor) -> Tensor:
        return centred(fold_write(self.W_U[:, part].double().mT * self.scale, self.norm), self.norm)

    @cached_property
    def _mean(self) -> Float[Tensor, "d_model"]:
        total = self.W_U.new_zeros(len(self.W_U), dtype=torch.float64)
        for part in self.ids.split(BLOCK):
            total += self._plain(part).sum(0)
        return total / len(self.ids)


def unembedding(
    weights: ModelWeights,
    ends: EndWeights,
    ids: Int[Tensor, "token"],
    stack: Stack,
    reading: Reading,
    fold: bool = True,
) -> Unembedding:
    """The unembedding of the tokens kept.

    Raises:
        UnsupportedError: writes of this stack have no logits; see `check_unembedding`.
    """
    norm = ends.final_norm if fold else IDENTITY_NORM
    return Unembedding(check_unembedding(weights, ends, stack), ids, ends.logit_scale, norm, reading)


def token_gram(rows: Rows, readout: Unembedding) -> Float[Tensor, "d_model d_model"]:
    """`U E`: what a stream direction, unembedded and embedded again, becomes; of it `O (U E) V` is `r x r`."""
    total = rows.ends.W_E.new_zeros(rows.weights.shape.d_model, rows.weights.shape.d_model, dtype=torch.float64)
    for ids, found in zip(rows.ids.split(BLOCK), rows.parts(), strict=True):
        total += readout.columns(ids).mT @ found
    return total
