"""From the stream to the logits, as the model does it: final norm, head, unembedding, scale, cap.

Also the way back: a direction over the vocabulary becomes a direction in the stream, with the final norm
frozen at each position's own scale. Masked-language heads (BERT) put a nonlinear layer in between: they
can be read forwards, but no direction can be pushed back through them, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError, UsageError
from mechview.models.neurons import ACTIVATIONS
from mechview.models.norms import apply_norm, norm_scale
from mechview.models.trace import Trace
from mechview.models.weights import EndWeights, NormWeights
from mechview.reprs import short_repr
from mechview.tokens import one_token

Target = str | int | Sequence[str | int]


@dataclass(frozen=True)
class Direction:
    """A direction in the stream at each position, and the constant that no component wrote.

    `rows` names the constants: the final norm's bias and the unembedding bias. `is_logit` says that the
    dot with the final stream plus the constants is the model's own logit.
    """

    __repr__ = short_repr

    name: str
    vectors: Float[Tensor, "pos d_model"]
    rows: dict[str, float]
    is_logit: bool = False


def unembed(stream: Float[Tensor, "pos d_model"], ends: EndWeights) -> Float[Tensor, "pos d_vocab"]:
    """Logits of any stream, in its dtype.

    Raises:
        UnsupportedError: the model has no unembedding.
    """
    if ends.W_U is None:
        raise UnsupportedError("this model has no unembedding: its stream has no logits")
    x = apply_norm(stream, ends.final_norm)
    if ends.head_transform is not None:
        W, b, norm, activation = ends.head_transform
        x = apply_norm(ACTIVATIONS[activation](x @ W.to(x) + b.to(x)), norm)
    logits = x @ ends.W_U.to(x)
    logits = (logits if ends.b_U is None else logits + ends.b_U.to(logits)) * ends.logit_scale
    return logits if ends.softcap is None else ends.softcap * torch.tanh(logits / ends.softcap)


def before_cap(logits: Tensor, ends: EndWeights) -> Tensor:
    """The model's logits with a final soft-cap undone, in float64: shares are of these."""
    logits = logits.double()
    return logits if ends.softcap is None else ends.softcap * torch.atanh(logits / ends.softcap)


def logit_direction(
    trace: Trace,
    target: Target,
    against: Target | None,
    tokenizer: object,
    freeze: str = "own",
    fold: bool = True,
) -> Direction:
    """The direction whose dot with the final stream is the target's logit (minus the other's).

    Args:
        target: a token, its id, or several of either (their mean).
        freeze: `own` divides by the final norm's scale at each position; `none` leaves the stream unscaled.
        fold: the final norm's gain and centring belong to the direction; otherwise the bare unembedding.
    """
    ends = trace.weights.ends()
    if freeze not in ("own", "none"):
        raise UsageError(f"freeze={freeze!r} is not a choice: use own or none")
    if ends.W_U is None:
        raise UnsupportedError("this model has no unembedding: give a direction in the stream instead")
    if ends.head_transform is not None:
        raise UnsupportedError(
            "this model's head is not linear in the stream (dense layer, activation, norm): logits have no shares"
        )
    ids, signs = target_weights(target, against, tokenizer, trace.weights.shape.d_vocab)
    read = read_columns(ends.W_U, ids, signs) * ends.logit_scale
    norm, stream = ends.final_norm, trace.stream_final.double()
    vector = fold_direction(read, norm) if fold else read
    vectors = vector / norm_scale(stream, norm) if freeze == "own" else vector.expand(len(stream), -1)
    if not (fold and freeze == "own"):
        return Direction(direction_name(target, against), vectors, {})
    rows = {} if norm.bias is None else {"final_norm_bias": float(norm.bias.double() @ read)}
    if ends.b_U is not None:
        rows["unembed_bias"] = float(ends.b_U[ids].double() @ signs.to(ends.b_U.device)) * ends.logit_scale
    return Direction(direction_name(target, against), vectors, rows, is_logit=True)


def fold_direction(read: Float[Tensor, "d_model"], norm: NormWeights) -> Float[Tensor, "d_model"]:
    """A direction behind a norm's gain and centring, seen from before them."""
    folded = read if norm.gain is None else read * norm.gain.double()
    return folded - folded.mean() if norm.kind == "layer" else folded


def vector_direction(
    trace: Trace, vector: Float[Tensor, "d_model"] | Any, name: str = "vector", stream: Tensor | None = None
) -> Direction:
    """Any vector of the stream (a probe, a difference of means, an SAE row), the same at every position."""
    stream = trace.stream_final if stream is None else stream
    if not isinstance(vector, Tensor) or vector.shape != stream.shape[-1:]:
        given = tuple(getattr(vector, "shape", ())) or type(vector).__name__
        raise UsageError(f"the direction has {given} numbers; the stream has {stream.shape[-1]}")
    if not bool(torch.isfinite(vector).all()):
        raise UsageError("the direction holds NaN or infinity: nothing has a share along it")
    return Direction(name, vector.double().to(stream.device).expand(len(stream), -1), {})


def vocabulary_weights(
    trace: Trace, target: Target, against: Target | None, tokenizer: object
) -> Float[Tensor, "d_vocab"]:
    """+1 over the targets, -1 over what they are held against, each side averaged."""
    size = trace.weights.shape.d_vocab
    ids, signs = target_weights(target, against, tokenizer, size)
    return torch.zeros(size, dtype=torch.float64).index_add_(0, torch.tensor(ids), signs)


def target_weights(
    target: Target, against: Target | None, tokenizer: object, size: int
) -> tuple[list[int], Float[Tensor, "slot"]]:
    """The same weights where they are not zero: token ids, and what each counts."""
    found: list[int] = []
    signs: list[float] = []
    for side, sign in ((target, 1.0), (against, -1.0)):
        if side is not None:
            ids = token_ids(side, tokenizer, size)
            found += ids
            signs += [sign / len(ids)] * len(ids)
    return found, torch.tensor(signs, dtype=torch.float64)


def read_columns(
    W_U: Float[Tensor, "d_out d_vocab"], ids: Sequence[int], signs: Float[Tensor, "slot"]
) -> Float[Tensor, "d_out"]:
    """Columns of the unembedding, weighed and summed in float64; the others are not touched."""
    return W_U[:, list(ids)].double() @ signs.to(W_U.device)


def as_target(given: Any) -> Target | None:
    """A target as text, id, or a list of them; numbers of numpy and torch are taken as such.

    Raises:
        UsageError: something that is no token.
    """
    plain = given.tolist() if hasattr(given, "tolist") else given
    items = list(plain) if isinstance(plain, list | tuple) else [] if plain is None else [plain]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise UsageError(f"{item!r} is not a token: give its text, or its id as a whole number")
    return items if isinstance(plain, list | tuple) else plain


def token_ids(target: Target, tokenizer: object, size: int) -> list[int]:
    """Ids of tokens given as text or ids.

    Raises:
        UsageError: a text that is not one token, or an id outside the vocabulary.
    """
    items = [target] if isinstance(target, str | int) else list(target)
    if not items:
        raise UsageError("there is no target token")
    ids = [item if isinstance(item, int) else one_token(item, tokenizer) for item in items]
    outside = next((i for i in ids if not 0 <= i < size), None)
    if outside is not None:
        raise UsageError(f"token id {outside} does not exist: the vocabulary has ids 0 to {size - 1}")
    return ids


def direction_name(target: Target, against: Target | None) -> str:
    return f"logit of {target!r}" if against is None else f"logit of {target!r} - {against!r}"
