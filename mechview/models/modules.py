"""Live modules of the original library: copies that share weights, and the state they must be in.

The TransformerLens bridge rewrites the module it wraps, and capturing attention needs the eager
implementation and evaluation mode. So mechview never works on a caller's module: it works on a copy of
its structure whose parameters share the caller's storage. Nothing the caller holds changes, and no
weight is held twice.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mechview.errors import ModelError


def shared_copy(module: nn.Module) -> nn.Module:
    """A deep copy in evaluation mode and eager attention whose parameters share the original's storage.

    Buffers are copied: some rotary embeddings write into theirs. Hooks the caller has registered are left
    out: they would fire on mechview's passes, and what they hold need not be copyable.
    """
    memo: dict[int, object] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()}
    for part in module.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks):
            memo[id(hooks)] = OrderedDict()
    duplicate = copy.deepcopy(module, memo).eval()
    for part in duplicate.modules():  # the library's own recording hooks went too, and must be put on again
        vars(part).pop("_output_capturing_hooks_installed", None)
    choose_eager(duplicate)
    return duplicate


def choose_eager(module: nn.Module) -> None:
    """Eager attention, the only kind that returns patterns, and eager experts, which run in every dtype.

    Raises:
        ModelError: the module was built in a kind of attention that cannot be changed afterwards.
    """
    config: Any = getattr(module, "config", None)
    changed: Any = module
    if getattr(changed, "_can_set_experts_implementation", bool)():
        changed.set_experts_implementation("eager")
    kind = getattr(config, "_attn_implementation", "eager")
    if kind == "eager":
        return
    if changed._can_set_attn_implementation():
        changed.set_attn_implementation("eager")
    elif kind == "sdpa":  # one class for both, which asks the configuration at each pass
        config._attn_implementation = "eager"
    else:
        raise ModelError(f"{type(module).__name__} was built with {kind}; build it with attn_implementation='eager'")


def reset_dynamic_rotary(module: nn.Module) -> None:
    """Scaled rotary positions remember the longest prompt they have seen; a pass must not depend on that."""
    for part in module.modules():
        held = {**vars(part), **part._buffers}
        for name in [name for name in held if name.endswith("original_inv_freq")]:
            kind = name.removesuffix("original_inv_freq")  # Gemma-3 keeps one set per kind of layer
            setattr(part, f"{kind}inv_freq", held[name].clone())  # longrope writes into it in place
            if hasattr(part, "original_max_seq_len"):
                setattr(part, f"{kind}max_seq_len_cached", part.original_max_seq_len)


@dataclass(frozen=True)
class ModuleTensors:
    """`TensorSource` over a live module. A bridge's wrapping is taken out of the names."""

    module: nn.Module

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        state = self.module.state_dict(keep_vars=False)
        return {name.replace("_original_component.", ""): tensor.detach() for name, tensor in state.items()}

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    @cached_property
    def _seen(self) -> list[tuple[int, torch.dtype]]:
        return [(parameter.data_ptr(), parameter.dtype) for parameter in self.module.parameters()]

    def check_same(self) -> None:
        """Refuse a module whose parameters are no longer the ones that were wrapped.

        Raises:
            ModelError: they were replaced, moved or cast; changes in place are followed.
        """
        if self._seen != [(parameter.data_ptr(), parameter.dtype) for parameter in self.module.parameters()]:
            raise ModelError("the module's parameters were replaced since it was wrapped; wrap it again")

    def read(self, name: str) -> Tensor:
        self.check_same()
        tensor = self._tensors[name]
        if tensor.is_meta:
            raise ModelError(f"{name} has no values: the module was built without its weights")
        return tensor


def has_head(module: nn.Module) -> bool:
    """Whether the module has an unembedding."""
    finder = getattr(module, "get_output_embeddings", None)
    return finder is not None and finder() is not None


@contextmanager
def quiet_library() -> Iterator[None]:
    """The library's own progress bars off: they would mix with results, and with mechview's progress."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@torch.no_grad()
def original_logits(module: nn.Module, ids: Tensor, decoder_ids: Tensor | None = None) -> Tensor | None:
    """Logits `[pos, d_vocab]` of the original library, or None for a module without a head."""
    reset_dynamic_rotary(module)
    keywords = {} if decoder_ids is None else {"decoder_input_ids": decoder_ids[None]}
    logits = getattr(module(ids[None], **keywords), "logits", None)
    return None if logits is None else logits[0]
