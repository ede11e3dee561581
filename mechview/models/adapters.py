"""Adapters (peft): a model with its adapter merged in, or without it, as a plain module of the library.

Everything is done on a structure copy that shares the caller's storage, except for the weights an adapter
changes, which are copied before they are merged: nothing of the caller's is written. Adapters that are no
change of weights (prompt and prefix tuning) have no such form and are refused. Merged weights are those of the
moment: after further training, wrap again.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from mechview.errors import ModelError, UsageError
from mechview.models.modules import shared_copy


def is_adapted(module: Any) -> bool:
    """Whether this is a model of the library inside peft's wrapping."""
    return hasattr(module, "peft_config") and hasattr(module, "get_base_model")


def plain_module(module: Any, adapter: bool) -> tuple[nn.Module, str]:
    """The module with its active adapters merged, or without any, and what it is called.

    Adapters that are switched off at this moment (inside `disable_adapter()`) are left out.

    Raises:
        ModelError: an adapter that is no change of weights, or that cannot be merged.
        UsageError: the adapter was merged into the caller's weights, so that there is no model without it.
    """
    kinds = [config for config in module.peft_config.values() if getattr(config, "is_prompt_learning", False)]
    if kinds:
        raise ModelError(f"{kinds[0].peft_type.value} adapters add tokens, not weights: they cannot be laid open")
    layers = [part for part in module.modules() if hasattr(part, "base_layer") and hasattr(part, "merged_adapters")]
    if not adapter and any(layer.merged for layer in layers):
        raise UsageError("the adapter is merged into the weights: unmerge it, and there is a model without it")
    on = adapter and not any(layer.disable_adapters for layer in layers)
    duplicate: Any = shared_copy(module)
    try:
        plain = _merged(duplicate) if on else duplicate.unload()
    except Exception as error:  # each kind of adapter fails in its own way
        raise ModelError(f"the adapter cannot be merged: {' '.join(str(error).split()[:30])}") from None
    name = type(plain).__name__
    return plain, f"{name}+{'+'.join(module.active_adapters)}" if on else name


def _merged(duplicate: Any) -> nn.Module:
    for part in duplicate.modules():
        if hasattr(part, "base_layer") and hasattr(part, "merged_adapters"):
            for parameter in part.base_layer.parameters():
                parameter.data = parameter.data.clone()
    return duplicate.merge_and_unload(safe_merge=True)
