"""The logit lens: what the stream would predict if it were read at an earlier point.

Every point is read with the model's own final norm and unembedding (its own statistics there, nothing
frozen), so the last row is the model's output for every family. nostalgebraist 2020; a readout that an
early stream was not trained for: low probabilities early on say little about what is represented.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.checks import relative
from mechview.errors import UnsupportedError, UsageError
from mechview.models.trace import Trace, as_trace
from mechview.residual.readout import Target, as_target, token_ids, unembed
from mechview.results import Result


@dataclass(frozen=True)
class Lens(Result):
    """Readings `[point, pos]`. `kl` is from the final distribution, in nats; ranks start at 0.

    `error` compares the last row's logits with the model's own.
    """

    trace: Trace = field(repr=False)
    points: tuple[str, ...]
    top: Int[Tensor, "point pos"]
    top_prob: Float[Tensor, "point pos"]
    entropy: Float[Tensor, "point pos"]
    kl: Float[Tensor, "point pos"]
    target: int | None
    target_logit: Float[Tensor, "point pos"] | None
    target_prob: Float[Tensor, "point pos"] | None
    target_rank: Int[Tensor, "point pos"] | None
    error: float


def lens(trace: Trace | Any, target: Target | Any = None, *, tokenizer: object = None) -> Lens:
    """Logit lens before each block, in its middle where it has one, and after the last.

    Raises:
        UnsupportedError: the model has no unembedding. UsageError: more than one target.
    """
    trace, target = as_trace(trace), as_target(target)
    if trace.logits is None:
        raise UnsupportedError("this model has no unembedding: its stream has no logits")
    size = trace.weights.shape.d_vocab
    wanted = None if target is None else _one(token_ids(target, tokenizer or trace.tokenizer, size))
    ends, final = trace.weights.ends(), trace.logits.double().log_softmax(-1)
    readings = [read(unembed(stream, ends).double(), final, wanted) for _, stream in points_of(trace)]
    stacked = {name: torch.stack([r[name] for r in readings]) for name in readings[0]}
    last = unembed(trace.stream_final, ends)
    return Lens(
        trace=trace,
        points=tuple(name for name, _ in points_of(trace)),
        top=stacked["top"],
        top_prob=stacked["top_prob"],
        entropy=stacked["entropy"],
        kl=stacked["kl"],
        target=wanted,
        target_logit=stacked.get("logit"),
        target_prob=stacked.get("prob"),
        target_rank=stacked.get("rank"),
        error=relative(last, trace.logits),
    )


def _one(ids: list[int]) -> int:
    if len(ids) != 1:
        raise UsageError(f"the lens follows one token; {len(ids)} were given")
    return ids[0]


def points_of(trace: Trace) -> list[tuple[str, Float[Tensor, "pos d_model"]]]:
    """Every point of the stream, in order; parallel blocks have no middle."""
    found = []
    count, parallel = trace.weights.shape.layers(trace.stack), trace.weights.shape.placement == "parallel"
    for layer in range(count):
        found.append((f"L{layer}.pre", trace.stream(layer, "pre")))
        if not parallel:
            found.append((f"L{layer}.mid", trace.stream(layer, "mid")))
    return [*found, ("final", trace.stream_final)]


def read(
    logits: Float[Tensor, "pos d_vocab"], final: Float[Tensor, "pos d_vocab"], target: int | None
) -> dict[str, Tensor]:
    """Readings of one point: most likely token, entropy, KL to the end, and the target's place."""
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    best = log_p.max(-1)
    found = {
        "top": best.indices,
        "top_prob": best.values.exp(),
        "entropy": torch.special.entr(p).sum(-1),
        "kl": (final.exp() * (final - log_p)).sum(-1).clamp(min=0),
    }
    if target is not None:
        own = logits[:, target]
        found |= {"logit": own, "prob": p[:, target], "rank": (logits > own[:, None]).sum(-1)}
    return found
