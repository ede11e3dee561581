"""Where the bundled data lies: inside the installed package, or beside it in a checkout."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from mechview.errors import ModelError


def data_folder() -> Path:
    """The folder that holds `index.toml`: `mechview/_data` of a wheel, or `data` of a checkout.

    Raises:
        ModelError: neither is there (a broken installation).
    """
    package = Path(str(resources.files("mechview")))
    for folder in (package / "_data", package.parent / "data"):
        if (folder / "index.toml").is_file():
            return folder
    raise ModelError("mechview's bundled data is missing from this installation; install it again")


def bundled_models() -> list[str]:
    """Names of the bundled transformers."""
    return sorted(name for name, kind in _kinds().items() if kind != "lstm")


def bundled_lstms() -> list[str]:
    """Names of the bundled LSTMs, which `mechview memory` and `load_lstm` open."""
    return sorted(name for name, kind in _kinds().items() if kind == "lstm")


def _kinds() -> dict[str, str]:
    configs = data_folder().glob("*/config.json")
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8"))["model_type"] for path in configs}


def data_index() -> dict[str, Any]:
    """`data/index.toml`: each bundled file with hash, licence, source and the command that made it."""
    return tomllib.loads((data_folder() / "index.toml").read_text(encoding="utf-8"))
