"""Live modules of the original library: copies that share weights, and the state they must be in.

The TransformerLens bridge rewrites the module it wraps, and capturing attention needs the eager
implementation and evaluation mode. So mechview never works on a caller's module: it works on a copy of
its structure whose parameters share the caller's storage. Nothing the caller holds changes, and no
weight is held twice.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from mechview.errors import ModelError


def shared_copy(module: nn.Module) -> nn.Module:
    """A deep copy in evaluation mode and eager attention whose tensors share the original's storage.

    Hooks the caller has registered are not copied: they would fire on mechview's passes.
    """
    memo: dict[int, object] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        alias = tensor.detach()
        memo[id(tensor)] = nn.Parameter(alias, requires_grad=False) if isinstance(tensor, nn.Parameter) else alias
    duplicate = copy.deepcopy(module, memo)
    for part in duplicate.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks):
            hooks.clear()
    duplicate.eval()
    if hasattr(duplicate, "set_attn_implementation"):
        duplicate.set_attn_implementation("eager")
    return duplicate


def reset_dynamic_rotary(module: nn.Module) -> None:
    """Dynamic rotary scaling remembers the longest prompt it has seen; a pass must not depend on that."""
    for part in module.modules():
        original = getattr(part, "original_inv_freq", None)
        if isinstance(original, Tensor) and hasattr(part, "original_max_seq_len"):
            part.inv_freq = original
            part.max_seq_len_cached = part.original_max_seq_len


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

    def read(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        if tensor.is_meta:
            raise ModelError(f"{name} has no values: the module was built without its weights")
        return tensor


def has_head(module: nn.Module) -> bool:
    """Whether the module has an unembedding."""
    finder = getattr(module, "get_output_embeddings", None)
    return finder is not None and finder() is not None


@torch.no_grad()
def original_logits(module: nn.Module, ids: Tensor, decoder_ids: Tensor | None = None) -> Tensor | None:
    """Logits `[pos, d_vocab]` of the original library, or None for a module without a head."""
    reset_dynamic_rotary(module)
    keywords = {} if decoder_ids is None else {"decoder_input_ids": decoder_ids[None]}
    logits = getattr(module(ids[None], **keywords), "logits", None)
    return None if logits is None else logits[0]
