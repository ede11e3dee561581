"""What a model cannot give, or gives only under a condition, as one sentence each.

A table of (name, when, sentence). `when` looks at the shape and at layer 0 to the last, which reads
weights only where the configuration does not say. A quantity that is not listed here exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mechview.models.arrays import ArrayWeights
from mechview.models.reader import NamedWeights
from mechview.models.shape import LayerNumbers, layer_numbers, refused_pass
from mechview.models.weights import ModelShape, ModelWeights


@dataclass(frozen=True)
class Facts:
    """What the conditions look at: no tensor is read."""

    shape: ModelShape
    numbers: tuple[LayerNumbers, ...]
    weights: ModelWeights
    config: Any

    @property
    def has_head(self) -> bool:
        return bool(getattr(self.weights, "has_head", True))

    def any_rotary(self, condition: Callable[[Any], bool]) -> bool:
        return any(n.rotary is not None and condition(n.rotary) for n in self.numbers)

    def rotated_alike(self) -> bool:
        turns = [n.rotary.frequencies(self.shape.n_ctx)[0] for n in self.numbers if n.rotary]
        return all(torch.equal(turn, turns[0]) for turn in turns)

    def layout(self, name: str) -> Any:
        return getattr(getattr(self.weights, "layout", None), name, None)


@dataclass(frozen=True)
class Limit:
    """Something a kind of model does not have, or has under a condition, in a sentence."""

    when: Callable[[Facts], bool]
    sentence: str


LIMITS = (
    Limit(
        lambda f: f.shape.position == "rotary",
        "rotary positions: the pattern is one matrix per offset q_pos - k_pos; there is no single QK matrix",
    ),
    Limit(
        lambda f: f.any_rotary(lambda r: r.length_dependent),
        "rotary scaling depends on the length of the context: factors are for a stated length (short ones unless given)",
    ),
    Limit(
        lambda f: f.any_rotary(lambda r: r.kind in ("yarn", "longrope")),
        "yarn/longrope multiply cos and sin by a factor: it is part of the pattern, whose scale is then not 1/sqrt(d_head)",
    ),
    Limit(
        lambda f: not f.rotated_alike(),
        "rotary parameters differ by layer: patterns of two layers at one offset are not rotated alike",
    ),
    Limit(
        lambda f: f.shape.position == "alibi",
        "ALiBi is a bias by distance added to the scores: it is no part of the pattern matrix",
    ),
    Limit(
        lambda f: f.shape.position == "relative bias",
        "relative position biases are added to the scores: they are no part of the pattern matrix",
    ),
    Limit(
        lambda f: f.shape.position == "learned",
        "learned positions are in the stream: the pattern matrix reads content and position together",
    ),
    Limit(
        lambda f: bool(f.layout("attention") and f.layout("attention").q_norm),
        "queries and keys are normed: the pattern holds the gains, and its scale is each token's own, known on text only",
    ),
    Limit(
        lambda f: any(n.softcap for n in f.numbers),
        "attention scores are soft-capped: a score is not linear in the pattern",
    ),
    Limit(
        lambda f: bool(getattr(f.config, "final_logit_softcapping", None)),
        "logits are soft-capped: they are not linear in the stream",
    ),
    Limit(
        lambda f: any(n.window for n in f.numbers),
        "sliding-window layers see no further back than their window, whatever the pattern says",
    ),
    Limit(
        lambda f: bool(f.layout("attention") and f.layout("attention").sinks),
        "attention sinks: rows of a pattern sum to less than 1, so the value-bias path depends on the position",
    ),
    Limit(
        lambda f: bool(f.layout("mlp") and f.layout("mlp").router),
        "experts: which MLP runs depends on the token; an MLP row is the sum over the chosen experts",
    ),
    Limit(
        lambda f: bool(f.layout("ends") and f.layout("ends").transform and f.has_head),
        "the logits are not linear in the stream: a dense layer and a norm stand before the unembedding",
    ),
    Limit(
        lambda f: not f.has_head,
        "the checkpoint is a bare encoder: it has no logits",
    ),
    Limit(
        lambda f: f.shape.placement == "post",
        "post-norm: later norms rescale what a head wrote, so contributions are transported through frozen scales",
    ),
    Limit(
        lambda f: f.shape.placement in ("sandwich", "write"),
        "a norm stands after attention: a head's write has a scale of its own at each position, frozen as in the pass",
    ),
    Limit(
        lambda f: f.shape.placement == "parallel",
        "attention and MLP read the same stream: there is no stream between them",
    ),
    Limit(
        lambda f: f.shape.n_kv_heads < f.shape.n_heads,
        "query heads share keys and values in groups: heads of a group have the same right factor of the pattern",
    ),
    Limit(
        lambda f: len(f.shape.stacks) > 1,
        "encoder and decoder: heads are named E.L0H0, L0H0 and X.L0H0 (cross-attention reads the encoder's last stream)",
    ),
)  # fmt: skip


def limits(weights: ModelWeights) -> tuple[str, ...]:
    """Sentences that hold for this model, the reason for a refused forward pass first."""
    facts = _facts(weights)
    refused = refused_pass(facts.config) if facts.config is not None else None
    found = tuple(limit.sentence for limit in LIMITS if limit.when(facts))
    return (refused, *found) if refused else found


def _facts(weights: ModelWeights) -> Facts:
    shape = weights.shape
    if not isinstance(weights, NamedWeights):
        return Facts(shape, tuple(_array_numbers(weights)), weights, None)
    numbers = tuple(layer_numbers(weights.config, weights.layout, shape, n) for n in range(shape.n_layers))
    return Facts(shape, numbers, weights, weights.config)


def _array_numbers(weights: ModelWeights) -> list[LayerNumbers]:
    if not isinstance(weights, ArrayWeights):
        return []
    layers = (weights.attention(n) for n in range(weights.shape.n_layers))
    return [LayerNumbers(a.scale, a.softcap, a.window, a.rotary) for a in layers]
