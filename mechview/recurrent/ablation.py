"""Causal retention: take a write away and see how much of it is missing at the end.

    rho^causal_k = <dx, w_k> / |w_k|^2,   dx = x_K(clean) - x_K(without what distinguishes w_k)

`w_k` is replaced by its mean over the tokens (the centred write is subtracted) and everything after it is
computed anew, so the number holds the direct path and whatever later components do about it: 1 if they do
nothing, less if they take it back, more if they amplify it. Its null of
other tokens is the product with another token's write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.errors import ModelError
from mechview.models.intervene import Place, Replacement, edited, edits_of, runnable
from mechview.models.load import Model
from mechview.models.modules import reset_dynamic_rotary
from mechview.models.trace import Trace
from mechview.recurrent.depth import Writes
from mechview.recurrent.stream import blocks, other_tokens
from mechview.residual.components import Component, components_of, value_of

BATCH = 16
SHUFFLES = 20


@dataclass(frozen=True)
class CausalRetention:
    """What is missing at the end, along each write: inner products and squared sizes by prompt (or block).

    `other` are the products with the write of another token (a null); `even` are the values with every token's
    squared writes summing to 1; `unchanged` is the error of a pass with every write put back as it was.
    """

    names: tuple[str, ...]
    met: Float[Tensor, "_group write"]
    size: Float[Tensor, "_group write"]
    other: Float[Tensor, "_draw write"]
    even: Float[Tensor, "write"]
    unchanged: float

    @property
    def values(self) -> Float[Tensor, "write"]:
        return self.met.sum(0) / self.size.sum(0)

    @property
    def null(self) -> Float[Tensor, "_draw write"]:
        return self.other / self.size.sum(0)


def causal_retention(
    model: Model, traces: Sequence[Trace], written: Writes, generator: torch.Generator
) -> CausalRetention:
    """Causal retention of every attention layer's and MLP's write at the end of the stream.

    Raises:
        UnsupportedError: the model came without a module, or its passes cannot be changed faithfully.
    """
    streams = ("decoder", "cross") if len(model.shape.stacks) > 1 else model.shape.stacks
    parts = [part for part in components_of(model.shape, ("attention", "mlp")) if part.stack in streams]
    pairs = list(zip(traces, written.keep, strict=True))
    means = [torch.cat([value_of(trace, part)[keep] for trace, keep in pairs]).mean(0) for part in parts]
    lost = [lost_streams(model, trace, parts, means) for trace in traces]
    moved = torch.cat([found[:, keep] for (found, _), keep in zip(lost, written.keep, strict=True)], 1)
    rows = torch.cat([found[:, keep] for found, keep in zip(written.rows, written.keep, strict=True)], 1)
    write = rows[[written.names.index(part.name) for part in parts]]
    write, moved = write - write.mean(1, keepdim=True), moved - moved.mean(1, keepdim=True)
    group = blocks([int(keep.sum()) for keep in written.keep])
    others = [other_tokens(write.shape[1], generator) for _ in range(SHUFFLES)]
    met, size = (moved * write).sum(2), write.square().sum(2)
    alike = size.sum(0).clamp(min=1e-300).reciprocal()
    return CausalRetention(
        names=tuple(part.name for part in parts),
        met=by_group(met, group),
        size=by_group(size, group),
        other=torch.stack([(moved * write[:, other]).sum((1, 2)) for other in others]),
        even=(alike * met).sum(1) / (alike * size).sum(1),
        unchanged=max(error for _, error in lost),
    )


def by_group(values: Float[Tensor, "write token"], group: Int[Tensor, "token"]) -> Float[Tensor, "_group write"]:
    return values.new_zeros(int(group.max()) + 1, len(values)).index_add_(0, group, values.mT)


@torch.no_grad()
def lost_streams(
    model: Model, trace: Trace, parts: Sequence[Component], means: Sequence[Tensor]
) -> tuple[Float[Tensor, "write pos d_model"], float]:
    """What each ablation takes from the final stream, and how far a pass without a change is off."""
    length = len(trace.tokens)
    rows = [[Replacement(part.place, mean.expand(length, -1))] for part, mean in zip(parts, means, strict=True)]
    rows = [[Replacement(part.place, value_of(trace, part)) for part in parts], *rows]
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    streams = torch.cat([final_streams(model, trace, batch) for batch in batches]).double()
    clean = trace.stream_final.double()
    unchanged = float((streams[0] - clean).abs().max() / clean.abs().max())
    return clean - streams[1:], unchanged


def final_streams(
    model: Model, trace: Trace, rows: Sequence[Sequence[Replacement]]
) -> Float[Tensor, "_row pos d_model"]:
    """The stream after the last block, in a pass for each row with its replacements."""
    module, seen = runnable(model), []
    place = Place("post", model.shape.layers(trace.stack) - 1, trace.stack)

    def listen(value: Tensor) -> Tensor:
        seen.append(value)
        return value

    source = torch.tensor([token.id for token in trace.source_tokens or trace.tokens], device=model.device)
    keywords = {"use_cache": False}
    if trace.source_tokens:
        own = torch.tensor([token.id for token in trace.tokens], device=model.device)
        keywords["decoder_input_ids"] = own.expand(len(rows), -1)  # type: ignore[assignment]
    reset_dynamic_rotary(module)
    with edited(module, model, {**edits_of(rows, model.shape.n_heads), place: listen}):
        module(source.expand(len(rows), -1), **keywords)
    if len(seen) != 1:
        raise ModelError(f"the last block was heard {len(seen)} times in one pass")
    return seen[0]
