"""What a metric is given: one attention layer on one prompt of a battery, or one layer's weights.

Passes come from the original module, without padding and one prompt at a time, so no score depends on
what else was run. In an encoder-decoder model the decoder reads the encoder's prompt after its start
token: the same test then exists in every stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechview.errors import MechviewError, UnsupportedError, UsageError
from mechview.factors import HeadFactors, factor_head
from mechview.heads.batteries import TestPrompt
from mechview.heads.registry import Metric
from mechview.models.capture import AttentionCapture
from mechview.models.intervene import recorded
from mechview.models.load import Model
from mechview.models.norms import apply_norm, centred, fold_write, norm_scale
from mechview.models.positions import visible
from mechview.models.scores import attention_scores
from mechview.models.trace import Trace
from mechview.models.tracing import decoder_ids
from mechview.models.weights import AttentionWeights, EndWeights, Stack


@dataclass(frozen=True)
class Readout:
    """How the stream becomes logits, where that is linear up to the final norm's scale.

    `mean` is the mean column of the unembedding: logits are centred with it.
    """

    W: Float[Tensor, "d_model d_vocab"]
    mean: Float[Tensor, "d_model"]
    ends: EndWeights

    def rises(self, write: Float[Tensor, "*any d_model"], ids: Int[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """What a write adds to the centred logit of one token each, before the final norm's scale."""
        toward = self.W[:, ids].movedim(0, -1) - self.mean
        return (self.folded(write) * toward.to(write)).sum(-1)

    def folded(self, write: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        return fold_write(centred(write, self.ends.final_norm), self.ends.final_norm) * self.ends.logit_scale


def readout(ends: EndWeights) -> Readout:
    """
    Raises:
        UnsupportedError: the model has no unembedding, or one that is not linear in the stream.
    """
    if ends.W_U is None:
        raise UnsupportedError("this model has no unembedding: nothing it writes is a logit")
    if ends.head_transform is not None:
        raise UnsupportedError("this model has a layer before its unembedding: logits are not linear in the stream")
    return Readout(ends.W_U, ends.W_U.mean(1, dtype=torch.promote_types(ends.W_U.dtype, torch.float32)), ends)


@dataclass(frozen=True)
class LayerPass:
    """One attention layer on one prompt; `prompt` counts positions in this stack's own tokens."""

    prompt: TestPrompt
    layer: int
    stack: Stack
    attention: AttentionWeights
    trace: Trace
    shared: Shared

    @property
    def seen(self) -> AttentionCapture:
        return self.trace.attention(self.layer, self.stack)

    @property
    def pattern(self) -> Float[Tensor, "head q_pos k_pos"]:
        return self.seen.pattern

    @property
    def ids(self) -> Int[Tensor, "k_pos"]:
        """Ids of the tokens that keys belong to."""
        return torch.tensor([token.id for token in self.trace.tokens_of(self.stack)[1]], device=self.pattern.device)

    @cached_property
    def visible(self) -> Bool[Tensor, "q_pos k_pos"]:
        """Cells that mask and window leave."""
        q_pos, k_pos = (torch.arange(n, device=self.pattern.device) for n in self.pattern.shape[1:])
        return visible(q_pos, k_pos, self.attention.causal, self.attention.window)

    @cached_property
    def scores(self) -> Float[Tensor, "head q_pos k_pos"]:
        """Scores before softmax, masked ones -inf."""
        own = self.seen.scores
        return attention_scores(self.attention, self.seen.reads, self.seen.source) if own is None else own

    @cached_property
    def sent(self) -> Float[Tensor, "head k_pos d_model"]:
        """What each key's token would send: its value through `W_O`, with a post-norm's gain, without its scale."""
        return message_of(self.seen.source, self.attention)

    @cached_property
    def value_weighted(self) -> Float[Tensor, "head q_pos k_pos"]:
        """Attention times the norm of what is sent, as shares of each query."""
        size = self.pattern * self.sent.norm(dim=-1)[:, None]
        return size / size.sum(-1, keepdim=True)

    def mass(
        self, cells: Bool[Tensor, "q_pos k_pos"], weight: Float[Tensor, "head q_pos k_pos"] | None = None
    ) -> Float[Tensor, "head"]:
        """Weight on the chosen cells, mean over the queries that have a visible one; NaN if none has."""
        weight, cells = self.pattern if weight is None else weight, cells & self.visible
        rows = cells.any(1)
        return (weight.double() * cells).sum(-1)[:, rows].mean(1)

    def offset_cells(self, offset: int, first: int) -> Bool[Tensor, "q_pos k_pos"]:
        """Cells `k = q - offset` of ordinary tokens, for queries from `first` on."""
        q, k = torch.meshgrid(
            *(torch.arange(n, device=self.pattern.device) for n in self.pattern.shape[1:]), indexing="ij"
        )
        inside = (q >= first) & (q < self.prompt.stop) & (k >= self.prompt.start) & (k < self.prompt.stop)
        return (q - k == offset) & inside


@dataclass(frozen=True)
class Shared:
    """What passes of one model share."""

    ends: EndWeights

    @cached_property
    def readout(self) -> Readout:
        return readout(self.ends)


@dataclass(frozen=True)
class LayerWeights:
    """One layer's weights, for metrics that need no text."""

    layer: int
    stack: Stack
    attention: AttentionWeights
    model: Model
    shared: Shared

    @cached_property
    def factors(self) -> list[HeadFactors]:
        """Every head's factors, norms folded."""
        heads, several = range(self.model.shape.n_heads), len(self.model.shape.stacks) > 1
        return [factor_head(self.attention, head, True, several) for head in heads]


def prompt_passes(model: Model, prompt: TestPrompt, shared: Shared) -> Iterator[LayerPass]:
    """Every attention layer of one pass over a prompt."""
    ids, decoder = list(prompt.ids), None
    if model.shape.n_encoder_layers:
        decoder = [*decoder_ids(model, None), *ids]
    trace = recorded(model, ids, decoder=decoder)
    for stack in model.shape.stacks:
        for layer in range(model.shape.layers(stack)):
            moved = 0 if decoder is None or stack == "encoder" else len(decoder) - len(ids)
            yield LayerPass(shifted(prompt, moved), layer, stack, model.weights.attention(layer, stack), trace, shared)


def message_of(x: Float[Tensor, "pos d_model"], weights: AttentionWeights) -> Float[Tensor, "head pos d_model"]:
    """What each head would send for what it reads, with the gain of a post-norm and without its scale."""
    values = torch.einsum("kd,gde->gke", x, weights.W_V.to(x))
    values = values if weights.b_V is None else values + weights.b_V.to(x)[:, None]
    sent = values[weights.kv_head.to(x.device)] @ weights.W_O.to(x)
    return fold_write(sent, weights.post_norm)


def shifted(prompt: TestPrompt, by: int) -> TestPrompt:
    places = tuple(place + by for place in prompt.places)
    return replace(prompt, start=prompt.start + by, stop=prompt.stop + by, places=places)


def read_out(write: Float[Tensor, "*any d_model"], unembed: Readout) -> Float[Tensor, "*any d_vocab"]:
    """Logits of a write taken as the whole stream: final norm at its own scale, then the unembedding."""
    logits = apply_norm(write, unembed.ends.final_norm) @ unembed.W.to(write)
    return logits if unembed.ends.b_U is None else logits + unembed.ends.b_U.to(write)


def final_scale(trace: Trace, unembed: Readout) -> Float[Tensor, "pos 1"]:
    """The final norm's scale at each position of a pass."""
    return norm_scale(trace.stream_final, unembed.ends.final_norm)


def called(one: Metric, seen: Any) -> Tensor:
    """The metric's values as float64, if it gave one for each head: finite, or NaN where it does not exist.

    Raises:
        UsageError: it failed, or gave something else.
    """
    heads = len((seen[0] if isinstance(seen, list) else seen).attention.W_Q)
    try:
        value = torch.as_tensor(one.measure(seen) if one.measure else math.nan).detach().cpu()
    except MechviewError:
        raise
    except Exception as error:  # a user's function may fail in any way
        raise UsageError(f"metric {one.name} fails: {error!r:.200}") from error
    if value.shape != (heads,):
        raise UsageError(
            f"metric {one.name} gave shape {list(value.shape)}; it must give one value for each of {heads} heads"
        )
    if value.is_complex() or value.isinf().any():
        raise UsageError(f"metric {one.name} gave complex or infinite values; a score is a real number, or NaN")
    return value.double()
