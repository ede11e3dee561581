"""Changing a forward pass: a value put in the place of what a component wrote, and the rest recomputed.

A replacement acts through forward hooks on mechview's own copy of the original module, at the module paths
of the layout table, so one set of rules serves every family; models of plain arrays are hooked as
`ArrayModule`. Several changed passes over one prompt run as one batch. Hooks are removed even on error,
no gradient is kept, and a hook that does not fire is an error, never a pass that silently was not changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechview.errors import ModelError, UnsupportedError
from mechview.models.array_module import ARRAYS, ArrayModule
from mechview.models.arrays import ArrayWeights, run_arrays
from mechview.models.layouts import Layout
from mechview.models.load import Model
from mechview.models.modules import reset_dynamic_rotary
from mechview.models.native import capture_native, find_module, stack_layout, stack_names
from mechview.models.reader import NamedWeights, block_path
from mechview.models.shape import refused_pass
from mechview.models.trace import Trace
from mechview.models.tracing import Bos, Prompt, as_model, decoder_ids, encode
from mechview.models.weights import Stack
from mechview.tokens import describe

Kind = Literal["z", "attention", "mlp", "pre", "mid", "post"]
Edit = Callable[[Tensor], Tensor]
BATCH = 32


@dataclass(frozen=True)
class Place:
    """A point of the forward pass.

    `z` is what the output projection reads, per head; `attention` and `mlp` what is added to the stream,
    after a post-norm and before the residual multiplier; `pre` and `post` the stream around a block; `mid`
    the normed stream between attention and MLP, which only post-norm models have as a module's output.
    """

    kind: Kind
    layer: int
    stack: Stack = "decoder"


@dataclass(frozen=True)
class Replacement:
    """`value` put at a place: `[pos, d_head]` of one `head` for `z`, `[pos, d_model]` elsewhere.

    `positions` are those replaced; all unless given.
    """

    place: Place
    value: Float[Tensor, "pos _width"]
    head: int | None = None
    positions: tuple[int, ...] | None = None

    def put(self, into: Tensor) -> None:
        """Write the value into one row of a batch."""
        at = slice(None) if self.positions is None else list(self.positions)
        target = into if self.head is None else into[:, self.head]
        target[at] = self.value[at].to(target)


def recorded(
    model: Model | Any, prompt: Prompt, *, bos: Bos = "auto", decoder: Prompt | None = None, last: int | None = None
) -> Trace:
    """A trace captured from the very module that replacements act on, whatever backend `trace` prefers.

    Args:
        last: run a pre-norm decoder up to this block only; the trace ends there and has no logits. Others and plain
            arrays run whole.

    Raises:
        PromptError: see `trace`. UnsupportedError: the model cannot be run faithfully.
    """
    model = as_model(model)
    module, weights = runnable(model), cast("ArrayWeights | NamedWeights", model.weights)
    ids = encode(model, prompt, bos)
    target = decoder_ids(model, decoder) if model.shape.n_encoder_layers else None
    if isinstance(weights, ArrayWeights):
        capture = run_arrays(weights, _ids(model, ids))
    else:
        other = None if target is None else _ids(model, target)
        capture = capture_native(module, weights, _ids(model, ids), other, last)
    own, source = (ids, []) if target is None else (target, ids)
    return Trace(
        model=model.name,
        weights=weights,
        capture=capture,
        tokens=describe(own, model.tokenizer),
        source_tokens=describe(source, model.tokenizer) if source else (),
        bos=isinstance(prompt, str) and ids[0] == getattr(model.tokenizer, "bos_token_id", None),
        tokenizer=model.tokenizer,
        revision=model.source.revision,
    )


def runnable(model: Model) -> nn.Module:
    """The module to hook: the original library's, or plain arrays as one.

    Raises:
        UnsupportedError: a pass of this model would not be the model's, or it came without a module.
    """
    if isinstance(model.weights, ArrayWeights):
        return ArrayModule(model.weights)
    if not isinstance(model.weights, NamedWeights):
        raise UnsupportedError("these weights cannot be run: they came without a module")
    if model.source.kind == "bridge":
        raise UnsupportedError(
            "a bridge has rewritten the module it holds; open the original module with wrap to change its passes"
        )
    refusal = refused_pass(model.weights.config)
    if refusal:
        raise UnsupportedError(refusal)
    return model.module


@torch.no_grad()
def changed_passes(
    model: Model,
    base: Trace,
    rows: Sequence[Sequence[Replacement]],
    reading: Callable[[Tensor], Tensor],
    *,
    batch_size: int = BATCH,
) -> Tensor:
    """One pass over the prompt of `base` for each row, with that row's replacements and no others.

    Args:
        reading: from logits `[row, pos, d_vocab]` to what is kept of them, `[row, ...]`; the rest is dropped.
        batch_size: rows that run together; it changes the time and the memory, not the answer.
    """
    module, size = runnable(model), max(batch_size, 1)
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    found = [reading(_changed(model, module, base, batch)) for batch in batches]
    return torch.cat(found) if found else torch.zeros(0)


def _changed(model: Model, module: nn.Module, base: Trace, rows: Sequence[Sequence[Replacement]]) -> Tensor:
    source = _ids(model, [token.id for token in base.source_tokens or base.tokens])
    keywords: dict[str, Any] = {"use_cache": False}
    if base.source_tokens:
        own = _ids(model, [token.id for token in base.tokens])
        keywords["decoder_input_ids"] = own.expand(len(rows), -1)
    reset_dynamic_rotary(module)
    with edited(module, model, edits_of(rows, model.shape.n_heads)):
        output = module(source.expand(len(rows), -1), **keywords)
    logits = getattr(output, "logits", None)
    if logits is None:
        raise UnsupportedError("this model has no unembedding: a changed pass has no logits to read")
    return logits


def edits_of(rows: Sequence[Sequence[Replacement]], n_heads: int) -> dict[Place, Edit]:
    """Per place, the one function that carries out the replacements of all rows there."""
    found: dict[Place, list[tuple[int, Replacement]]] = defaultdict(list)
    for number, row in enumerate(rows):
        for replacement in row:
            found[replacement.place].append((number, replacement))

    def edit_at(wanted: list[tuple[int, Replacement]], per_head: bool) -> Edit:
        def edit(value: Tensor) -> Tensor:
            width = (n_heads, value.shape[-1] // n_heads) if per_head else value.shape[-1:]
            laid = value.reshape(len(rows), -1, *width).clone()
            for number, replacement in wanted:
                replacement.put(laid[number])
            return laid.reshape(value.shape)

        return edit

    return {place: edit_at(wanted, place.kind == "z") for place, wanted in found.items()}


@dataclass
class _Calls:
    """One hook at one module: which of its calls are edited (ALBERT calls a block several times)."""

    edits: dict[int, Edit] = field(default_factory=dict)
    count: int = 0

    def __call__(self, value: Tensor) -> Tensor:
        edit = self.edits.get(self.count)
        self.count += 1
        return value if edit is None else edit(value)

    def before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (self(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self(kwargs["hidden_states"])}

    def after(self, _: nn.Module, __: Any, output: Any) -> Any:
        return (self(output[0]), *output[1:]) if isinstance(output, tuple) else self(output)


@contextmanager
def edited(module: nn.Module, model: Model, edits: Mapping[Place, Edit]) -> Iterator[None]:
    """The module with these edits in its next forward pass, and as it was afterwards.

    Raises:
        ModelError: a place is not a module of this version of the library, or its hook did not fire.
    """
    calls: dict[tuple[str, str], _Calls] = defaultdict(_Calls)
    for place, edit in edits.items():
        side, path, call = hook_of(model, place)
        calls[side, path].edits[call] = edit
    layout, handles = layout_of(model), []
    try:
        for (side, path), hook in calls.items():
            part = find_module(module, path, layout.base)
            handles.append(
                part.register_forward_pre_hook(hook.before, with_kwargs=True)
                if side == "in"
                else part.register_forward_hook(hook.after)
            )
        yield
    finally:
        for handle in handles:
            handle.remove()
    for (_, path), hook in calls.items():
        if hook.count <= max(hook.edits):
            raise ModelError(f"hook on {path} did not fire in this version of transformers: nothing was changed")


def hook_of(model: Model, place: Place) -> tuple[str, str, int]:
    """Side and path of the module of a place, and the number of its call."""
    layout = stack_layout(layout_of(model), place.stack)
    names, mlp, config = stack_names(layout, place.stack), layout.mlp, getattr(model.weights, "config", None)
    block = block_path(config, layout, model.shape, place.layer)
    call = sum(block_path(config, layout, model.shape, n) == block for n in range(place.layer))
    if place.kind in ("pre", "post"):
        return "in" if place.kind == "pre" else "out", block.removesuffix("."), call
    if place.kind == "z":
        return "in", block + names.output, call
    if place.kind == "mid" and names.stream_norm is None:
        raise UnsupportedError("the middle of this model's blocks is a sum, no module's output; change what is added")
    parts = {"attention": names.post_norm or names.output, "mlp": mlp.post_norm or mlp.module}
    return "out", f"{block}{parts.get(place.kind, names.stream_norm)}", call


def layout_of(model: Model) -> Layout:
    return model.weights.layout if isinstance(model.weights, NamedWeights) else ARRAYS


def _ids(model: Model, ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids, device=model.device)
