"""What one forward pass was seen to do, as plain tensors: the common result of every backend.

Each backend (TransformerLens bridge, forward hooks on the original module, plain arrays) fills the
same record, so that nothing above it knows where a number came from, and so that two backends can be
compared number by number.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mechview.models.weights import Stack
from mechview.reprs import short_repr

Site = tuple[Stack, int]


@dataclass(frozen=True)
class AttentionCapture:
    """One attention layer on one prompt.

    `stream` is the residual stream before the write, `reads` what the queries read (after the norm),
    `source` what keys and values read (another tensor only in cross-attention), `written` the output
    projection's result with its bias, before any post-norm or multiplier. `scores` are the model's own
    before softmax, masked ones -inf; `None` where its hook is not that quantity.
    """

    __repr__ = short_repr

    stream: Float[Tensor, "q_pos d_model"]
    reads: Float[Tensor, "q_pos d_model"]
    source: Float[Tensor, "k_pos d_model"]
    pattern: Float[Tensor, "head q_pos k_pos"]
    scores: Float[Tensor, "head q_pos k_pos"] | None
    z: Float[Tensor, "q_pos head d_head"]
    written: Float[Tensor, "q_pos d_model"]


@dataclass(frozen=True)
class MlpCapture:
    """One MLP: the stream before its write, and its output before any post-norm or multiplier."""

    __repr__ = short_repr

    stream: Float[Tensor, "pos d_model"]
    written: Float[Tensor, "pos d_model"]


@dataclass(frozen=True)
class Capture:
    """All layers of one pass. `post` is the stream after a block; `logits` is None without a head."""

    __repr__ = short_repr

    attention: dict[Site, AttentionCapture]
    mlp: dict[Site, MlpCapture]
    post: dict[Site, Tensor]
    logits: Float[Tensor, "pos d_vocab"] | None
    backend: str
