"""What a run will cost, before it: tokens, forward passes, floating-point operations and bytes.

From shapes and tokenisation alone: nothing is run, and no weight is read. Operations are of matrix products, two for
each multiply-add (embedding look-ups, norms and softmax left out). Bytes are of tensors: weights in the pass's dtype,
what is kept of the traces alive at once, what one pass holds for a moment, and the answer. A process needs its
libraries besides (about 0.5 GB). One prompt is run at a time, so peak bytes follow the longest prompt, not their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mechview.errors import UsageError
from mechview.models.intervene import BATCH
from mechview.models.load import Model
from mechview.models.reader import NamedWeights
from mechview.models.weights import ModelShape
from mechview.residual.components import component, components_of
from mechview.residual.grains import Split, split_of
from mechview.residual.paths import has_path
from mechview.results import Result

DOUBLE = 8


@dataclass(frozen=True)
class Cost(Result):
    """One estimate. `peak_bytes` is the sum of the parts that are held at once; `tokens` is of each prompt."""

    verb: str
    tokens: tuple[int, ...]
    passes: int
    flops: float
    weight_bytes: int
    trace_bytes: int
    transient_bytes: int
    answer_bytes: int
    peak_bytes: int
    model: str = ""
    revision: str | None = None


@dataclass(frozen=True)
class Sizes:
    """What the estimate needs of a model: its shape and what the shape leaves open."""

    shape: ModelShape
    matrices: int  # of one MLP or expert: 3 where it is gated
    experts: int
    active: int
    bytes: int
    has_head: bool
    keeps_scores: bool
    d_embed: int
    shared: int = 1  # layers that share one block's weights (ALBERT)

    def attention(self, stacks: int = 1) -> int:
        """Weights of the attentions of one block."""
        s = self.shape
        return stacks * 2 * s.d_model * s.d_head * (s.n_heads + s.n_kv_heads)

    def mlp(self, experts: int) -> int:
        return experts * self.matrices * self.shape.d_model * self.shape.d_mlp

    @property
    def weights(self) -> int:
        """Numbers in all matrices; tied embeddings once."""
        s = self.shape
        ends = s.d_vocab * self.d_embed * (1 if s.tied or not self.has_head else 2)
        places = s.d_model * (s.n_ctx or 0) if s.position == "learned" else 0
        return (
            ends + places + sum(n * (self.attention(k) + self.mlp(self.experts)) // self.shared for n, k in self.blocks)
        )

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Blocks of each stack, and how many attentions each has."""
        s = self.shape
        return ((s.n_layers, 1),) if len(s.stacks) == 1 else ((s.n_encoder_layers, 1), (s.n_layers, 2))

    def flops(self, n: int) -> float:
        """One pass over n tokens (both stacks of an encoder-decoder model are taken as long)."""
        s = self.shape
        per_block = lambda k: 2 * n * (self.attention(k) + self.mlp(self.active)) + k * 4 * n * n * s.n_heads * s.d_head  # noqa: E731
        return float(sum(layers * per_block(k) for layers, k in self.blocks) + 2 * n * self.logits(1) * s.d_model)

    def logits(self, n: int) -> int:
        return n * self.shape.d_vocab if self.has_head else 0

    def trace(self, n: int) -> int:
        """Bytes that a whole trace keeps: streams, z, writes, patterns (and scores), logits."""
        s = self.shape
        one = n * (3 * s.d_model + s.n_heads * s.d_head) + (2 if self.keeps_scores else 1) * s.n_heads * n * n
        blocks = sum(layers * (k * one + 3 * n * s.d_model) for layers, k in self.blocks)
        return self.bytes * (blocks + self.logits(n))

    def moment(self, n: int, rows: int = 1) -> int:
        """Bytes that a pass holds for a moment: the widest of MLP, scores and logits, over a few streams."""
        s = self.shape
        widest = max(3 * n * s.d_mlp * self.active, 3 * s.n_heads * n * n, self.logits(n))
        return self.bytes * rows * (widest + 6 * n * s.d_model)


