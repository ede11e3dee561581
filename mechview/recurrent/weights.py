"""Frozen records of an LSTM, in one layout for every source: row vectors, gates in the order i, f, g, o.

    i, f, o = sigmoid(x W_x + h W_h + b),   g = tanh(x W_x + h W_h + b)
    c_t = f o c_{t-1} + i o g,              h_t = (o o tanh c_t) W_r

(Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000; `W_r` is the projection of Sak
et al. 2014, left out where there is none.) PyTorch's two biases are one here: only their sum acts. An
`Lstm` is a stack of such layers, of one or two directions, with whatever surrounds it: an embedding, a
read-out, and for textgenrnn the attention-weighted mean over its window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

GATES = ("input", "forget", "candidate", "output")


@dataclass(frozen=True)
class LstmLayer:
    """One direction of one layer; with `reverse` it is run from the last token to the first."""

    W_x: Float[Tensor, "gate d_in cell"]
    W_h: Float[Tensor, "gate d_hidden cell"]
    b: Float[Tensor, "gate cell"]
    W_r: Float[Tensor, "cell d_hidden"] | None = None
    reverse: bool = False

    @property
    def cells(self) -> int:
        return self.b.shape[-1]

    @property
    def width(self) -> int:
        """Width of the hidden state."""
        return self.W_h.shape[1]


@dataclass(frozen=True)
class Window:
    """textgenrnn's read-out: a softmax-weighted mean of embedding and hidden states over `length` padded tokens.

    `weight` scores each position of the concatenation `[embedding, layer 1, layer 2, ...]`.
    """

    weight: Float[Tensor, "d_in"]
    length: int
    pad: int = 0


@dataclass(frozen=True)
class Lstm:
    """A stack of layers, each of one direction or two, and what surrounds it.

    Without `W_E` a prompt is a matrix of input vectors; without `W_U` there are no logits.
    """

    name: str
    layers: tuple[tuple[LstmLayer, ...], ...]
    W_E: Float[Tensor, "d_vocab d_in"] | None = None
    W_U: Float[Tensor, "d_out d_vocab"] | None = None
    b_U: Float[Tensor, "d_vocab"] | None = None
    window: Window | None = None
    tokenizer: Any | None = None
    context: int | None = None
    revision: str | None = None
    folder: Path | None = None

    def __repr__(self) -> str:
        cells = " + ".join(str(layer[0].cells) for layer in self.layers)
        both = ", both directions" if len(self.layers[0]) == 2 else ""
        return f"Lstm({self.name!r}, {len(self.layers)} layers of {cells} cells{both})"

    @property
    def d_in(self) -> int:
        """Width of what the first layer reads."""
        return self.layers[0][0].W_x.shape[1]

    def to(self, dtype: torch.dtype) -> Lstm:
        """The same LSTM in another number type."""
        layers = tuple(tuple(_cast(direction, dtype) for direction in layer) for layer in self.layers)
        ends: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value.to(dtype) for name in ("W_E", "W_U", "b_U")
        }
        window = None if self.window is None else replace(self.window, weight=self.window.weight.to(dtype))
        return replace(self, layers=layers, window=window, **ends)


def _cast(layer: LstmLayer, dtype: torch.dtype) -> LstmLayer:
    W_r = None if layer.W_r is None else layer.W_r.to(dtype)
    return replace(layer, W_x=layer.W_x.to(dtype), W_h=layer.W_h.to(dtype), b=layer.b.to(dtype), W_r=W_r)
