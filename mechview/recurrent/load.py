"""Opening an LSTM: the bundled `twin`, a folder, textgenrnn's package, or weights somebody holds.

A folder holds `model.safetensors` under PyTorch's names (or a `pytorch_model.bin`, read as data only), and
beside it `config.json` and a `vocab.json` of characters (as ml5's charRNN, converted, has) or a tokenizer; a
configuration may name another folder's tokenizer, as the twin names toy's. What a configuration promises
is checked against the tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mechview.errors import ModelError
from mechview.models.bundled import bundled_lstms, data_folder
from mechview.models.checkpoint import FolderTensors
from mechview.models.tokenizers import read_tokenizer
from mechview.recurrent.keras import PACKAGE, textgenrnn
from mechview.recurrent.modules import from_state
from mechview.recurrent.tokenizers import CharTokenizer
from mechview.recurrent.weights import Lstm


def load_lstm(spec: str | Path = "twin") -> Lstm:
    """Open an LSTM by name or path: `twin` (bundled), a folder, or `package:textgenrnn`.

    Raises:
        ModelError: there is no such LSTM, or it cannot be read.
    """
    name = os.fspath(spec)
    if name.removeprefix("package:") == PACKAGE:
        return textgenrnn()
    if name in bundled_lstms() and not Path(name).is_dir():
        return from_folder(data_folder() / name, name, "final")
    folder = Path(name).expanduser()
    if not folder.is_dir():
        bundled = ", ".join(bundled_lstms())
        raise ModelError(f"{name} is not an LSTM here: give {bundled}, package:{PACKAGE}, or a folder with one")
    return from_folder(folder, name)


def is_lstm(spec: str) -> bool:
    """Whether a MODEL argument names an LSTM rather than a transformer; only its configuration is looked at."""
    if spec.removeprefix("package:") == PACKAGE:
        return True
    if not Path(spec).expanduser().is_dir():
        return spec in bundled_lstms()
    config = read_settings(Path(spec).expanduser())
    return config.get("model_type") == "lstm" or ("hidden" in config and "num_attention_heads" not in config)


def from_folder(folder: Path, name: str, revision: str | None = None) -> Lstm:
    config, tensors = read_settings(folder), FolderTensors(folder)
    state = {key: tensors.read(key) for key in sorted(tensors.names())}
    found = from_state(
        state, name, tokenizer_of(folder, config), context=config.get("context"), revision=revision, folder=folder
    )
    check_settings(found, config)
    return found


def read_settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        raise ModelError(f"{path} is not JSON") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path} is not a table of settings")
    return config


def tokenizer_of(folder: Path, config: Mapping[str, Any]) -> Any | None:
    """Characters of a `vocab.json`, the tokenizer in the folder, or the one its configuration points to."""
    vocabulary = folder / "vocab.json"
    if vocabulary.is_file() and not (folder / "tokenizer.json").is_file():
        ids = json.loads(vocabulary.read_text(encoding="utf-8"))
        if not isinstance(ids, dict) or not all(isinstance(number, int) for number in ids.values()):
            raise ModelError(f"{vocabulary} is not a table of characters and their ids")
        return CharTokenizer(ids)
    tokenizer, broken = read_tokenizer(folder / str(config.get("tokenizer", ".")))
    if broken is not None:
        raise ModelError(f"the tokenizer of {folder.name} is broken: {broken}")
    return tokenizer


def check_settings(found: Lstm, config: Mapping[str, Any]) -> None:
    """Refuse a configuration that says something else than the tensors."""
    top = found.layers[0][0]
    real = {
        "layers": len(found.layers), "hidden": top.cells, "embedding": found.d_in,
        "vocab_size": None if found.W_E is None else len(found.W_E), "projection": top.width if top.W_r is not None else None,
    }  # fmt: skip
    for key, value in real.items():
        if key in config and config[key] != value:
            raise ModelError(f"the configuration says {key} = {config[key]}; the tensors have {value}")
