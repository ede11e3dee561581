"""The null that decides, of an LSTM: copies with permuted weights.

Each matrix keeps its numbers and loses its structure; biases stay, and every gate's matrices are permuted by
themselves. A copy is built for each draw and dropped again, one at a time. Of a transformer see
`mechview.models.permuted`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from mechview.models.permuted import permuted
from mechview.recurrent.weights import Lstm, LstmLayer


def permuted_lstms(model: Lstm, copies: int, generator: torch.Generator) -> Iterator[Lstm]:
    """Permuted copies of an LSTM, made one after the other."""
    for _ in range(copies):
        layers = tuple(tuple(_layer(one, generator) for one in layer) for layer in model.layers)
        W_E = None if model.W_E is None else permuted(model.W_E, generator)
        tied = model.W_E is not None and model.W_U is not None and model.W_U.data_ptr() == model.W_E.data_ptr()
        W_U = None if model.W_U is None else W_E.mT if tied and W_E is not None else permuted(model.W_U, generator)
        yield replace(model, layers=layers, W_E=W_E, W_U=W_U)


def _layer(layer: LstmLayer, generator: torch.Generator) -> LstmLayer:
    W_x, W_h = permuted(layer.W_x, generator), permuted(layer.W_h, generator)
    return replace(layer, W_x=W_x, W_h=W_h, W_r=None if layer.W_r is None else permuted(layer.W_r, generator))
