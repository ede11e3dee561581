"""One comparison engine: two prompts, two positions, two sets of prompts, two models.

What is compared follows from what is given: two traces are aligned token by token; lists of prompts with
`model=` are two sets, with intervals and tests; two models (or opened weights) are compared head by head from
their weights and, with `prompts=`, by what they contribute on them. `delta` is always b - a, or the norm of
it. Equal inputs give exact zeros and are called identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.manifest import sides_manifest
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.models.tracing import Bos, Prompt
from mechview.models.weights import HasWeights, ModelWeights, Stack
from mechview.residual.compare_models import Opened, compare_models
from mechview.residual.compare_rows import Comparison, Question
from mechview.residual.compare_sets import Item, compare_sets
from mechview.residual.compare_traces import compare_positions as _positions
from mechview.residual.compare_traces import compare_traces
from mechview.residual.grains import Grain
from mechview.residual.readout import Target

Side = Trace | Opened | Prompt | Sequence[Item]


def compare(
    a: Side,
    b: Side,
    *,
    model: Model | None = None,
    prompts: Prompt | Sequence[Item] | None = None,
    by: Grain = "head",
    target: Target | None = None,
    against: Target | None = None,
    direction: Float[Tensor, "d_model"] | None = None,
    position: int | Any = -1,
    paired: bool | None = None,
    offset: int = 0,
    fold: bool = True,
    bos: Bos = "auto",
    decoder: Prompt | None = None,
    stack: Stack | None = None,
    seed: int = 0,
    draws: int = 1000,
) -> Comparison:
    """How b differs from a, component by component.

    Args:
        a, b: two traces; two prompts or two lists of prompts (text, ids, traces, or `Case`s with targets of
            their own) with `model`; two models or opened weights.
        prompts: prompts that two models are run on.
        by: grain of the components; layers of models of different shape are compared as wholes.
        target, against, direction: what shares are measured along, as in `mv.shares`; without, norms.
        position: where each prompt is read: shares of traces, values of sets and of two models on prompts.
            Norms, differences and cosines of two traces are at every aligned position.
        paired: whether prompt n of one set belongs to prompt n of the other; sets are unpaired unless told.
        offset, fold: where a rotary pattern is taken, and whether norms are folded into the maps of heads.
        decoder, stack: the decoder's input of encoder-decoder models, and whether the stream of their `decoder` is
            compared (the default) or that of their `encoder`, whose components are then named `E.L0H1`.
        seed, draws: chance and number of resamples of intervals and tests.

    Raises:
        UsageError: sides that cannot stand together, or a quantity that does not exist between them.
    """
    question = Question(by, target, against, direction, position, bos, decoder, stack)
    chance: dict[str, Any] = {"offset": offset, "fold": fold, "draws": draws, "seed": seed}
    found = _compared(a, b, model, prompts, question, paired, chance)
    sides: list[Any] = [side for side in (a, b) if isinstance(side, Trace) or _opened(side)] or [model]
    told: dict[str, Any] = {"a": a, "b": b} if sides == [model] else {}
    told |= {"by": by, "target": target, "against": against, "direction": direction, "position": position, "bos": bos}
    told |= {"decoder": decoder, "stack": stack, "paired": paired, "prompts": prompts} | chance
    return replace(found, manifest=sides_manifest(*(side for side in sides if side is not None), **told))


def _compared(
    a: Side, b: Side, model: Model | None, prompts: Prompt | Sequence[Item] | None, question: Question,
    paired: bool | None, chance: dict[str, Any],
) -> Comparison:  # fmt: skip
    if isinstance(a, Trace) and isinstance(b, Trace):
        _unused("two traces", model=model, prompts=prompts, paired=paired)
        return compare_traces(question.of(a), question.of(b), question)
    if _opened(a) and _opened(b):
        _unused("two models", model=model)
        if paired is False:
            raise UsageError("two models on the same prompts are always paired, prompt by prompt")
        wanted = _listed(prompts)
        return compare_models(a, b, wanted, question, **chance)
    _unused("prompts", prompts=prompts)
    if _one_prompt(a) and _one_prompt(b):
        _unused("two prompts", paired=paired)
        return compare_traces(_traced(a, model, question), _traced(b, model, question), question)
    if not (_several(a) and _several(b)):
        raise UsageError("these cannot be compared: give two traces, two prompts, two lists of prompts, or two models")
    return compare_sets(a, b, model, question, paired=bool(paired), draws=chance["draws"], seed=chance["seed"])


def compare_positions(
    trace: Trace,
    a: int | Any,
    b: int | Any,
    *,
    by: Grain = "head",
    target: Target | None = None,
    against: Target | None = None,
    direction: Float[Tensor, "d_model"] | None = None,
    stack: Stack | None = None,
) -> Comparison:
    """How what was written at position b of a prompt differs from what was written at position a.

    Raises:
        UsageError: a position that the prompt does not have.
    """
    question = Question(by, target, against, direction, stack=stack)
    told: dict[str, Any] = {
        "positions": (a, b),
        "by": by,
        "target": target,
        "against": against,
        "direction": direction,
        "stack": stack,
    }
    return replace(_positions(question.of(trace), a, b, question), manifest=sides_manifest(trace, **told))


def _traced(prompt: Prompt, model: Model | None, question: Question) -> Trace:
    if model is None:
        raise UsageError("two prompts need the model that reads them: give model=, or two models from mv.load")
    return question.passed(model, prompt)


def _opened(side: object) -> TypeGuard[Opened]:
    return isinstance(side, HasWeights | ModelWeights) and not isinstance(side, Trace)


def _one_prompt(side: object) -> TypeGuard[Prompt]:
    """Text, or token ids."""
    if isinstance(side, str | Tensor):
        return True
    return isinstance(side, Sequence) and len(side) > 0 and all(isinstance(item, int) for item in side)


def _several(side: object) -> TypeGuard[Sequence[Item]]:
    return isinstance(side, Sequence) and not _one_prompt(side)


def _listed(prompts: Prompt | Sequence[Item] | None) -> Sequence[Item] | None:
    if prompts is None or _several(prompts):
        return prompts
    return [prompts] if _one_prompt(prompts) else []


def _unused(what: str, **given: Any) -> None:
    """An argument that would be ignored is an error."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name}= has no meaning when {what} are compared")
