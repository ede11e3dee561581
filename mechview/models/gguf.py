"""GGUF files, read once into a Hugging Face folder in the user's cache (float32, dequantised).

The original library dequantises; the folder is named by the file's hash, so a changed file is read
anew. A conversion is built beside its place and renamed, so a folder is whole or not there; what a killed
one left is removed by the next. `MECHVIEW_CACHE` moves the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

from mechview.errors import ModelError

MAGIC = b"GGUF"
STALE_SECONDS = 3600.0
NEWEST = 3  # version of the format


def cache_folder() -> Path:
    """Where converted models are kept."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mechview"
    return Path(os.environ.get("MECHVIEW_CACHE", default))


def gguf_folder(path: Path) -> Path:
    """The Hugging Face folder of a GGUF file, converted on first use.

    Raises:
        ModelError: not a GGUF file, or an architecture or quantisation that cannot be read as numbers.
    """
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelError(f"{path.name} is not a GGUF file")
        check_header(path, file.read(20))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = cache_folder() / "gguf" / digest[:32]
    if (target / "config.json").is_file():
        return target
    prefix = f".building-{digest[:32]}-"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f"{prefix}*"):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    except OSError as error:
        raise ModelError(f"the cache {target.parent} cannot be written: {error.strerror}") from None
    try:
        _convert(path, building)
        if not target.exists():
            building.rename(target)
    except OSError as error:
        raise ModelError(f"the converted {path.name} cannot be kept in {target.parent}: {error.strerror}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def check_header(path: Path, header: bytes) -> None:
    """Refuse what only begins like GGUF: its version, and counts that the file has no room for.

    Raises:
        ModelError: the header says what cannot be.
    """
    version, tensors, entries = struct.unpack("<IQQ", header) if len(header) == 20 else (0, 0, 0)
    if not 2 <= version <= NEWEST or max(tensors, entries) > path.stat().st_size:
        raise ModelError(f"{path.name} cannot be read: what follows its first four letters is not GGUF")


def _whole(path: Path) -> None:
    """Read the table of contents, which the original library's errors say nothing useful about."""
    from gguf import GGUFReader

    try:
        GGUFReader(path)
    except Exception:  # numpy's errors about shapes and ends, by whatever the bytes happen to say
        raise ModelError(f"{path.name} cannot be read: its table of contents is damaged or cut off") from None


def _convert(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mechview.models.modules import quiet_library

    _whole(path)
    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    try:
        with quiet_library():
            model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **where)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    except Exception as error:  # the reader raises whatever a malformed file provokes
        raise ModelError(
            f"{path.name} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from None
    state, config = model.state_dict(), model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the numbers are plain now
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    with quiet_library():
        plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
