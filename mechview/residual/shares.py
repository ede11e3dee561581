"""Shares: what each component adds along a direction, summing to the model's own value there.

The direction is pushed back through frozen norms, multipliers and `W_O`, and met with each head's `z`:
no `[head, pos, d_model]` tensor is ever made. Constants that no component wrote (norm and unembedding
bias) are rows of their own. With a final soft-cap the shares are of the logit before the cap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import head_label
from mechview.models.blocks import queries
from mechview.models.neurons import activations, expert_writes
from mechview.models.norms import centred, fold_write, norm_scale
from mechview.models.trace import Trace, as_added, as_trace
from mechview.models.weights import AttentionWeights, NormWeights, Stack
from mechview.residual.embeddings import embed_steps
from mechview.residual.grains import Grain, Split, split_of
from mechview.residual.places import checked_position
from mechview.residual.readout import (
    Direction,
    Target,
    as_target,
    before_cap,
    logit_direction,
    target_weights,
    vector_direction,
)
from mechview.residual.rows import Transport, Write, mlp_added, values_of
from mechview.results import Result, check_count


@dataclass(frozen=True)
class Shares(Result):
    """`values[component]` along a direction at one position; `total` is the model's own value.

    `freeze` and `fold` say what was done with the final norm; only `own` with `fold` gives logits, and the
    total is otherwise the model's own final stream along the direction. `softcap` applies after the total. `neurons`
    is how many of each MLP have rows of their own, None at the other grains.
    """

    components: tuple[str, ...]
    values: Float[Tensor, "component"]
    total: float
    error: float
    direction: str
    position: int
    by: Grain
    neurons: int | None = None
    softcap: float | None = None
    freeze: str = "own"
    fold: bool = True
    model: str = ""
    revision: str | None = None

    def top(self, k: int | Any = 10) -> list[tuple[str, float]]:
        """The k largest rows by size, with sign.

        Raises:
            UsageError: k is not a positive whole number.
        """
        check_count(k)
        order = self.values.abs().argsort(descending=True)[:k].tolist()
        return [(self.components[n], float(self.values[n])) for n in order]


Along = tuple[list[str], Float[Tensor, "component pos"]]


def shares(
    trace: Trace | Any,
    target: Target | Any = None,
    against: Target | Any = None,
    position: int | Any = -1,
    by: Grain = "head",
    *,
    neurons: int | Any = None,
    direction: Float[Tensor, "d_model"] | None = None,
    freeze: str | None = None,
    fold: bool | None = None,
    tokenizer: object = None,
) -> Shares:
    """Direct attribution of a logit, a logit difference, or a stream direction, at one position.

    Args:
        neurons: of each MLP, how many have rows of their own (`by="neuron"`; 10 unless given): those with the largest
            shares. The others are one row, `L5.mlp_rest`.
        direction: a vector of the raw final stream; `shares_along` also reads one behind the final norm.
        freeze, fold: of a target: the final norm at its `own` scale (the default) or `none`, and whether its gain and
            centring belong to the direction (the default).

    Raises:
        UsageError: a target that is not one token, no such position, or neither target nor direction.
        UnsupportedError: the model's head is not linear in the stream.
    """
    trace, target, against = as_trace(trace), as_target(target), as_target(against)
    split, position = split_of(by, neurons), checked_position(position, len(trace.tokens))
    freeze, fold = _norm_choices(direction, freeze, fold)
    there = queries(trace, position, position + 1)  # nothing is computed for the other positions
    goal = _direction(there, target, against, direction, tokenizer or trace.tokenizer, freeze, fold)
    names, values = along(there, goal, split)
    total = _total(there, goal, target, against, tokenizer or trace.tokenizer)
    column = values[:, 0]
    return Shares(
        components=tuple(names),
        values=column,
        total=total,
        error=abs(float(column.sum()) - total) / max(abs(total), float(column.abs().max()), 1e-30),
        direction=goal.name,
        position=position,
        by=by,
        neurons=split.neurons,
        softcap=trace.weights.ends().softcap if goal.is_logit else None,
        freeze=freeze,
        fold=fold,
        model=trace.model,
        revision=trace.revision,
    )


def along(trace: Trace, goal: Direction, split: Split) -> Along:
    """Shares of every component at every position, `[component, pos]` in float64."""
    stack, D = trace.stack, goal.vectors
    found: list[Along] = [([name], torch.full((1, len(D)), value, dtype=D.dtype)) for name, value in goal.rows.items()]
    for layer in reversed(range(trace.weights.shape.layers(stack))):
        part, D = _mlp_along(trace, layer, split, stack, D)
        found += part
        for name in ("cross", stack) if len(trace.weights.shape.stacks) > 1 else (stack,):
            part, D = _attention_along(trace, layer, split, name, D)
            found += part
    found += _embed_along(trace, stack, D)
    found.reverse()
    return [name for names, _ in found for name in names], torch.cat([values for _, values in found])


def _attention_along(trace: Trace, layer: int, split: Split, stack: Stack, D: Tensor) -> tuple[list[Along], Tensor]:
    weights, seen = trace.weights.attention(layer, stack), trace.attention(layer, stack)
    place = head_label(layer, 0, stack, len(trace.weights.shape.stacks) > 1).removesuffix("H0")
    before = seen.stream.double() + as_added(seen.written.double(), seen, weights)
    found, D = _through(weights.stream_norm, before, f"L{layer}.attn_norm_bias", D)
    back = fold_write(D / norm_scale(seen.written.double(), weights.post_norm), weights.post_norm) * weights.multiplier
    if split.by == "layer":
        return [*found, ([f"{place}.attn"], (seen.written.double() * back).sum(-1)[None])], D
    bias = torch.zeros_like(back[:, 0]) if weights.b_O is None else back @ weights.b_O.double()
    names, values = _heads_along(trace, layer, split, stack, weights, back)
    return [*found, ([*names, f"{place}.attn_bias"], torch.cat([values, bias[None]]))], D


def _heads_along(
    trace: Trace,
    layer: int,
    split: Split,
    stack: Stack,
    weights: AttentionWeights,
    back: Float[Tensor, "q_pos d_model"],
) -> Along:
    seen, several = trace.attention(layer, stack), len(trace.weights.shape.stacks) > 1
    labels = [head_label(layer, h, stack, several) for h in range(len(weights.W_Q))]
    asked = einsum(back, weights.W_O.double(), "q_pos d_model, head d_head d_model -> head q_pos d_head")
    if split.by == "source":
        sent = einsum(asked, values_of(seen.source.double(), weights), "head q d_head, head k d_head -> head k q")
        parts = (seen.pattern.double().mT * sent).flatten(0, 1)
        return [f"{label}<-{key}" for label in labels for key in range(seen.pattern.shape[-1])], parts
    heads = einsum(asked, seen.z.double(), "head q_pos d_head, q_pos head d_head -> head q_pos")
    if split.by != "bias":
        return labels, heads
    b_V = None if weights.b_V is None else weights.b_V[weights.kv_head].double()
    values = torch.zeros_like(heads) if b_V is None else einsum(asked, b_V, "head q d_head, head d_head -> head q")
    values = values * seen.pattern.double().sum(-1)
    place = labels[0].removesuffix("H0")
    return [*labels, f"{place}.value_bias"], torch.cat([heads - values, values.sum(0, keepdim=True)])


def _mlp_along(trace: Trace, layer: int, split: Split, stack: Stack, D: Tensor) -> tuple[list[Along], Tensor]:
    weights, seen = trace.weights.mlp(layer, stack), trace.capture.mlp[stack, layer]
    written = seen.written.double()
    before = seen.stream.double() + mlp_added(written, seen, weights)
    found, D = _through(weights.stream_norm, before, f"L{layer}.mlp_norm_bias", D)
    back = fold_write(D / norm_scale(written, weights.post_norm), weights.post_norm) * weights.multiplier
    whole = (written * back).sum(-1)[None]
    if split.by == "expert":
        if weights.router is None:
            raise UsageError("this model has no experts: use by='neuron' or by='head'")
        parts = einsum(expert_writes(seen.stream.double(), weights), back, "expert pos d, pos d -> expert pos")
        return [*found, ([f"L{layer}.expert{n}" for n in range(len(parts))], parts)], D
    if split.by == "neuron":
        if weights.router is not None:
            raise UsageError("neurons of a mixture of experts are not split: use by='expert'")
        each = (activations(seen.stream.double(), weights) * (back @ weights.W_out.double().mT)).mT
        top = each.abs().amax(-1).topk(min(split.neurons or 0, len(each))).indices
        rest = whole - each[top].sum(0, keepdim=True)
        names = [*(f"L{layer}.n{n}" for n in top.tolist()), f"L{layer}.mlp_rest"]
        return [*found, (names, torch.cat([each[top], rest]))], D
    if split.by == "bias" and weights.b_out is not None and weights.router is None:
        bias = (back @ weights.b_out.double())[None]
        return [*found, ([f"L{layer}.mlp", f"L{layer}.mlp_bias"], torch.cat([whole - bias, bias]))], D
    return [*found, ([f"L{layer}.mlp"], whole)], D


def _embed_along(trace: Trace, stack: Stack, D: Tensor) -> list[Along]:
    found: list[Along] = []
    for step in reversed(list(embed_steps(trace, stack))):
        if isinstance(step, Write):
            found.append((list(step.names), (step.values.double() * D).sum(-1)))
        else:
            D = _back(step, D)
    return found


def _back(step: Transport, D: Tensor) -> Tensor:
    """A direction behind a frozen norm or projection, seen from before it."""
    if step.matrix is not None:
        return D @ step.matrix.double().mT
    return centred(fold_write(D, step.norm), step.norm) / step.scale.double()


def _through(norm: NormWeights, before: Tensor, bias_name: str, D: Tensor) -> tuple[list[Along], Tensor]:
    """A direction pushed back through a norm of the stream, whose bias is a row."""
    if norm.kind == "none":
        return [], D
    rows: list[Along] = [] if norm.bias is None else [([bias_name], (D @ norm.bias.double())[None])]
    return rows, centred(fold_write(D, norm), norm) / norm_scale(before, norm)


def _direction(
    trace: Trace,
    target: Target | None,
    against: Target | None,
    vector: Tensor | None,
    tokenizer: object,
    freeze: str,
    fold: bool,
) -> Direction:
    if (target is None) == (vector is None):
        raise UsageError("give a target token or a direction, one of the two")
    if vector is not None:
        return vector_direction(trace, vector)
    return logit_direction(trace, target, against, tokenizer, freeze, fold)  # type: ignore[arg-type]


def _norm_choices(vector: Tensor | None, freeze: str | None, fold: bool | None) -> tuple[str, bool]:
    """What is done with the final norm: all of it for a logit unless told, nothing for a vector of the raw stream."""
    if vector is None:
        return "own" if freeze is None else freeze, True if fold is None else fold
    if freeze is not None or fold is not None:
        raise UsageError(
            "a direction is read from the raw stream, so there is no norm to freeze or fold: use shares_along with "
            "read='final norm'"
        )
    return "none", False


def _total(trace: Trace, goal: Direction, target: Target | None, against: Target | None, tokenizer: object) -> float:
    """The model's own value: its logit before the cap, or its own final stream along the direction."""
    if target is None or trace.logits is None or not goal.is_logit:
        return float(trace.stream_final[0].double() @ goal.vectors[0])
    ids, signs = target_weights(target, against, tokenizer, trace.weights.shape.d_vocab)
    return float(before_cap(trace.logits[0, ids], trace.weights.ends()) @ signs.to(trace.logits.device))
