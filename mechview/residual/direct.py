"""Direct attribution of every component at every position at once, without writing any component out.

A direction at the end of the stream is pushed back through the frozen norms and, head by head, through `W_O`
into `d_head` numbers, where it meets `z`; nothing of shape `[head, pos, d_model]` is ever made. Along one
direction all positions share one vector up to a factor (each norm only divides by its own scale), so a head costs
`d_head` products a position. With a target of its own at each position (`each=`) there is one vector a position.

Numbers are in the dtype of the pass (half precision in float32); `mv.shares` gives one position in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import head_label
from mechview.models.norms import fold_write
from mechview.models.trace import Trace, as_trace
from mechview.models.weights import NormWeights, Stack
from mechview.models.write_maps import WriteMap
from mechview.models.write_trace import WriteTrace, written_in
from mechview.residual.embeddings import token_steps
from mechview.residual.goals import Goal, Pushed, goal_of
from mechview.residual.readout import Target, as_target
from mechview.residual.rows import Write
from mechview.results import Result

Along = tuple[list[str], Float[Tensor, "component pos"]]


@dataclass(frozen=True)
class Attribution(Result):
    """Rows `values[component, pos]` along a direction; `total` is the model's own value at each position.

    `error` is the largest of |sum of rows - total| over the largest of |total| and the rows, position by
    position. With a final soft-cap, values are of the logit before it.
    """

    components: tuple[str, ...]
    values: Float[Tensor, "component pos"]
    total: Float[Tensor, "pos"]
    error: float
    direction: str
    n_layers: int
    n_heads: int
    softcap: float | None = None
    model: str = ""
    revision: str | None = None

    @property
    def heads(self) -> Float[Tensor, "layer head pos"]:
        """Every head's share at every position; of the decoder's own attention where there are two."""
        return self.heads_of("")

    @property
    def cross_heads(self) -> Float[Tensor, "layer head pos"]:
        """The same for heads of cross-attention.

        Raises:
            UsageError: the model has no cross-attention.
        """
        if "X.L0H0" not in self.components:
            raise UsageError(f"{self.model} has no cross-attention")
        return self.heads_of("X.")

    def heads_of(self, prefix: str) -> Float[Tensor, "layer head pos"]:
        firsts = [self.components.index(f"{prefix}L{layer}H0") for layer in range(self.n_layers)]
        return torch.stack([self.values[n : n + self.n_heads] for n in firsts])

    def row(self, component: str) -> Float[Tensor, "pos"]:
        if component not in self.components:
            raise UsageError(f"there is no row {component}; there are {self.components[0]} to {self.components[-1]}")
        return self.values[self.components.index(component)]


def direct_attribution(
    trace: Trace | WriteTrace | Any,
    target: Target | Any = None,
    against: Target | Any = None,
    *,
    direction: Float[Tensor, "d_model"] | None = None,
    each: Sequence[str | int] | None = None,
    each_against: Sequence[str | int] | None = None,
    tokenizer: object = None,
) -> Attribution:
    """What every head, MLP and constant adds along a direction, at all positions.

    Args:
        trace: of `mv.trace`, or the lighter one of `mv.write_trace`.
        target, against: token, id, or several (their mean), the same at every position.
        direction: a vector of the stream instead.
        each, each_against: a token of its own for every position, such as the one that follows.

    Raises:
        UsageError: none or several of target, direction and each, or not one token a position.
        UnsupportedError: the model's head is not linear in the stream.
    """
    seen = trace if isinstance(trace, WriteTrace) else written_in(as_trace(trace))
    goal = goal_of(
        seen, as_target(target), as_target(against), direction, each, each_against, tokenizer or seen.tokenizer
    )
    names, values = _rows(seen, goal)
    total, double = goal.total.double(), values.double()
    off = (double.sum(0) - total).abs() / torch.maximum(total.abs(), double.abs().amax(0)).clamp(min=1e-30)
    shape = seen.maps.shape
    return Attribution(
        components=tuple(names), values=values, total=total.to(values), error=float(off.max()), direction=goal.name,
        n_layers=shape.layers(seen.maps.stack), n_heads=shape.n_heads,
        softcap=seen.maps.ends.softcap if goal.is_logit else None, model=seen.model, revision=seen.revision,
    )  # fmt: skip


def direct_attributions(
    traces: Iterable[Trace | WriteTrace],
    target: Target | None = None,
    against: Target | None = None,
    *,
    direction: Float[Tensor, "d_model"] | None = None,
    tokenizer: object = None,
) -> Iterator[Attribution]:
    """One attribution a trace, each made only when it is asked for; `mv.write_traces` runs prompts as lazily."""
    for trace in traces:
        yield direct_attribution(trace, target, against, direction=direction, tokenizer=tokenizer)


def _rows(seen: WriteTrace, goal: Goal) -> Along:
    """Rows in the order they are written, made from the last to the first."""
    D = goal.pushed
    pos = torch.ones_like(D.factor).mT
    found: list[Along] = [([name], value.to(D.factor) * pos) for name, value in goal.rows.items()]
    for layer in reversed(range(seen.maps.shape.layers(seen.maps.stack))):
        part, D = _mlp_rows(seen, layer, D)
        found += part
        for stack in reversed(seen.maps.attention_stacks):
            part, D = _attention_rows(seen, layer, stack, D)
            found += part
    found += _embed_rows(seen, D)
    found.reverse()
    return [name for names, _ in found for name in names], torch.cat([values for _, values in found])


def _attention_rows(seen: WriteTrace, layer: int, stack: Stack, D: Pushed) -> tuple[list[Along], Pushed]:
    maps, written = seen.maps.attention[stack, layer], seen.attention[stack, layer]
    found, D = _through(maps.stream_norm, written.stream_scale, f"L{layer}.attn_norm_bias", D)
    back = _behind(maps, written.post_scale, D)
    several = len(seen.maps.shape.stacks) > 1
    labels = [head_label(layer, head, stack, several) for head in range(seen.maps.shape.n_heads)]
    place = labels[0].removesuffix("H0")
    rows = torch.cat([_heads_along(maps, written.z, back), back.constant(maps.b_O)[None]])
    return [*found, ([*labels, f"{place}.attn_bias"], rows)], D


def _heads_along(maps: WriteMap, z: Float[Tensor, "pos head d_head"], back: Pushed) -> Float[Tensor, "head pos"]:
    if maps.W_O is None:
        raise UsageError("an MLP has no heads")
    flat = maps.W_O.flatten(0, 1).to(back.vectors)
    asked = (back.vectors @ flat.mT).unflatten(-1, z.shape[1:])
    met = (z.to(asked) * asked).sum(-1).mT if len(asked) == 1 else asked.mul_(z).sum(-1).mT
    return met * back.factor.mT


def _mlp_rows(seen: WriteTrace, layer: int, D: Pushed) -> tuple[list[Along], Pushed]:
    maps, written = seen.maps.mlp[layer], seen.mlp[layer]
    found, D = _through(maps.stream_norm, written.stream_scale, f"L{layer}.mlp_norm_bias", D)
    return [*found, ([f"L{layer}.mlp"], _behind(maps, written.post_scale, D).dot(written.written)[None])], D


def _embed_rows(seen: WriteTrace, D: Pushed) -> list[Along]:
    found: list[Along] = []
    ids = [token.id for token in seen.tokens]
    for step in reversed(list(token_steps(seen.maps.ends, ids, seen.final.to(D.vectors)))):
        if isinstance(step, Write):
            found.append((list(step.names), torch.stack([D.dot(row) for row in step.values])))
        elif step.matrix is not None:
            D = Pushed(D.vectors @ step.matrix.to(D.vectors).mT, D.factor)
        else:
            D = D.before(step.norm, step.scale)
    return found


def _through(norm: NormWeights, scale: Tensor | None, bias_name: str, D: Pushed) -> tuple[list[Along], Pushed]:
    """A direction pushed back through a norm of the stream, whose bias is a row."""
    if scale is None:
        return [], D
    rows: list[Along] = [] if norm.bias is None else [([bias_name], D.constant(norm.bias)[None])]
    return rows, D.before(norm, scale)


def _behind(maps: WriteMap, scale: Tensor | None, D: Pushed) -> Pushed:
    """The direction that a write meets: behind its post-norm and multiplier."""
    factor = D.factor if scale is None else D.factor / scale.to(D.factor)
    vectors = fold_write(D.vectors, maps.post_norm)
    return Pushed(vectors if maps.multiplier == 1.0 else vectors * maps.multiplier, factor)
