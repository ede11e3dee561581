"""Exact path patching: one head's write, changed only on its way into another head's Q, K or V input.

The pass is over the clean prompt. The sender's `z` is taken from the corrupted run; its write is carried to
the receiver with every other write as in the clean run, through post-norms, norms of the stream between
(post-norm models) and the norm the receiver reads through, all of them recomputed and none frozen. The
receiver's new `z` goes on through the whole model, everything downstream recomputed. Wang et al. 2022;
Goldowsky-Dill et al. 2023. Only the direct path changes: not the sender's way through another head or MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.checks import relative
from mechview.errors import HeadError, UsageError
from mechview.models.capture import AttentionCapture
from mechview.models.intervene import BATCH, Replacement, changed_passes, recorded
from mechview.models.load import Model
from mechview.models.norms import apply_norm
from mechview.models.scores import attention_scores, pattern_of
from mechview.models.trace import Trace, as_added
from mechview.models.tracing import Bos, Prompt
from mechview.models.weights import AttentionWeights, NormWeights, Stack
from mechview.residual.components import Component, Named, component, components_of, metric_of, value_of
from mechview.residual.donors import check_same_length
from mechview.residual.patching import SAME, Patch, Patching, check_contrast, patch_row, put_back_error
from mechview.residual.readout import Target
from mechview.residual.rows import mlp_added, values_of

SIDES = ("q", "k", "v")
Step = tuple[Literal["attention", "mlp"], Stack, int]
Writes = dict[Step, tuple[Float[Tensor, "pos d_model"], NormWeights]]
ALONG_A_PATH = (
    "along a path: the sender's corrupted write in a pass over the clean prompt; normalised is 0 for no change, "
    "-1 for all the way to the corrupted metric"
)


def path_patch(
    model: Model | Any,
    clean: Prompt,
    corrupted: Prompt,
    target: Target | Any,
    against: Target | None = None,
    *,
    receiver: tuple[int, int, str] | tuple[str, str] | Any,
    sender: Named | list[Named] | None = None,
    position: int | Any = -1,
    decoder: Prompt | None = None,
    bos: Bos = "auto",
    batch_size: int = BATCH,
) -> Patching:
    """How much of the metric goes from a head to another head's query, key or value input.

    In models whose query heads share keys and values, patching `k` or `v` changes what this one query head
    makes of them; the others of its group go on with the clean ones. A query or key norm over all heads
    (OLMo-2) is that of a projection which read the changed stream whole.

    Args:
        receiver: `(layer, head, "q" | "k" | "v")`, or `("X.L1H0", "k")` where there are several stacks.
        sender: `(layer, head)` or a name, or a list of these; every head with a direct path unless given.

    Returns:
        One row a sender: `change = metric - metric(clean)`, `normalised = change / (metric(clean) - metric(corrupted))`.
        `error` is of the receiver's clean `z` rebuilt from weights, against the model's own, or of the metric with
        that `z` put back, whichever is larger.

    Raises:
        HeadError: no such head. UsageError: no direct path from a sender to the receiver's input.
    """
    goal, side = _receiver(model, receiver)
    senders = _senders(model, sender, goal, side)
    runs = [recorded(model, prompt, bos=bos, decoder=decoder) for prompt in (clean, corrupted)]
    check_same_length(*runs)
    metric = metric_of(runs[0], target, against, position)
    both = metric.of(runs[0]), metric.of(runs[1])
    same = check_contrast(runs, both)
    own = value_of(runs[0], goal)
    before, after = received(runs[0], runs[1], senders, goal, side)
    patches = [
        Patch(part.name, part.stack, part.layer, part.head, Replacement(goal.place, own + move.to(own), goal.head))
        for part, move in zip(senders, after - before, strict=True)
    ]
    puts = [[Replacement(goal.place, own, goal.head)], *([each.put] for each in patches)]
    null, *values = changed_passes(model, runs[0], puts, metric, batch_size=1 if same else batch_size).tolist()
    name = f"{goal.name}.{side}"
    rows = [patch_row(each, value, both, both[0], name) for each, value in zip(patches, values, strict=True)]
    return Patching(
        rows=tuple(rows),
        what="path",
        clean=both[0],
        corrupted=both[1],
        error=max(relative(before, own.expand_as(before)), put_back_error(null, both, both[0])),
        metric=metric.name,
        position=metric.position,
        direction=f"{SAME}{ALONG_A_PATH}" if same else ALONG_A_PATH,
        identical=same,
        model=model.name,
        revision=model.source.revision,
    )


def received(
    clean: Trace, corrupted: Trace, senders: list[Component], goal: Component, side: str
) -> tuple[Float[Tensor, "component q_pos d_head"], Float[Tensor, "component q_pos d_head"]]:
    """The receiver's `z` by sender, rebuilt with the sender's clean write and with its corrupted one."""
    weights, seen = clean.weights.attention(goal.layer, goal.stack), clean.attention(goal.layer, goal.stack)
    paths = Paths(clean, goal, side, clean_writes(clean), weights, seen)
    found = []
    for (stack, layer), group in groupby(senders, key=lambda part: (part.stack, part.layer)):
        output = clean.weights.attention(layer, stack)
        found += [[paths.received(part, output, run) for run in (clean, corrupted)] for part in group]
    before, after = torch.stack([torch.stack(pair) for pair in found], dim=1)
    return before, after


@dataclass(frozen=True)
class Paths:
    """Direct paths to one head's input in the clean pass; `weights` and `seen` are of the receiver's layer."""

    clean: Trace
    receiver: Component
    side: str
    writes: Writes
    weights: AttentionWeights
    seen: AttentionCapture

    def received(self, sender: Component, output: AttentionWeights, donor: Trace) -> Float[Tensor, "q_pos d_head"]:
        """The receiver's `z` with the sender's `z` of `donor`, in float64; `output` is the sender's layer."""
        stream = self._sent(sender, output, donor)
        for step in self._between(sender):
            added, norm = self.writes[step]
            stream = apply_norm(stream + added, norm)
        return receive(self.weights, self.seen, self.receiver.head or 0, self.side, self._read(stream))

    def _sent(self, sender: Component, output: AttentionWeights, donor: Trace) -> Float[Tensor, "pos d_model"]:
        """The stream after the sender's layer wrote, its post-norm taken over the changed sum."""
        head, seen = sender.head or 0, self.clean.attention(sender.layer, sender.stack)
        change = (donor.attention(sender.layer, sender.stack).z - seen.z)[:, head].double() @ output.W_O[head].double()
        added = apply_norm(seen.written.double() + change, output.post_norm) * output.multiplier
        return apply_norm(seen.stream.double() + added, output.stream_norm)

    def _between(self, sender: Component) -> list[Step]:
        """What writes between the sender's layer and the receiver's input, in order."""
        order = [step for step in self.writes if (step[1] == "encoder") == (sender.stack == "encoder")]
        start = order.index(("attention", sender.stack, sender.layer)) + 1
        if reads_encoder(self.receiver, self.side):
            return order[start:]
        return order[start : order.index(("attention", self.receiver.stack, self.receiver.layer))]

    def _read(self, stream: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos d_model"]:
        across = reads_encoder(self.receiver, self.side)
        return apply_norm(stream, self.clean.weights.ends().encoder_final_norm if across else self.weights.norm)


def clean_writes(trace: Trace) -> Writes:
    """What every layer adds in this pass, and the norm that the stream then goes through; in order."""
    found: Writes = {}
    stacks = trace.weights.shape.stacks
    for stream in stacks[:2]:
        attentions: tuple[Stack, ...] = ("decoder", "cross") if stream != stacks[0] else (stream,)
        for layer in range(trace.weights.shape.layers(stream)):
            for stack in attentions:
                weights, seen = trace.weights.attention(layer, stack), trace.attention(layer, stack)
                added = as_added(seen.written.double(), seen, weights)
                found["attention", stack, layer] = added, weights.stream_norm
            mlp, wrote = trace.weights.mlp(layer, stream), trace.capture.mlp[stream, layer]
            found["mlp", stream, layer] = mlp_added(wrote.written.double(), wrote, mlp), mlp.stream_norm
    return found


def receive(
    weights: AttentionWeights, seen: AttentionCapture, head: int, side: str, reads: Float[Tensor, "pos d_model"]
) -> Float[Tensor, "q_pos d_head"]:
    """One head's `z` when one of its inputs reads something else; the other two read what they did."""
    q, k, v = (reads if side == name else own.double() for name, own in _inputs(seen))
    pattern = seen.pattern.double()
    if side != "v":
        pattern = pattern_of(attention_scores(weights, q, k), weights.sinks)
    return pattern[head] @ values_of(v, weights)[head]


def _inputs(seen: AttentionCapture) -> tuple[tuple[str, Tensor], ...]:
    return ("q", seen.reads), ("k", seen.source), ("v", seen.source)


def reads_encoder(receiver: Component, side: str) -> bool:
    return receiver.stack == "cross" and side != "q"


def _receiver(model: Model, receiver: tuple[int, int, str] | tuple[str, str] | Any) -> tuple[Component, str]:
    if (
        not isinstance(receiver, tuple)
        or len(receiver) not in (2, 3)
        or (len(receiver) == 2) != isinstance(receiver[0], str)
    ):
        raise UsageError(f'receiver={receiver!r} is no input of a head; give (1, 0, "k") or ("L1H0", "k")')
    named, side = receiver[:-1], receiver[-1]
    if side not in SIDES:
        raise UsageError(f"{side!r} is not an input of a head; choose q, k or v")
    return _head(model, named[0] if len(named) == 1 else named), side  # type: ignore[return-value]


def _head(model: Model, named: Named) -> Component:
    found = component(model.shape, named)
    if found.kind != "head":
        raise HeadError(f"{found.name} is not a head; paths lead from a head to a head")
    return found


def _senders(model: Model, sender: Named | list[Named] | None, goal: Component, side: str) -> list[Component]:
    if sender is None:
        found = [part for part in components_of(model.shape, ("head",)) if has_path(part, goal, side)]
        if not found:
            raise UsageError(f"no head comes before the {side} input of {goal.name}")
        return found
    found = [_head(model, named) for named in (sender if isinstance(sender, list) else [sender])]
    if not found:
        raise UsageError("there are no senders: name a head, or leave sender= out for all")
    for part in found:
        if not has_path(part, goal, side):
            raise UsageError(f"there is no direct path from {part.name} to the {side} input of {goal.name}")
    return found


def has_path(sender: Component, receiver: Component, side: str) -> bool:
    """Whether the receiver's input reads a stream that the sender has written to before."""
    if reads_encoder(receiver, side):
        return sender.stack == "encoder"
    if (sender.stack == "encoder") != (receiver.stack == "encoder"):
        return False
    order = {"encoder": 0, "decoder": 0, "cross": 1}
    return (sender.layer, order[sender.stack]) < (receiver.layer, order[receiver.stack])
