"""Activation patching: which values of a clean run, put into a corrupted one, bring its answer back.

Denoising: the pass is over the corrupted prompt, the values put in are the clean prompt's, and everything
downstream is recomputed. `change = value - metric(corrupted)` and `normalised = change / (metric(clean) -
metric(corrupted))`: 0 where the value carries nothing, 1 where it carries all. With the prompts exchanged
the same call is noising. Metrics are of the logit before any final soft-cap. Meng et al. 2022 (causal
tracing), Heimersheim and Nanda 2024 (reading such numbers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mechview.errors import UsageError
from mechview.models.intervene import BATCH, Place, Replacement, changed_passes, recorded
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.models.tracing import Bos, Prompt
from mechview.models.weights import Stack
from mechview.residual.components import Component, Kind, components_of, metric_of, put_back, value_of
from mechview.residual.donors import check_same_length, checked_positions
from mechview.residual.readout import Target
from mechview.results import Result, check_count

Where = str | Sequence[int] | None
KINDS: dict[str, Kind] = {"heads": "head", "attention": "attention", "mlp": "mlp"}
SAME = "identical prompts, so every change must be 0; "
DENOISING = "denoising: clean values in a pass over the corrupted prompt; normalised is 0 for no change, 1 for clean"


@dataclass(frozen=True)
class PatchRow:
    """One patched pass. `patched_position` is None where all positions were patched together.

    `receiver` names the input that a path leads to (`L5H1.k`); it is empty for plain patching.
    """

    component: str
    stack: Stack
    layer: int
    head: int | None
    patched_position: int | None
    value: float
    change: float
    normalised: float
    receiver: str = ""


@dataclass(frozen=True)
class Patching(Result):
    """Patched passes, with the metric of both runs; `error` is of a pass with its own values put back.

    `identical` prompts are the null: every change is 0, and there is no share to be restored (`normalised` is NaN).
    """

    rows: tuple[PatchRow, ...]
    what: str
    clean: float
    corrupted: float
    error: float
    metric: str
    position: int
    direction: str = DENOISING
    identical: bool = False
    model: str = ""
    revision: str | None = None

    def row(self, name: str, patched_position: int | None = None) -> PatchRow:
        wanted = (name, patched_position)
        found = next((row for row in self.rows if (row.component, row.patched_position) == wanted), None)
        if found is None:
            place = "all positions together" if patched_position is None else f"position {patched_position}"
            raise UsageError(f"{name} was not patched at {place}")
        return found

    def top(self, k: int | Any = 10) -> list[PatchRow]:
        """The k passes that changed the metric most, by size."""
        check_count(k)
        return sorted(self.rows, key=lambda row: -abs(row.change))[:k]

    def records(self) -> list[dict[str, Any]]:
        """The table `patching`, one patched pass a row."""
        shared = {
            "what": self.what, "metric": self.metric, "position": self.position,
            "clean": self.clean, "corrupted": self.corrupted,
        }  # fmt: skip
        return [asdict(row) | shared for row in self.rows]


@dataclass(frozen=True)
class Patch:
    """A named value to be put in, at one position or at all."""

    name: str
    stack: Stack
    layer: int
    head: int | None
    put: Replacement


def patch(
    model: Model | Any,
    clean: Prompt,
    corrupted: Prompt,
    target: Target | Any,
    against: Target | None = None,
    what: str = "heads",
    positions: Where = None,
    *,
    position: int | Any = -1,
    decoder: Prompt | None = None,
    bos: Bos = "auto",
    batch_size: int = BATCH,
) -> Patching:
    """Values of the clean run put into a run over the corrupted prompt, one component at a time.

    Args:
        what: `heads` (their `z`), `attention` or `mlp` (what a layer adds), `stream` (at every point before
            attention, before the MLP, and after the last block).
        positions: `all` together in one pass, `each` in a pass of its own, or a list of those to patch, each in
            a pass of its own; unless given, `each` for the stream and `all` otherwise.
        position: where the metric is read.

    Raises:
        PromptError: the prompts differ in length. UsageError: they differ, and the metric is the same in both runs.
    """
    runs = [recorded(model, prompt, bos=bos, decoder=decoder) for prompt in (clean, corrupted)]
    check_same_length(*runs)
    metric = metric_of(runs[1], target, against, position)
    both = metric.of(runs[0]), metric.of(runs[1])
    same = check_contrast(runs, both)
    patches = list(_patches(runs[0], runs[1], what, positions))
    rows = [put_back(runs[1], model.shape), *([each.put] for each in patches)]
    values = changed_passes(model, runs[1], rows, metric, batch_size=1 if same else batch_size).tolist()
    return Patching(
        rows=tuple(
            patch_row(each, value, both, baseline=both[1]) for each, value in zip(patches, values[1:], strict=True)
        ),
        what=what,
        clean=both[0],
        corrupted=both[1],
        error=put_back_error(values[0], both, baseline=both[1]),
        metric=metric.name,
        position=metric.position,
        direction=f"{SAME}{DENOISING}" if same else DENOISING,
        identical=same,
        model=model.name,
        revision=model.source.revision,
    )


def check_contrast(runs: Sequence[Trace], both: tuple[float, float]) -> bool:
    """Whether both runs are of the same tokens: the null of a patch, every change then exactly 0.

    Such passes run one by one, because a batch of several rounds differently from the single pass it is held against.

    Raises:
        UsageError: the prompts differ and the metric does not, so there is nothing that a patch could carry.
    """
    clean, corrupted = ([token.id for token in (*seen.source_tokens, *seen.tokens)] for seen in runs)
    if clean == corrupted:
        return True
    if both[0] == both[1]:
        raise UsageError(f"the metric is {both[0]:.6g} on both prompts: there is no difference to trace")
    return False


def put_back_error(value: float, both: tuple[float, float], baseline: float) -> float:
    """How far a pass with its own values put back is from the plain one, over the gap (over the metric without one)."""
    return abs(value - baseline) / (abs(both[0] - both[1]) or max(abs(baseline), 1e-30))


def patch_row(each: Patch, value: float, both: tuple[float, float], baseline: float, receiver: str = "") -> PatchRow:
    """The row of one pass; `both` are the metrics of the clean and the corrupted run, `baseline` the changed run's."""
    change, at = value - baseline, each.put.positions
    return PatchRow(
        component=each.name,
        stack=each.stack,
        layer=each.layer,
        head=each.head,
        patched_position=None if at is None else at[0],
        value=value,
        change=change,
        normalised=change / (both[0] - both[1]) if both[0] != both[1] else float("nan"),
        receiver=receiver,
    )


