"""Parity: what the factors rebuild, against what the model did.

For every head: the `pattern` from the factors, norms, offsets, biases, caps and masks; the `message`
(`sum_j A_ij message_j`) against the model's own write. For every layer: `attention`, the heads' sum plus
bias against what attention put out, and `stream`, the writes added up against the next stream. Once:
`logits`, this capture against the original library. Errors are `max|difference| / max|reference|`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import factor_head, head_label
from mechview.models.capture import AttentionCapture
from mechview.models.load import Model
from mechview.models.modules import original_logits
from mechview.models.norms import apply_norm, norm_scale
from mechview.models.scores import pattern_of
from mechview.models.trace import Trace, as_added
from mechview.models.tracing import Bos, Prompt, as_model, trace
from mechview.models.weights import AttentionWeights, Stack
from mechview.results import Result
from mechview.scores import scores_of, writes_of

TOLERANCE = 1e-4


@dataclass(frozen=True)
class ParityRow:
    """One comparison; `head` is None for whole layers, `layer` is None for the logits."""

    quantity: str
    error: float
    stack: Stack | None = None
    layer: int | None = None
    head: int | None = None
    kv_head: int | None = None
    label: str = ""


@dataclass(frozen=True)
class Parity(Result):
    """Parity of one model on one prompt."""

    rows: tuple[ParityRow, ...]
    backend: str
    n_tokens: int
    folded: bool

    @property
    def worst(self) -> ParityRow:
        return max(self.rows, key=lambda row: float("inf") if row.error != row.error else row.error)

    @property
    def passed(self) -> bool:
        return self.worst.error < TOLERANCE

    def errors(self, quantity: str) -> dict[str, float]:
        """Errors of one quantity by head label."""
        return {row.label: row.error for row in self.rows if row.quantity == quantity}


def parity(model: Model | Any, prompt: Prompt | Trace | Any, *, bos: Bos = "auto", fold: bool = True) -> Parity:
    """Compare factors with the model's own patterns, writes and sums on a prompt.

    Raises:
        UsageError: the first argument is not a model, or the second is one.
    """
    model = as_model(model)
    if isinstance(prompt, Model):
        raise UsageError("parity needs a prompt or a trace beside the model; two models are compared by mv.compare")
    seen = prompt if isinstance(prompt, Trace) else trace(model, prompt, bos=bos)
    rows: list[ParityRow] = []
    for stack in model.shape.stacks:
        for layer in range(model.shape.layers(stack)):
            rows += layer_parity(seen, layer, stack, fold)
    rows += _logits_row(model, seen)
    about = {"model": seen.model, "revision": seen.revision}
    return Parity(
        manifest=about, rows=tuple(rows), backend=seen.capture.backend, n_tokens=len(seen.tokens), folded=fold
    )


def layer_parity(seen: Trace, layer: int, stack: Stack, fold: bool = True) -> list[ParityRow]:
    """Rows of one attention layer."""
    weights, capture = seen.weights.attention(layer, stack), seen.attention(layer, stack)
    rebuilt, writes = rebuild(capture, weights, fold)
    own = seen.head_writes(layer, stack)
    several = len(seen.weights.shape.stacks) > 1
    rows = []
    for head in range(len(own)):
        group, label = int(weights.kv_head[head]), head_label(layer, head, stack, several)
        errors = {
            "pattern": relative(rebuilt[head], capture.pattern[head]),
            "message": relative(writes[head], own[head]),
        }
        rows += [ParityRow(name, error, stack, layer, head, group, label) for name, error in errors.items()]
    label = head_label(layer, 0, stack, several).removesuffix("H0")
    total = own.double().sum(0) + seen.bias_write(layer, stack).double()
    added = as_added(capture.written.double(), capture, weights)
    rows.append(ParityRow("attention", relative(total, added), stack, layer, label=label))
    return rows + [ParityRow("stream", _stream_error(seen, layer, stack, added), stack, layer, label=label)]


def rebuild(capture: AttentionCapture, weights: AttentionWeights, fold: bool = True) -> tuple[Tensor, Tensor]:
    """Pattern and head writes of a layer from its factors alone (and the model's stream), in float64."""
    factors = [factor_head(weights, head, fold) for head in range(len(weights.W_Q))]
    reads = capture.stream.double() / norm_scale(capture.stream.double(), weights.norm) if fold else capture.reads
    source = capture.source if weights.stack == "cross" else reads
    pattern = pattern_of(scores_of(factors, weights, reads, source), weights.sinks)
    writes = writes_of(factors, capture.pattern, source)
    if fold:
        return pattern, writes / norm_scale(capture.written.double(), weights.post_norm)
    return pattern, as_added(writes, capture, weights)


def relative(ours: Tensor, reference: Tensor) -> float:
    """`max|ours - reference| / max|reference|`; 0 when both are zero."""
    error = (ours.double() - reference.double()).abs().max()
    size = reference.double().abs().max()
    return 0.0 if float(error) == 0.0 else float(error / size)


def _stream_error(seen: Trace, layer: int, stack: Stack, added: Tensor) -> float:
    """The stream plus this layer's writes, against the model's next stream."""
    shape, capture = seen.weights.shape, seen.attention(layer, stack)
    attention = seen.weights.attention(layer, stack)
    after = apply_norm(capture.stream.double() + added, attention.stream_norm)
    if len(shape.stacks) > 1 and stack == "decoder":  # cross-attention comes next
        return relative(after, seen.attention(layer, "cross").stream)
    key = (shape.stacks[1] if stack == "cross" else stack, layer)
    mlp, weights = seen.capture.mlp[key], seen.weights.mlp(layer, key[0])
    written = apply_norm(mlp.written.double(), weights.post_norm) * weights.multiplier
    total = apply_norm(after + written, weights.stream_norm)
    middle = 0.0 if shape.placement == "parallel" else relative(after, mlp.stream)
    return max(middle, relative(total, seen.capture.post[key]))


@torch.no_grad()
def _logits_row(model: Model, seen: Trace) -> list[ParityRow]:
    if seen.logits is None or model.source.kind == "arrays":
        return []
    ids = torch.tensor([token.id for token in (seen.source_tokens or seen.tokens)], device=model.device)
    target = torch.tensor([token.id for token in seen.tokens], device=model.device) if seen.source_tokens else None
    reference = original_logits(model.module, ids, target)
    return [] if reference is None else [ParityRow("logits", relative(seen.logits, reference))]


def worst_rows(rows: Iterable[ParityRow], same: Callable[[ParityRow], tuple[Any, ...]]) -> list[ParityRow]:
    """Of rows with the same key the one with the largest error, a NaN being the largest."""
    found: dict[tuple[Any, ...], ParityRow] = {}
    for row in rows:
        if (key := same(row)) not in found or _size(row.error) > _size(found[key].error):
            found[key] = row
    return list(found.values())


def _size(error: float) -> float:
    return math.inf if math.isnan(error) else error


def worst_of(parities: Sequence[Parity]) -> Parity:
    """Parity on several prompts as one: the worst error of everything compared, the tokens together."""
    rows = worst_rows(
        (row for prompt in parities for row in prompt.rows),
        lambda row: (row.quantity, row.stack, row.layer, row.head),
    )
    return replace(parities[0], rows=tuple(rows), n_tokens=sum(prompt.n_tokens for prompt in parities))
