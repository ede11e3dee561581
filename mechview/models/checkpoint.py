"""Checkpoints on disk, tensor by tensor: safetensors, sharded or not, or a pickle read as data only.

Nothing is built: a tensor is read when it is asked for, from a mapping of the file that goes with the tensor, so that
only what is in use counts as memory. File names of an index must lie in the folder.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from mechview.errors import ModelError


@dataclass(frozen=True)
class FolderTensors:
    """`TensorSource` over the weight files of a Hugging Face folder."""

    folder: Path

    def names(self) -> frozenset[str]:
        return self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._files)

    def read(self, name: str) -> Tensor:
        file = self._files[name]
        if file.suffix == ".bin":
            return self._pickled(file)[name]
        return self._open(file).get_tensor(name)

    @cached_property
    def files(self) -> list[Path]:
        """Weight files, safetensors before pickles."""
        found = self._regular("model.safetensors") or self._indexed("model.safetensors.index.json")
        found = found or self._regular("*.safetensors") or self._regular("pytorch_model.bin")
        found = found or self._indexed("pytorch_model.bin.index.json") or self._regular("pytorch_model*.bin")
        if not found:
            raise ModelError(f"{self.folder} holds no .safetensors and no pytorch_model.bin")
        return found

    def digest(self) -> str:
        """sha256 over the weight files, in name order."""
        total = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        return total.hexdigest()

    @cached_property
    def _files(self) -> dict[str, Path]:
        named: dict[str, Path] = {}
        for file in self.files:
            keys = self._pickled(file) if file.suffix == ".bin" else self._open(file).keys()
            twice = next((key for key in keys if key in named), None)
            if twice is not None:
                raise ModelError(f"{named[twice].name} and {file.name} both hold {twice}: which is meant is not said")
            named |= dict.fromkeys(keys, file)
        return named

    def _regular(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.folder.glob(pattern) if path.is_file())

    @cached_property
    def _pickles(self) -> dict[Path, dict[str, Tensor]]:
        return {}

    def _open(self, file: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file.name} is not a readable safetensors file: {error}") from None

    def _pickled(self, file: Path) -> dict[str, Tensor]:
        import torch

        if file not in self._pickles:
            try:
                self._pickles[file] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            except pickle.UnpicklingError:
                raise ModelError(f"{file.name} is a pickle that holds more than tensors; it is not executed") from None
            except (RuntimeError, EOFError, OSError, ValueError) as error:
                raise ModelError(f"{file.name} cannot be read: {str(error).splitlines()[0]}") from None
        return self._pickles[file]

    def _indexed(self, index: str) -> list[Path]:
        path = self.folder / index
        if not path.is_file():
            return []
        try:
            names = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise ModelError(f"{index} is not an index of weight files") from None
        outside = next((n for n in names if Path(str(n)).name != n), None)
        if outside is not None:
            raise ModelError(f"{index} names {outside!r}, which is not a file of its folder")
        missing = [name for name in names if not (self.folder / name).is_file()]
        if missing:
            raise ModelError(f"{self.folder.name} lacks {', '.join(missing)}, which its index names")
        return [self.folder / name for name in names]


def read_config(folder: Path) -> Any:
    """The configuration of a folder. Remote code is never run.

    Raises:
        ModelError: missing, malformed, or of an unknown or quantised kind.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no config.json: it is not a Hugging Face model folder")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        family = raw["model_type"]
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        raise ModelError(f"{path} is not a model configuration") from None
    kinds = raw.get("architectures") or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ModelError(f"{path.name} says architectures = {kinds!r}, which is not a list of names")
    if "quantization_config" in raw:
        said = raw["quantization_config"]
        method = said.get("quant_method", "unknown") if isinstance(said, dict) else "unknown"
        raise ModelError(f"the weights are quantised ({method}): they are not read as numbers; dequantise them first")
    return _parse(path, folder, str(family))


def _parse(path: Path, folder: Path, family: str) -> Any:
    from transformers import AutoConfig

    from mechview.errors import UnsupportedError
    from mechview.models.refused import REFUSED

    if family in REFUSED:
        raise UnsupportedError(f"{family} is not supported: {REFUSED[family]}")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library validates with many kinds of errors
        first = " ".join(str(error).split()[:40]) or repr(error)
        raise ModelError(f"{path.name} cannot be read as a {family} configuration: {first}") from None