def _patches(clean: Trace, corrupted: Trace, what: str, positions: Where) -> Iterator[Patch]:
    if what not in (*KINDS, "stream"):
        raise UsageError(f"what={what!r} cannot be patched; choose one of {', '.join(KINDS)}, stream")
    for whole in _stream_points(clean, corrupted) if what == "stream" else _values(clean, KINDS[what]):
        for at in _where(positions, what, clean, whole.stack):
            yield replace(whole, put=replace(whole.put, positions=at))


def _where(positions: Where, what: str, trace: Trace, stack: Stack) -> list[tuple[int, ...] | None]:
    chosen = positions if positions is not None else ("each" if what == "stream" else "all")
    if chosen == "all":
        return [None]
    if isinstance(chosen, str) and chosen != "each":
        raise UsageError(f"positions={chosen!r} is neither all nor each nor a list of positions")
    wanted = range(len(trace.tokens_of(stack)[0])) if isinstance(chosen, str) else chosen
    return [(n,) for n in checked_positions(wanted, trace, stack) or ()]


def _values(clean: Trace, kind: Kind) -> Iterator[Patch]:
    for part in components_of(clean.weights.shape, (kind,)):
        yield Patch(
            part.name, part.stack, part.layer, part.head, Replacement(part.place, value_of(clean, part), part.head)
        )


def _stream_points(clean: Trace, corrupted: Trace) -> Iterator[Patch]:
    """Points of the stream with the clean value there."""
    shape = clean.weights.shape
    for stack in shape.stacks[:2]:
        prefix, last = "E." if len(shape.stacks) > 1 and stack == "encoder" else "", shape.layers(stack) - 1
        for layer in range(last + 1):
            before = Replacement(Place("pre", layer, stack), clean.stream(layer, "pre", stack))
            yield Patch(f"{prefix}L{layer}.pre", stack, layer, None, before)
            if shape.placement != "parallel":
                yield Patch(f"{prefix}L{layer}.mid", stack, layer, None, _middle(clean, corrupted, layer, stack))
        after = Replacement(Place("post", last, stack), clean.stream(last, "post", stack))
        yield Patch(f"{prefix}final", stack, last, None, after)


def _middle(clean: Trace, corrupted: Trace, layer: int, stack: Stack) -> Replacement:
    """What makes the stream before the MLP the clean one; where it is a plain sum, by way of the last write."""
    writer: Stack = "cross" if len(clean.weights.shape.stacks) > 1 and stack == "decoder" else stack
    weights, wanted = clean.weights.attention(layer, writer), clean.stream(layer, "mid", stack)
    if weights.stream_norm.kind != "none":
        return Replacement(Place("mid", layer, stack), wanted)
    wrote = value_of(corrupted, Component("", "attention", layer, writer))
    lacking = (wanted - corrupted.stream(layer, "mid", stack)) / weights.multiplier
    return Replacement(Place("attention", layer, writer), wrote + lacking)
