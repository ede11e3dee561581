"""Where direct attribution starts: a direction at the end of the stream, its constants, the model's own value.

Every frozen norm is a fixed linear map times one number a position, so a direction stays `factor[pos]` times
`vectors` all the way back: one vector for all positions, or one for each where every position has its own target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError, UsageError
from mechview.models.norms import centred, fold_write, norm_scale
from mechview.models.weights import EndWeights, NormWeights
from mechview.models.write_trace import WriteTrace
from mechview.residual.readout import Target, before_cap, direction_name, read_columns, target_weights, token_ids


@dataclass(frozen=True)
class Pushed:
    """`factor[pos] * vectors[pos or the only one]`: a direction, as positions see it."""

    vectors: Float[Tensor, "_one_or_pos d_model"]
    factor: Float[Tensor, "pos 1"]

    def dot(self, x: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos"]:
        x = x.to(self.vectors)
        met = (
            x @ self.vectors[0] if len(self.vectors) == 1 else (x * self.vectors).sum(-1)
        )  # einsum is many times slower
        return met * self.factor[:, 0]

    def constant(self, x: Float[Tensor, "d_model"] | None) -> Float[Tensor, "pos"]:
        """The dot with what is written alike at every position; 0 where nothing is."""
        if x is None:
            return torch.zeros_like(self.factor[:, 0])
        return (self.vectors @ x.to(self.vectors)) * self.factor[:, 0]

    def before(self, norm: NormWeights, scale: Float[Tensor, "pos 1"]) -> Pushed:
        """The direction as it is before a norm whose scale is frozen."""
        return Pushed(centred(fold_write(self.vectors, norm), norm), self.factor / scale.to(self.factor))


@dataclass(frozen=True)
class Goal:
    """The direction, rows that no component wrote (a number, or one a position), and the model's own value."""

    name: str
    pushed: Pushed
    rows: dict[str, Float[Tensor, "_one_or_pos"]]
    total: Float[Tensor, "pos"]
    is_logit: bool


Tokens = Sequence[str | int] | None


def goal_of(
    seen: WriteTrace, target: Target | None, against: Target | None, direction: Tensor | None, each: Tokens,
    each_against: Tokens, tokenizer: object,
) -> Goal:  # fmt: skip
    """The goal of what was asked for.

    Raises:
        UsageError: not exactly one of target, direction and each. UnsupportedError: a head that is not linear.
    """
    if sum(given is not None for given in (target, direction, each)) != 1:
        raise UsageError("give a target token, a direction, or each position's token, one of the three")
    if (against is not None and target is None) or (each_against is not None and each is None):
        raise UsageError("against needs a target, and each_against needs each: the difference of two logits is asked")
    if direction is not None:
        return _vector(seen, direction)
    if target is not None:
        return _same(seen, target, against, tokenizer)
    return _each(seen, each or (), each_against, tokenizer)


def _vector(seen: WriteTrace, direction: Tensor) -> Goal:
    final = _numbers(seen.final)
    if not isinstance(direction, Tensor) or direction.shape != final.shape[-1:]:
        given = tuple(getattr(direction, "shape", ())) or type(direction).__name__
        raise UsageError(f"the direction has {given} numbers; the stream has {final.shape[-1]}")
    pushed = Pushed(direction.to(final)[None], torch.ones_like(final[:, :1]))
    return Goal("vector", pushed, {}, final @ pushed.vectors[0], is_logit=False)


def _same(seen: WriteTrace, target: Target, against: Target | None, tokenizer: object) -> Goal:
    ends, W_U, logits = _linear_head(seen)
    ids, signs = target_weights(target, against, tokenizer, seen.maps.shape.d_vocab)
    b_U = None if ends.b_U is None else (ends.b_U[ids].double() @ signs.to(ends.b_U.device))[None]
    total = before_cap(logits[:, ids], ends) @ signs.to(logits.device)
    return _logit_goal(seen, direction_name(target, against), read_columns(W_U, ids, signs)[None], b_U, total)


def _each(seen: WriteTrace, each: Sequence[str | int], against: Tokens, tokenizer: object) -> Goal:
    ends, W_U, logits = _linear_head(seen)
    at = torch.arange(len(logits), device=logits.device)
    read: Tensor | None = None
    b_U, total = None, torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    for side, sign in ((each, 1.0), (against, -1.0)):
        if side is None:
            continue
        ids = _one_each(side, len(logits), tokenizer, seen.maps.shape.d_vocab)
        columns = sign * _numbers(W_U.mT.index_select(0, torch.tensor(ids, device=W_U.device)))
        read = columns if read is None else read.add_(columns)
        total += sign * before_cap(logits[at, ids], ends)
        if ends.b_U is not None:
            b_U = sign * ends.b_U[ids].double() + (0 if b_U is None else b_U)
    name = "logit of each position's token" + ("" if against is None else " - another")
    return _logit_goal(seen, name, read, b_U, total)  # type: ignore[arg-type]


def _one_each(side: Sequence[str | int], length: int, tokenizer: object, size: int) -> list[int]:
    ids = token_ids(side.tolist() if isinstance(side, Tensor) else side, tokenizer, size)
    if isinstance(side, str) or len(ids) != length:
        raise UsageError(f"each= needs one token for each of {length} positions; {len(ids)} were given")
    return ids


def _logit_goal(
    seen: WriteTrace, name: str, read: Float[Tensor, "_n d_model"], b_U: Tensor | None, total: Tensor
) -> Goal:
    """From columns of the unembedding to the stream before the frozen final norm."""
    ends, final = seen.maps.ends, _numbers(seen.final)
    read, norm = read * ends.logit_scale, ends.final_norm
    rows = {} if norm.bias is None else {"final_norm_bias": (read @ norm.bias.to(read)).to(final)}
    if b_U is not None:
        rows["unembed_bias"] = (b_U * ends.logit_scale).to(final)
    vectors = centred(fold_write(read, norm), norm).to(final)
    return Goal(name, Pushed(vectors, 1 / norm_scale(final, norm)), rows, total, is_logit=True)


def _linear_head(seen: WriteTrace) -> tuple[EndWeights, Tensor, Tensor]:
    ends = seen.maps.ends
    if ends.W_U is None or seen.logits is None:
        raise UnsupportedError("this model has no unembedding: give a direction in the stream instead")
    if ends.head_transform is not None:
        raise UnsupportedError(
            "this model's head is not linear in the stream (dense layer, activation, norm): logits have no shares"
        )
    return ends, ends.W_U, seen.logits


def _numbers(x: Tensor) -> Tensor:
    """At least float32: half precision is a way to store numbers, not to add them up."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
