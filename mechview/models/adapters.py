"""Adapters (peft): a model with its adapter merged in, or without it, as a plain module of the library.

Everything is done on a structure copy that shares the caller's storage, except for the weights an adapter
changes, which are copied before they are merged: nothing of the caller's is written. Adapters that are no
change of weights (prompt and prefix tuning) have no such form and are refused. Merged weights are those of the
moment: after further training, wrap again. A folder of peft's (`adapter_config.json`) is read over the model it was
trained on; pickled adapters are refused.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
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


def is_adapter_folder(folder: Path) -> bool:
    """Whether this holds an adapter and no model of its own."""
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> tuple[str, str | None]:
    """The model an adapter was trained on, and its revision, as the folder says; a local path counts from there too.

    Raises:
        ModelError: the folder does not say.
    """
    try:
        said = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        name, revision = said["base_model_name_or_path"], said.get("revision")
    except (OSError, ValueError, TypeError, KeyError):
        name = revision = None
    if not isinstance(name, str) or not name:
        raise ModelError(f"{folder} does not say which model its adapter belongs to")
    return str(folder / name) if (folder / name).is_dir() else name, revision


def with_adapter(module: nn.Module, folder: Path) -> nn.Module:
    """The module with the folder's adapter merged in; `module` stays as it was.

    Raises:
        ModelError: no adapter there, a pickled one, peft not installed, or one that does not fit this model.
    """
    if not (folder / "adapter_config.json").is_file():
        raise ModelError(f"{folder} holds no adapter: there is no adapter_config.json")
    if not (folder / "adapter_model.safetensors").is_file():
        raise ModelError(f"{folder} holds no adapter_model.safetensors, and pickled adapters are not read")
    try:
        from peft import PeftModel
    except ImportError:
        raise ModelError("adapters need the package peft: pip install mechview[peft]") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "Found missing adapter keys")
            adapted = PeftModel.from_pretrained(shared_copy(module), str(folder))  # type: ignore[arg-type]
    except Exception as error:  # peft raises many kinds on files that do not fit
        raise ModelError(f"the adapter of {folder} cannot be put on: {' '.join(str(error).split()[:30])}") from None
    return plain_module(adapted, True)[0]
