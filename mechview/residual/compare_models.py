"""Two models (base and fine-tune, checkpoints, adapter on and off), head by head from their weights.

Per head and map (`pattern` at a stated offset, `message`, and with biases `pattern_affine`,
`message_affine`): `delta` is |A - B|, `rel` that over |A|; then the cosine, the change of the spectrum, and the
largest principal angle of the subspaces that are read (`query_angle`, `key_angle`, `read_angle` of the message)
and written (`write_angle`), in degrees, whose `rel` is over a right angle. What belongs to no head has a row of `weights`: MLPs, ends, and what attention
layers share. With prompts, contributions on them follow, paired by prompt. Nothing is aligned by rotation:
a fine-tune keeps its base's coordinates. Models of different shape: `compare_depth`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from mechview.errors import UsageError
from mechview.factors import HeadFactors, factor_head
from mechview.lowrank import LowRank
from mechview.models.load import Model
from mechview.models.weights import HasWeights, ModelWeights, weights_of
from mechview.residual.compare_depth import depth_rows
from mechview.residual.compare_maps import MapDifference, map_differences, stack_maps
from mechview.residual.compare_passes import compare_passes
from mechview.residual.compare_rows import Comparison, Question, Row, alike, relative_to
from mechview.residual.compare_sets import Item
from mechview.residual.compare_traces import DIFFERENT_SHAPES
from mechview.residual.compare_weights import Difference, equal_fields, record_difference

Opened = ModelWeights | HasWeights
OF_HEADS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
ANGLES = {"pattern": ("query_angle", "key_angle"), "message": ("read_angle", "write_angle")}
LEADING = ("pattern", "message", "pattern_affine", "message_affine", "weights")


def compare_models(
    a: Opened, b: Opened, prompts: Sequence[Item] | None, question: Question, *,
    offset: int, fold: bool, draws: int, seed: int,
) -> Comparison:  # fmt: skip
    """Weights of two models, and with prompts their contributions."""
    weights_a, weights_b = weights_of(a), weights_of(b)
    same_shape = alike(weights_a, weights_b)
    question = question if same_shape else replace(question, by="layer")
    if same_shape:
        rows, differences = _rows(weights_a, weights_b, offset, fold)
        notes = [note for each in differences for note in each.notes]
        identical = all(each.identical for each in differences)
    else:
        rows, notes, identical = list(depth_rows(weights_a, weights_b, offset, fold)), [DIFFERENT_SHAPES], False
    if weights_a.shape.position == "rotary":
        notes.append(f"rotary patterns are taken at offset {offset}")
    passes = None
    if prompts is not None:
        passes = compare_passes(_runnable(a), _runnable(b), prompts, question, draws=draws, seed=seed)
    if passes is not None:
        rows, notes, identical = rows + list(passes.rows), notes + list(passes.notes), identical and passes.identical
    return Comparison(
        kind="models" if same_shape else "models by depth", model_a=model_name(a), model_b=model_name(b),
        by=question.by, rows=tuple(rows), identical=identical,
        leading=tuple(name for name in LEADING if any(row.quantity == name for row in rows))
        if same_shape else ("pattern_effective_rank", "message_effective_rank"),
        ranked_on="rel", error=0.0 if passes is None else passes.error, method="" if passes is None else passes.method,
        notes=tuple(dict.fromkeys((["identical"] if identical else []) + notes)),
    )  # fmt: skip


def _runnable(model: Opened) -> Model:
    if not isinstance(model, Model):
        raise UsageError("weights alone cannot run prompts: give models (mv.load, mv.wrap), or leave prompts out")
    return model


def model_name(model: Opened) -> str:
    """The name a model was opened by, with its revision where there are several."""
    source: Any = getattr(model, "source", None)
    name, revision = getattr(source, "name", "weights"), getattr(source, "revision", None)
    return name if revision is None or not isinstance(name, str) else f"{name}@{revision}"


def _rows(a: ModelWeights, b: ModelWeights, offset: int, fold: bool) -> tuple[list[Row], list[Difference]]:
    """Rows of every layer and of the ends, and the raw differences that decide whether the models are identical."""
    rows: list[Row] = []
    differences: list[Difference] = []
    several = len(a.shape.stacks) > 1
    for stack in a.shape.stacks:
        for layer in range(a.shape.layers(stack)):
            prefix = {"encoder": "E.", "cross": "X."}.get(stack, "") if several else ""
            attentions = a.attention(layer, stack), b.attention(layer, stack)
            heads = [[factor_head(w, head, fold, several) for head in range(len(w.W_Q))] for w in attentions]
            rows += head_rows(heads[0], heads[1], offset)
            shared = record_difference(f"{prefix}L{layer}.attn", *attentions, skip=OF_HEADS)
            differences.append(replace(shared, identical=shared.identical and equal_fields(*attentions, OF_HEADS)))
            rows.append(_record_row(shared, layer))
            if stack != "cross":
                mlp = record_difference(f"{prefix}L{layer}.mlp", a.mlp(layer, stack), b.mlp(layer, stack))
                differences.append(mlp)
                rows.append(_record_row(mlp, layer))
    ends = record_difference("ends", a.ends(), b.ends())
    return [*rows, _record_row(ends, None)], [*differences, ends]


def head_rows(a: Sequence[HeadFactors], b: Sequence[HeadFactors], offset: int) -> Iterator[Row]:
    """Rows of the heads of one layer."""
    maps = {"pattern": _patterns, "message": _messages}
    for side, of in maps.items():
        pure = map_differences(of(a, offset, False), of(b, offset, False))
        affine = map_differences(of(a, offset, True), of(b, offset, True)) if _biased(a, b, side) else None
        for n, head in enumerate(a):
            place: dict[str, Any] = {"layer": head.layer, "head": head.head, "kv_head": head.kv_head}
            yield from _map_rows(head.label, side, pure[n], place)
            if affine is not None:
                yield _apart(head.label, f"{side}_affine", affine[n], place)


def _map_rows(label: str, side: str, found: MapDifference, place: dict[str, Any]) -> Iterator[Row]:
    yield _apart(label, side, found, place)
    lost, apart = found.one_minus_cosine, found.spectrum_apart
    yield Row(label, f"{side}_cosine", 1.0, 1.0 - lost, -lost, -lost, **place)
    rel = relative_to(apart, found.norm_a)
    yield Row(label, f"{side}_spectrum", found.norm_a, found.norm_b, apart, rel, **place)
    for quantity, angle in zip(ANGLES[side], (found.left_angle, found.right_angle), strict=True):
        yield Row(label, quantity, 0.0, angle, angle, relative_to(angle, 90.0), **place)


def _apart(label: str, quantity: str, found: MapDifference, place: dict[str, Any]) -> Row:
    rel = relative_to(found.apart, found.norm_a)
    return Row(label, quantity, found.norm_a, found.norm_b, found.apart, rel, **place)


def _record_row(found: Difference, layer: int | None) -> Row:
    rel = relative_to(found.apart, found.size_a)
    return Row(found.component, "weights", found.size_a, found.size_b, found.apart, rel, layer=layer)


def _patterns(heads: Sequence[HeadFactors], offset: int, affine: bool) -> LowRank:
    at = offset if heads[0].needs_offset else None
    return stack_maps([head.pattern_affine(at) if affine else head.pattern(at) for head in heads])


def _messages(heads: Sequence[HeadFactors], _: int, affine: bool) -> LowRank:
    """With its bias a message is `[x, 1]` times this; the constant column of `message_affine` tells nothing."""
    return stack_maps([LowRank(head.value, head.output) if affine else head.message for head in heads])


def _biased(a: Sequence[HeadFactors], b: Sequence[HeadFactors], side: str) -> bool:
    names = ("query", "key") if side == "pattern" else ("value",)
    return any(bool(torch.any(getattr(head, name)[-1] != 0)) for head in (*a, *b) for name in names)
