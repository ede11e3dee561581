"""The manifest: what somebody needs to know, or to repeat, about a result.

Versions, platform, model and its hashes, dtypes, arguments, seed, warnings, time and peak memory, as
plain JSON values. Hashes are of the files read; a live module has none.
"""

from __future__ import annotations

import hashlib
import platform
import re
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mechview.version import __version__

SCHEMA_VERSION = 1
PACKAGES = ("torch", "transformers", "transformer-lens", "numpy", "pandas", "plotly", "safetensors")
PROMPT_OPTIONS = ("--prompt", "--ids", "--compare")
SHORT = re.compile(r"-[qf]*p")  # -p alone or behind short options that take nothing, its text perhaps attached
DROPPED = "[prompt not kept]"
FEW = 8  # items of a list that is kept as it is
DIGESTS: dict[tuple[tuple[str, int, int], ...], str] = {}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")


@dataclass
class Run:
    """A run being measured; `warnings` fills while it lasts."""

    started: float = field(default_factory=time.time)
    warnings: list[str] = field(default_factory=list)


@contextmanager
def recorded() -> Iterator[Run]:
    """Collects the warnings of a run, once each, for its manifest."""
    run = Run()

    def keep(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = f"{category.__name__}: {message}"
        run.warnings += [] if text in run.warnings else [text]

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = keep
        yield run


def manifest(
    model: Any, run: Run | None = None, *, hashed: bool = True, text_kept: bool = True, **arguments: Any
) -> dict[str, Any]:
    """Facts about this environment, this model and these arguments.

    Args:
        hashed: hash the weight files, which reads all of them; one head of a large model does without.
        text_kept: whether the command line keeps the prompts that were written on it.
    """
    source = model.source
    facts: dict[str, Any] = environment() | {
        "model": source.name,
        "source": source.kind,
        "revision": source.revision,
        "weights_sha256": weights_digest(model.weights) if hashed else None,
        "tokenizer_sha256": tokenizer_digest(source.config_folder or source.folder),
        "shape": {name: value for name, value in vars(model.shape).items() if value is not None},
        "arguments": arguments,
        "command": command(text_kept),
        "peak_memory_mb": peak_memory_mb(),
    }
    if run is not None:
        facts |= {"seconds": round(time.time() - run.started, 2), "warnings": list(run.warnings)}
        facts["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.started))
    return facts


def command_line(arguments: Sequence[str], text_kept: bool = True) -> list[str]:
    """The arguments, without its prompts (texts and ids) unless they are to be kept."""
    if text_kept:
        return list(arguments)
    said: list[str] = []
    follows = False  # whether the option before takes this argument as its prompt
    for argument in arguments:
        name, given, _ = argument.partition("=")
        short = SHORT.match(argument)
        if follows:
            said.append(DROPPED)
        elif given and name in PROMPT_OPTIONS:
            said.append(f"{name}={DROPPED}")
        else:
            said.append(f"{short[0]}{DROPPED}" if short and short[0] != argument else argument)
        follows = not follows and (argument in PROMPT_OPTIONS or bool(short and short[0] == argument))
    return said


def sides_manifest(*sides: Any, hashed: bool = True, **arguments: Any) -> dict[str, Any]:
    """The same facts about any number of models, opened weights or traces, each in `sides`."""
    return environment() | {
        "sides": [side_facts(side, hashed) for side in sides],
        "arguments": {name: plain(value) for name, value in arguments.items()},
        "command": command(),
        "peak_memory_mb": peak_memory_mb(),
    }


def side_facts(side: Any, hashed: bool) -> dict[str, Any]:
    """Model, revision and hash of one side."""
    weights, source = getattr(side, "weights", side), getattr(side, "source", None)
    named = source if hasattr(source, "kind") else None  # opened weights have a source of tensors instead
    name = getattr(named, "name", None) or getattr(side, "model", None) or "weights"
    return {
        "model": name,
        "source": getattr(named, "kind", "trace" if hasattr(side, "capture") else "weights"),
        "revision": getattr(named or side, "revision", None),
        "weights_sha256": weights_digest(weights) if hashed else None,
        "shape": {key: value for key, value in vars(weights.shape).items() if value is not None},
    }


def plain(value: Any) -> Any:
    """A value as JSON has it; of arrays and of texts in lists only how many and their sha256."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "detach"):
        numbers = value.detach().cpu().double().numpy()
        return {"shape": list(numbers.shape), "sha256": hashlib.sha256(numbers.tobytes()).hexdigest()}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    items = list(value) if isinstance(value, Sequence) else [value]
    if len(items) <= FEW and all(isinstance(item, str | int | float | None) for item in items):
        return items
    return {"n": len(items), "sha256": hashlib.sha256(repr(items).encode()).hexdigest()}


def environment() -> dict[str, Any]:
    """Versions and platform."""
    return {
        "schema_version": SCHEMA_VERSION,
        "mechview": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: package_version(name) for name in PACKAGES},
    }


def command(text_kept: bool = True) -> str:
    return " ".join([Path(sys.argv[0]).name, *command_line(sys.argv[1:], text_kept)])


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def weights_digest(weights: Any) -> str | None:
    """sha256 of the weight files, read once as long as they do not change; None for a live module."""
    source = getattr(getattr(weights, "whole", weights), "source", None)
    digest, held = getattr(source, "digest", None), getattr(source, "files", None)
    if digest is None:
        return None
    files = held if isinstance(held, list) else getattr(held, "files", [])
    stats = [(path, path.stat()) for path in files]
    key = tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)
    if not key:
        return str(digest())
    if key not in DIGESTS:
        DIGESTS[key] = str(digest())
    return DIGESTS[key]


def tokenizer_digest(folder: Path | None) -> str | None:
    found = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()] if folder else []
    if not found:
        return None
    total = hashlib.sha256()
    for path in found:
        total.update(path.read_bytes())
    return total.hexdigest()


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)