def sizes_of(model: Model) -> Sizes:
    """Sizes from the configuration, the layout and the number type of the pass."""
    weights, shape = model.weights, model.shape
    if not isinstance(weights, NamedWeights):
        return Sizes(shape, 2, 1, 1, 4, True, True, shape.d_model)
    names, config = weights.layout.mlp, weights.config
    gated = bool(names.gate or names.fused_gate) or "gated" in str(getattr(config, "feed_forward_proj", ""))
    experts = int(getattr(config, "num_local_experts", 1) or 1) if names.router else 1
    active = int(getattr(config, "num_experts_per_tok", 1) or 1) if names.router else 1
    return Sizes(
        shape, 3 if gated else 2, experts, active, model.number_bytes, weights.has_head,
        model.uses_bridge and weights.layout.bridge_scores,
        int(getattr(config, "embedding_size", None) or getattr(config, "word_embed_proj_dim", None) or shape.d_model),
        max(1, shape.n_layers // int(getattr(config, "num_hidden_groups", None) or shape.n_layers)),
    )  # fmt: skip


def estimate(model: Model, prompts: Sequence[Sequence[int]], verb: str = "resid", **asked: Any) -> Cost:
    """What a verb will cost on prompts of token ids.

    Args:
        verb: resid, lens, why, compare, ablate, patch, attend or report.
        asked: what changes the cost: `by`, `neurons`, `target` and `growth` of resid, `layer` of why, `by` and `donors` (prompts that mean and resample
            take from) of ablate, `what`, `positions`, `receiver` and `sender` of patch, `models` of compare.

    Raises:
        UsageError: a verb that runs no pass.
    """
    if verb not in VERBS:
        raise UsageError(f"{verb} runs no pass to estimate; {', '.join(VERBS)} do")
    sizes, lengths = sizes_of(model), [len(ids) for ids in prompts]
    plan = (
        VERBS[verb](sizes, lengths, asked) if lengths else Plan(0, 0.0, 0, 0, 0)
    )  # weights are compared without a pass
    weights = sizes.weights * sizes.bytes * int(asked.get("models", 1))
    return Cost(
        verb=verb, tokens=tuple(lengths), passes=plan.passes, flops=plan.flops, weight_bytes=weights,
        trace_bytes=plan.traces, transient_bytes=plan.moment, answer_bytes=plan.answer,
        peak_bytes=weights + plan.traces + max(plan.moment, plan.answer), model=model.name,
        revision=model.source.revision,
    )  # fmt: skip


def estimate_each(model: Model, runs: Sequence[tuple[Sequence[Sequence[int]], dict[str, Any]]], verb: str) -> Cost:
    """The same for a verb that runs once for each case of a set: passes add up, memory is that of the largest case.

    Args:
        runs: of each case its prompts, and what changes its cost.
    """
    found = [estimate(model, prompts, verb, **asked) for prompts, asked in runs]
    largest = max(found, key=lambda cost: cost.peak_bytes)
    return replace(
        largest, tokens=tuple(n for cost in found for n in cost.tokens), passes=sum(cost.passes for cost in found),
        flops=sum(cost.flops for cost in found),
    )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Passes of a verb, their operations, and the bytes of its traces, of a moment, and of its answer."""

    passes: int
    flops: float
    traces: int
    moment: int
    answer: int


def _resid(sizes: Sizes, lengths: list[int], asked: dict[str, Any]) -> Plan:
    """Rows of the stream by grain (parts, rows, and their sum in float64), or shares at one position."""
    n, rows = max(lengths), _rows(sizes.shape, max(lengths), _split(asked))
    if asked.get("growth"):
        return _single(sizes, lengths, 3 * DOUBLE * _points(sizes.shape) * n * sizes.shape.d_model)
    wide = asked.get("target") is None
    answer = rows * n * sizes.shape.d_model * (2 * sizes.bytes + DOUBLE) if wide else rows * DOUBLE
    return _single(sizes, lengths, answer)


def _lens(sizes: Sizes, lengths: list[int], _: dict[str, Any]) -> Plan:
    """Logits of one point at a time in float64, with what readings of them hold for a moment."""
    return _single(sizes, lengths, 6 * DOUBLE * sizes.logits(max(lengths)))


def _single(sizes: Sizes, lengths: list[int], answer: int) -> Plan:
    n = max(lengths)
    return Plan(len(lengths), sum(map(sizes.flops, lengths)), sizes.trace(n), sizes.moment(n), answer)


def _compare(sizes: Sizes, lengths: list[int], asked: dict[str, Any]) -> Plan:
    """Both sides run every prompt; two traces are alive at once, and rows of both."""
    sides, n = int(asked.get("models", 1)), max(lengths)
    rows = _rows(sizes.shape, n, _split(asked))
    held = 2 * sizes.trace(n)
    answer = 2 * rows * n * sizes.shape.d_model * (2 * sizes.bytes + DOUBLE)
    return Plan(sides * len(lengths), sides * sum(map(sizes.flops, lengths)), held, sizes.moment(n), answer)


def _ablate(sizes: Sizes, lengths: list[int], asked: dict[str, Any]) -> Plan:
    """The clean pass, its donors' passes, one with all put back, and one a component (and a donor to resample)."""
    donors, method = [len(ids) for ids in asked.get("donors") or ()], asked.get("method", "zero")
    kinds = ("attention", "mlp") if asked.get("by") == "layer" else ("head", "mlp")
    changed = 1 + len(components_of(sizes.shape, kinds)) * (len(donors) if method == "resample" else 1)  # type: ignore[arg-type]
    return _changed(sizes, lengths, donors, changed)


def _patch(sizes: Sizes, lengths: list[int], asked: dict[str, Any]) -> Plan:
    """The clean and the corrupted pass, one with its own values put back, and one a patch."""
    what, s = str(asked.get("what", "heads")), sizes.shape
    if asked.get("receiver"):
        return _changed(sizes, lengths, [], 1 + _senders(s, asked))
    kinds = {"heads": "head", "attention": "attention", "mlp": "mlp"}
    points = 1 if s.placement == "parallel" else 2
    streams = sum(s.layers(stack) * points + 1 for stack in s.stacks[:2])
    changed = streams if what == "stream" else len(components_of(s, (kinds.get(what, "head"),)))  # type: ignore[arg-type]
    where = asked.get("positions") or ("each" if what == "stream" else "all")
    times = max(lengths) if where == "each" else 1 if where == "all" else len(where)
    return _changed(sizes, lengths, [], 1 + changed * times)


def _senders(shape: ModelShape, asked: dict[str, Any]) -> int:
    """Heads with a direct path to the receiver's input, or those asked for."""
    name, side = asked["receiver"]
    goal = component(shape, name)
    every = [part for part in components_of(shape, ("head",)) if has_path(part, goal, side)]
    return len(asked.get("sender") or every)


def _changed(sizes: Sizes, lengths: list[int], donors: list[int], changed: int) -> Plan:
    n = max(lengths)
    runs = [*lengths, *donors]
    flops = sum(map(sizes.flops, runs)) + changed * sizes.flops(n)
    held = sum(map(sizes.trace, lengths)) + max(map(sizes.trace, donors), default=0)  # donors run one at a time
    return Plan(len(runs) + changed, flops, held, sizes.moment(n, min(changed, BATCH)), 0)


def _attend(sizes: Sizes, lengths: list[int], _: dict[str, Any]) -> Plan:
    """Traces of all prompts stay alive; patterns and scores of every head are read from them."""
    plan, n = _single(sizes, lengths, 0), max(lengths)
    return Plan(plan.passes, plan.flops, sum(map(sizes.trace, lengths)), sizes.moment(n), 0)


def _why(sizes: Sizes, lengths: list[int], asked: dict[str, Any]) -> Plan:
    """Rows before the head's layer (of both stacks, one after the other), and every pair of them."""
    n, layers = max(lengths), int(asked.get("layer", sizes.shape.n_layers - 1)) + 1
    rows = _rows(sizes.shape, n, _split(asked), layers)
    return _single(sizes, lengths, 2 * rows * n * sizes.shape.d_model * sizes.bytes + 2 * DOUBLE * rows * rows)


def _split(asked: dict[str, Any]) -> Split:
    return split_of(asked.get("by") or "head", asked.get("neurons"))


def _points(shape: ModelShape) -> int:
    return shape.n_layers * (1 if shape.placement == "parallel" else 2) + 1


def _rows(shape: ModelShape, n: int, split: Split, layers: int | None = None) -> int:
    """Rows of a ledger at a grain; of biases, experts and neurons a few more a layer."""
    attentions = 1 if len(shape.stacks) == 1 else 2
    heads = {"layer": 1, "source": shape.n_heads * n + 1}.get(split.by, shape.n_heads + 1)
    extra = {"bias": 2, "neuron": split.neurons or 0, "expert": 8}.get(split.by, 0)
    return (shape.n_layers if layers is None else layers) * (attentions * heads + 1 + extra) + 3


VERBS: dict[str, Callable[[Sizes, list[int], dict[str, Any]], Plan]] = {
    "resid": _resid,
    "lens": _lens,
    "compare": _compare,
    "ablate": _ablate,
    "patch": _patch,
    "why": _why,
    "attend": _attend,
    "report": _attend,
}
