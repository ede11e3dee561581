"""Named tensors with the habits of a family taken off: prefixes, orientation, norm offsets.

Every tensor is checked once here: present, numeric and finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import ModelError
from mechview.models.layouts import Layout
from mechview.models.shape import Config, norm_eps
from mechview.models.weights import IDENTITY_NORM, NormWeights, TensorSource


@dataclass(frozen=True)
class NamedTensors:
    """Reads by the names of the full model; checkpoints of the bare model leave out `layout.base`."""

    source: TensorSource
    layout: Layout
    config: Config

    def read(self, name: str, finite: bool = True) -> Tensor:
        """The tensor of this name; `finite=False` leaves the search for NaN to the caller.

        Raises:
            ModelError: it is missing, not stored as floating-point numbers, or not finite.
        """
        found = self._find(name)
        if found is None:
            raise ModelError(f"the checkpoint has no tensor {name}")
        tensor = numeric(self.source.read(found), found)
        return all_finite(tensor, found) if finite else tensor

    def has(self, name: str | None) -> bool:
        return name is not None and self._find(name) is not None

    def optional(self, *names: str) -> Tensor | None:
        """The first of these tensors that exists."""
        found = next((name for name in names if self.has(name)), None)
        return None if found is None else self.read(found)

    def matrix(self, module: str, finite: bool = True) -> Float[Tensor, "d_in d_out"]:
        """The weight of a linear module, acting on row vectors."""
        W = self.read(module + ".weight", finite)
        if W.ndim != 2:
            raise ModelError(f"{module}.weight has {W.ndim} axes; a matrix has 2")
        return W if self.layout.linear == "in out" else W.mT

    def gain(self, name: str) -> Tensor:
        gain = self.read(name + ".weight")
        return gain.float() + self.layout.gain_offset if self.layout.gain_offset else gain

    def norm(self, block: str, name: str | None) -> NormWeights:
        """A norm of the stream; the identity where the family has none."""
        if name is None:
            return IDENTITY_NORM
        path = block + name
        plain = getattr(self.config, "layer_norm_elementwise_affine", True) is False  # OPT
        gain = None if plain else self.gain(path)
        return NormWeights(self.layout.norm, gain, self.optional(path + ".bias"), norm_eps(self.config))

    def _find(self, name: str) -> str | None:
        names = self.source.names()
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        spellings = [spelling.removeprefix(base) for spelling in (name, old) for base in ("", self.layout.base)]
        return next((spelling for spelling in spellings if spelling in names), None)


def numeric(tensor: Any, name: str) -> Tensor:
    """The tensor, if it is dense and stored as floating-point numbers of at least 16 bits."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        raise ModelError(f"{name} is not a dense tensor")
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ModelError(f"{name} is stored as {str(tensor.dtype)[6:]}: quantised weights are not read as numbers")
    return tensor


def all_finite(tensor: Tensor, name: str) -> Tensor:
    """The tensor, if it holds neither NaN nor infinity."""
    if tensor.sum().isfinite():  # a sum hides no NaN and no infinity, and is cheaper than looking at each number
        return tensor
    finite = torch.isfinite(tensor)
    if not finite.all():
        first = (~finite).nonzero()[0].tolist()
        raise ModelError(f"{name} holds {int((~finite).sum())} values that are NaN or infinite, first at {first}")
    return tensor
