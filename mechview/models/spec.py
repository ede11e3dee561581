"""What a MODEL argument may be, and the pinned place it stands for.

`toy` (bundled; `revision` names a training checkpoint) · a hub name · a local Hugging Face folder ·
a `.gguf` file · `package:NAME` (weights inside an installed Python package, which is never imported).
Everything but a live module ends as a folder of the Hugging Face layout.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Literal

from mechview.errors import ModelError, UsageError
from mechview.models.bundled import bundled_lstms, bundled_models, data_folder
from mechview.models.gguf import gguf_folder
from mechview.models.hub import hub_folder

Kind = Literal["bundled", "hub", "folder", "gguf", "package", "module", "bridge", "arrays"]
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*(/[\w.\-]+)?")


@dataclass(frozen=True)
class Source:
    """Where a model comes from. `revision` is a commit, checkpoint or package version, where one exists."""

    name: str
    kind: Kind
    folder: Path | None = None
    revision: str | None = None
    config_folder: Path | None = None


def resolve(spec: str, *, revision: str | None = None, offline: bool = False) -> Source:
    """The source a MODEL argument names.

    Raises:
        ModelError: there is no such model, or it cannot be had without the network.
        UsageError: the argument is none of the known forms.
    """
    if spec.startswith("package:"):
        return _package(spec, revision)
    if spec.endswith(".gguf"):
        _no_revision(spec, revision)
        path = Path(spec).expanduser()
        if not path.is_file():
            raise ModelError(f"there is no file {spec}")
        return Source(spec, "gguf", gguf_folder(path))
    if spec in bundled_models() and not Path(spec).is_dir():
        return _bundled(spec, revision)
    if spec in bundled_lstms() and not Path(spec).is_dir():
        raise ModelError(
            f"{spec} is an LSTM, not a transformer: open it with load_lstm, or with mechview memory {spec}"
        )
    if spec and Path(spec).expanduser().is_dir():
        _no_revision(spec, revision)
        return Source(spec, "folder", Path(spec).expanduser())
    if spec.startswith((".", "/", "~")) or "\\" in spec:
        raise ModelError(f"there is no folder {spec}")
    if not HUB_NAME.fullmatch(spec) or ".." in spec:
        raise UsageError(f"{spec!r} is not a model: give a bundled name, hub name, folder, .gguf file or package:NAME")
    offline = offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    folder, commit = hub_folder(spec, revision, offline)
    return Source(spec, "hub", folder, commit)


def _no_revision(spec: str, revision: str | None) -> None:
    if revision is not None:
        raise UsageError(f"{spec} is a local path and has no revisions; --revision needs a hub or bundled name")


def _bundled(name: str, revision: str | None) -> Source:
    folder = data_folder() / name
    if revision is None:
        return Source(name, "bundled", folder, "final")
    steps = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    if revision not in steps:
        raise ModelError(f"{name} has no checkpoint {revision}; it has {', '.join(steps)}")
    return Source(name, "bundled", folder / "checkpoints" / revision, revision, folder)


def _package(spec: str, revision: str | None) -> Source:
    name = spec.removeprefix("package:").replace("-", "_")
    if not name.isidentifier():
        raise UsageError(f"{spec!r} does not name a Python package")
    found = found_spec(name)
    if found is None:
        raise ModelError(f"no installed package is called {name}; `mechview models` lists those that hold weights")
    if not found.submodule_search_locations:
        raise ModelError(f"{name} is a module without a folder of its own: it holds no weights")
    version = package_version(name)
    if revision not in (None, version):
        raise ModelError(f"{spec} is installed at version {version}, not {revision}")
    root = Path(next(iter(found.submodule_search_locations)))
    folder = package_weights(root)
    if folder is None:
        raise ModelError(f"the package {name} holds no config.json with weights and no .gguf file")
    return Source(spec, "package", gguf_folder(folder) if folder.is_file() else folder, version)


def found_spec(name: str) -> ModuleSpec | None:
    """Where a package is, without importing it."""
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a module of this process that came from no file
        return None


def package_weights(root: Path) -> Path | None:
    """The first Hugging Face folder, or else `.gguf` file, inside a package."""
    for config in sorted(root.rglob("config.json")):
        if any(config.parent.glob("*.safetensors")) or (config.parent / "pytorch_model.bin").is_file():
            return config.parent
    return next(iter(sorted(root.rglob("*.gguf"))), None)


def package_version(name: str) -> str | None:
    owners = importlib.metadata.packages_distributions().get(name)
    return importlib.metadata.version(owners[0]) if owners else None
