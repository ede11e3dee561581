"""A trace: what one forward pass added to the residual stream, as plain tensors.

One prompt, no batch axis. Patterns are the model's own; a head's write is `z W_O` with the post-norm of
families that have one applied at that position's own scale, and without the output bias.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.models.capture import AttentionCapture, Capture
from mechview.models.norms import fold_write, norm_scale
from mechview.models.reader import check_layer
from mechview.models.scores import attention_scores
from mechview.models.weights import AttentionWeights, ModelWeights, Stack
from mechview.tokens import Token

Point = Literal["pre", "mid", "post"]


@dataclass(frozen=True)
class Trace:
    """One pass over one prompt. `bos` says whether a beginning-of-sequence token was added.

    `start` is the position of the first token here: 0, unless this is a block of a trace's queries.
    """

    model: str
    weights: ModelWeights
    capture: Capture
    tokens: tuple[Token, ...]
    source_tokens: tuple[Token, ...] = ()
    bos: bool = False
    tokenizer: Any | None = field(default=None, repr=False, compare=False)
    revision: str | None = None
    start: int = 0

    def __repr__(self) -> str:
        return f"Trace({self.model!r}, {len(self.tokens)} tokens, from {self.capture.backend})"

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write this trace to a `.safetensors` file; `Trace.load(path, model)` reads it."""
        from mechview.models.saved import save_trace

        return save_trace(self, path, force=force)

    @staticmethod
    def load(path: str | Path, model: Any) -> Trace:
        """Read a trace that this model made."""
        from mechview.models.saved import load_trace

        return load_trace(path, model)

    @property
    def stack(self) -> Stack:
        """The stack that has the logits."""
        stacks = self.weights.shape.stacks
        return stacks[0] if len(stacks) == 1 else "decoder"

    @property
    def logits(self) -> Float[Tensor, "pos d_vocab"] | None:
        """The model's own logits; None for a model without an unembedding."""
        return self.capture.logits

    @property
    def patterns(self) -> list[Float[Tensor, "head q_pos k_pos"]]:
        """The model's own attention patterns, per layer."""
        return [self.attention(layer).pattern for layer in range(self.weights.shape.layers(self.stack))]

    @property
    def scores(self) -> list[Float[Tensor, "head q_pos k_pos"]]:
        """Scores before softmax, per layer, masked ones -inf; `scores_from` says whose they are."""
        return [self.layer_scores(layer) for layer in range(self.weights.shape.layers(self.stack))]

    @property
    def scores_from(self) -> str:
        """`model hook`, or `rebuilt from weights` where the model has no hook that is this quantity."""
        return "rebuilt from weights" if self.attention(0).scores is None else "model hook"

    def layer_scores(self, layer: int, stack: Stack | None = None) -> Float[Tensor, "head q_pos k_pos"]:
        seen = self.attention(layer, stack)
        if seen.scores is not None:
            return seen.scores
        return attention_scores(self.weights.attention(layer, stack or self.stack), seen.reads, seen.source)

    def attention(self, layer: int, stack: Stack | None = None) -> AttentionCapture:
        stack = check_layer(self.weights.shape, layer, stack or self.stack)
        return self.capture.attention[stack, layer]

    def tokens_of(self, stack: Stack) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
        """Query tokens and key tokens of a stack."""
        encoder = self.source_tokens or self.tokens
        return {"decoder": (self.tokens, self.tokens), "encoder": (encoder, encoder)}.get(stack, (self.tokens, encoder))

    def start_of(self, stack: Stack) -> int:
        """Position of the first query token of a stack."""
        return 0 if stack == "encoder" and len(self.weights.shape.stacks) > 1 else self.start

    def head_writes(self, layer: int, stack: Stack | None = None) -> Float[Tensor, "head q_pos d_model"]:
        """What each head adds to the stream: with value bias and post-norm, without `b_O`."""
        seen = self.attention(layer, stack)
        weights = self.weights.attention(layer, stack or self.stack)
        per_head = torch.einsum("qhd,hdm->hqm", seen.z, weights.W_O.to(seen.z))
        return as_added(per_head, seen, weights)

    def bias_write(self, layer: int, stack: Stack | None = None) -> Float[Tensor, "q_pos d_model"]:
        """What the output bias adds, through the same post-norm as the heads."""
        seen = self.attention(layer, stack)
        weights = self.weights.attention(layer, stack or self.stack)
        bias = torch.zeros_like(seen.written) if weights.b_O is None else weights.b_O.to(seen.written)
        return as_added(bias.expand_as(seen.written), seen, weights)

    def stream(self, layer: int, point: Point = "post", stack: Stack | None = None) -> Float[Tensor, "pos d_model"]:
        """The model's own residual stream before attention, before the MLP, or after the block."""
        stack = check_layer(self.weights.shape, layer, stack or self.stack)
        if point == "pre":
            return self.capture.attention[stack, layer].stream
        stack = "decoder" if stack == "cross" else stack  # one block of the decoder holds both attentions
        if point == "mid":
            if self.weights.shape.placement == "parallel":
                raise UsageError("a parallel block has no mid stream: attention and MLP read the same one")
            return self.capture.mlp[stack, layer].stream
        return self.capture.post[stack, layer]

    @property
    def stream_final(self) -> Float[Tensor, "pos d_model"]:
        """The stream after the last block, before the final norm."""
        return self.capture.post[self.stack, self.weights.shape.layers(self.stack) - 1]


def as_trace(trace: Any) -> Trace:
    """The trace, if it is one.

    Raises:
        UsageError: it is something else (a model that was not run, a prompt).
    """
    if not isinstance(trace, Trace):
        raise UsageError(f"a trace of a pass is needed, mv.trace(model, prompt); this is a {type(trace).__name__}")
    return trace


def as_added(
    write: Float[Tensor, "*part q_pos d_model"], seen: AttentionCapture, weights: AttentionWeights
) -> Float[Tensor, "*part q_pos d_model"]:
    """A part of the attention output as it reaches the stream: frozen post-norm scale, gain, multiplier."""
    scale = norm_scale(seen.written, weights.post_norm)
    return fold_write(write / scale, weights.post_norm) * weights.multiplier
