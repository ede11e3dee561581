"""Which models can be opened here without a download: bundled, in packages, in caches; LSTMs as such.

Nothing is imported or loaded: packages are known by the files their metadata lists, caches by their
folders. A licence is stated only where an index, a package or a model card says it.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mechview.models.bundled import bundled_lstms, bundled_models, data_folder, data_index
from mechview.models.gguf import cache_folder
from mechview.models.spec import HUB_NAME

WEIGHTS = (".safetensors", ".gguf", ".bin")
LSTM_PACKAGE = "textgenrnn"
LSTM_KINDS = ("bundled LSTM", "package with an LSTM")  # `memory` opens them, verbs for transformers do not
CARD_LICENCE = re.compile(r"^license:[ \t]*([\w.\-+]+)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Found:
    """A model on this machine. `name` is what MODEL takes; `size` is in bytes; `revision` its newest.

    An LSTM is what MODEL and `--beside` of `mechview memory` take, and `load_lstm`.
    """

    name: str
    kind: Literal["bundled", "bundled LSTM", "package", "package with an LSTM", "hub cache", "converted"]
    size: int
    licence: str | None = None
    revision: str | None = None
    checkpoints: tuple[str, ...] = ()


def found_models() -> tuple[Found, ...]:
    """Bundled models first, then packages, the hub cache, and converted `.gguf` files."""
    return (*bundled(), *packages(), *hub_cache(), *converted())


def bundled() -> Iterator[Found]:
    licences = {entry["path"]: entry["licence"] for entry in data_index().get("file", [])}
    lstms = bundled_lstms()
    for name in (*bundled_models(), *lstms):
        folder = data_folder() / name
        steps = tuple(sorted(path.name for path in (folder / "checkpoints").glob("step-*")))
        licence = next((found for path, found in licences.items() if path.startswith(f"{name}/")), None)
        kind: Literal["bundled", "bundled LSTM"] = "bundled LSTM" if name in lstms else "bundled"
        yield Found(name, kind, _size(folder), licence, "final", steps)


def packages() -> Iterator[Found]:
    """Installed packages that hold a `.gguf`, or a `config.json` with `.safetensors` beside it, and textgenrnn."""
    for package in importlib.metadata.distributions():
        files = [file for file in package.files or () if len(file.parts) > 1]
        if package.name == LSTM_PACKAGE:
            size = sum(_size(Path(str(file.locate()))) for file in files if file.suffix == ".hdf5")
            yield Found(
                f"package:{LSTM_PACKAGE}", "package with an LSTM", size, _package_licence(package), package.version
            )
        if package.name == "mechview" or not any(file.suffix in (".gguf", ".safetensors") for file in files):
            continue
        configured = {file.parent for file in files if file.name == "config.json"}
        weights = [f for f in files if f.suffix == ".gguf" or (f.suffix == ".safetensors" and f.parent in configured)]
        for top in sorted({file.parts[0] for file in weights}):
            size = sum(_size(Path(str(f.locate()))) for f in weights if f.parts[0] == top)
            yield Found(f"package:{top}", "package", size, _package_licence(package), package.version)


def _package_licence(package: importlib.metadata.Distribution) -> str | None:
    about = package.metadata
    stated = next((about[field] for field in ("License-Expression", "License") if about[field]), None)
    return stated.splitlines()[0] if stated else None


def hub_cache() -> Iterator[Found]:
    """Models of the hub's local cache that have a configuration and weights."""
    for folder in sorted(hub_cache_folder().glob("models--*")):
        name = folder.name.removeprefix("models--").replace("--", "/")
        snapshot = _newest(folder)
        if snapshot is None or not HUB_NAME.fullmatch(name):
            continue
        if any(file.suffix in WEIGHTS for file in snapshot.iterdir()):
            yield Found(name, "hub cache", _size(snapshot), _card_licence(snapshot), snapshot.name)


def hub_cache_folder() -> Path:
    """Where the hub client keeps models, by the variables that it reads."""
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or str(Path(home) / "hub")).expanduser()


def _newest(folder: Path) -> Path | None:
    """The snapshot that `main` points to, else the one last changed."""
    main = folder / "refs" / "main"
    if main.is_file() and (pinned := folder / "snapshots" / main.read_text().strip() / "config.json").is_file():
        return pinned.parent
    configs = sorted(folder.glob("snapshots/*/config.json"), key=lambda path: path.stat().st_mtime)
    return configs[-1].parent if configs else None


def _card_licence(folder: Path) -> str | None:
    card = folder / "README.md"
    match = CARD_LICENCE.search(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else None
    return match[1] if match else None


def converted() -> Iterator[Found]:
    """`.gguf` files read before; MODEL takes the folder."""
    for config in sorted(cache_folder().glob("gguf/*/config.json")):
        yield Found(str(config.parent), "converted", _size(config.parent), _card_licence(config.parent))


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; a file that has gone counts nothing."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
