"""The null that decides: copies of a model whose every weight matrix has its entries permuted.

Each matrix keeps its numbers and loses its structure; gains and biases (vectors) stay. A copy is built for
each draw and dropped again, one at a time; the caller's model, its module and its tensors are only read.
Models that came as a bridge have no module of their own left to copy, and so no such null.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from mechview.models.arrays import ArrayWeights
from mechview.models.load import Model, wrap
from mechview.models.reader import NamedWeights
from mechview.recurrent.weights import Lstm, LstmLayer

Record = TypeVar("Record")


def permuted_models(model: Model, copies: int, generator: torch.Generator) -> Iterator[Model]:
    """Permuted copies of a transformer, made one after the other; none of a model without a module."""
    if model.source.kind == "bridge":
        return
    for _ in range(copies):
        if isinstance(model.weights, ArrayWeights):
            yield replace(model, weights=permuted_arrays(model.weights, generator))
        elif isinstance(model.weights, NamedWeights):
            yield wrap(permuted_module(model.module, generator), model.tokenizer, name=model.name)


@torch.no_grad()
def permuted_module(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """A deep copy with permuted matrices; tied ones stay tied."""
    duplicate = copy.deepcopy(module)
    for parameter in duplicate.parameters():
        if parameter.ndim > 1:
            parameter.data = permuted(parameter.data, generator)
    return duplicate


def permuted(matrix: Tensor, generator: torch.Generator) -> Tensor:
    """The same entries in another order."""
    order = torch.randperm(matrix.numel(), generator=generator).to(matrix.device)
    return matrix.flatten()[order].view_as(matrix)


def permuted_arrays(weights: ArrayWeights, generator: torch.Generator) -> ArrayWeights:
    """A hand-made model with permuted matrices; a tied unembedding stays tied."""
    attentions = tuple(_record(one, ("W_Q", "W_K", "W_V", "W_O"), generator) for one in weights.attentions)
    mlps = tuple(_record(one, ("W_in", "W_gate", "W_out"), generator) for one in weights.mlps)
    ends = _record(weights.end_weights, ("W_E", "W_pos", "W_U"), generator)
    if weights.shape.tied:
        ends = replace(ends, W_U=ends.W_E.T)
    return replace(weights, attentions=attentions, mlps=mlps, end_weights=ends)


def _record(one: Record, names: tuple[str, ...], generator: torch.Generator) -> Record:
    found = {name: getattr(one, name) for name in names if getattr(one, name) is not None}
    changed = {name: permuted(value, generator) for name, value in found.items()}
    return replace(one, **changed)  # type: ignore[type-var]


def permuted_lstms(model: Lstm, copies: int, generator: torch.Generator) -> Iterator[Lstm]:
    """Permuted copies of an LSTM; each gate's matrices are permuted by themselves, biases stay."""
    for _ in range(copies):
        layers = tuple(tuple(_layer(one, generator) for one in layer) for layer in model.layers)
        W_E = None if model.W_E is None else permuted(model.W_E, generator)
        tied = model.W_E is not None and model.W_U is not None and model.W_U.data_ptr() == model.W_E.data_ptr()
        W_U = None if model.W_U is None else W_E.mT if tied and W_E is not None else permuted(model.W_U, generator)
        yield replace(model, layers=layers, W_E=W_E, W_U=W_U)


def _layer(layer: LstmLayer, generator: torch.Generator) -> LstmLayer:
    W_x = torch.stack([permuted(gate, generator) for gate in layer.W_x])
    W_h = torch.stack([permuted(gate, generator) for gate in layer.W_h])
    return replace(layer, W_x=W_x, W_h=W_h, W_r=None if layer.W_r is None else permuted(layer.W_r, generator))
