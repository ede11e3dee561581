"""Mixtral's file names: one matrix a projection and expert on disk, stacked in the library's modules.

The library renames when it loads, so a checkpoint and a live module differ in names only here. The stack is
made when it is asked for, from the experts of one layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechview.models.checkpoint import FolderTensors
from mechview.models.weights import TensorSource

EXPERT = re.compile(r"(.*\.)block_sparse_moe\.experts\.(\d+)\.w1\.weight")
PARTS = {"mlp.experts.gate_up_proj": ("w1", "w3"), "mlp.experts.down_proj": ("w2",)}


@dataclass(frozen=True)
class StackedExperts:
    """`TensorSource` with the names of the library's modules over a file with one tensor per expert."""

    files: FolderTensors

    def names(self) -> frozenset[str]:
        return self.files.names() | frozenset(self._parts)

    def read(self, name: str) -> Tensor:
        if name not in self._parts:
            return self.files.read(name)
        found = [[self.files.read(part) for part in parts] for parts in self._parts[name]]
        return found[0][0] if name.endswith("gate.weight") else torch.stack([torch.cat(parts) for parts in found])

    @property
    def folder(self) -> Path:
        return self.files.folder

    def digest(self) -> str:
        """sha256 of the files."""
        return self.files.digest()

    @cached_property
    def _parts(self) -> dict[str, list[list[str]]]:
        """The file's names that each module's tensor is made of, expert by expert."""
        counts: dict[str, int] = {}
        for found in map(EXPERT.fullmatch, self.files.names()):
            if found:
                counts[found[1]] = max(counts.get(found[1], 0), int(found[2]) + 1)
        parts = {f"{block}mlp.gate.weight": [[f"{block}block_sparse_moe.gate.weight"]] for block in counts}
        for block, count in counts.items():
            expert = f"{block}block_sparse_moe.experts.{{}}.{{}}.weight"
            parts |= {
                block + name: [[expert.format(n, w) for w in projections] for n in range(count)]
                for name, projections in PARTS.items()
            }
        return parts


def file_tensors(folder: Path, config: Any) -> TensorSource:
    """The tensors of a folder, by the names of the library's modules."""
    files = FolderTensors(folder)
    return StackedExperts(files) if config.model_type == "mixtral" else files
