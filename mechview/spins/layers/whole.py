"""Controls that are whole models: every matrix permuted (N4), a fresh initialisation (N5), layers reordered (N6).

N4 keeps every matrix's entries and loses their places; norms and biases stay. N5 draws matrices as GPT-2 is
initialised (normal, sd 0.02), gains one and biases zero, for every family alike. N6 keeps every block and
loses their order. The model given is never changed: the new one is a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mechview.errors import UnsupportedError
from mechview.models.arrays import ArrayWeights
from mechview.models.load import Model, wrap
from mechview.models.permuted import permuted_copy
from mechview.models.reader import NamedWeights

SD = 0.02
Change = Callable[[str, Tensor], Tensor]


def permuted(model: Model, generator: torch.Generator) -> Model:
    """N4: the same model with the entries of each matrix in random order."""
    found = permuted_copy(model, generator, ends=True)
    return replace(found, source=replace(found.source, name=f"{model.name} (permuted)"))


def initial(model: Model, generator: torch.Generator) -> Model:
    """N5: a model of this shape before any training."""
    offset = model.weights.layout.gain_offset if isinstance(model.weights, NamedWeights) else 0.0

    def change(name: str, value: Tensor) -> Tensor:
        if name.rsplit(".", 1)[-1].startswith("b"):
            return torch.zeros_like(value)
        if value.ndim < 2:
            return torch.full_like(value, 1.0 - offset)
        return SD * torch.randn(value.shape, generator=generator).to(value)

    return _changed(model, change, "initial")


def reordered(model: Model, generator: torch.Generator) -> Model:
    """N6: the same blocks in a random order other than their own."""
    count = model.shape.n_layers
    if count < 2:
        raise UnsupportedError("a model of one layer has no other order of layers")
    order = torch.randperm(count, generator=generator).tolist()
    order = order if order != sorted(order) else order[1:] + order[:1]
    if isinstance(model.weights, ArrayWeights):
        w = model.weights
        attentions = tuple(replace(w.attentions[m], layer=n) for n, m in enumerate(order))
        mlps = tuple(replace(w.mlps[m], layer=n) for n, m in enumerate(order))
        return _arrays(model, replace(w, attentions=attentions, mlps=mlps), "reordered")
    if not isinstance(model.weights, NamedWeights):
        raise UnsupportedError("these weights cannot be run: they came without a module")
    block = model.weights.layout.block
    module = copy.deepcopy(model.module)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    moved = dict(state)
    for n, m in enumerate(order):
        here, there = (block.format(layer=k) for k in (n, m))
        names = [name for name in state if name.startswith(here)]
        moved |= {name: state.get(there + name.removeprefix(here), state[name]) for name in names}
    module.load_state_dict(moved)
    return wrap(module, model.tokenizer, name=f"{model.name} (reordered)")


def _changed(model: Model, change: Change, suffix: str) -> Model:
    if isinstance(model.weights, ArrayWeights):
        return _arrays(model, _mapped(model.weights, change, ""), suffix)
    if not isinstance(model.weights, NamedWeights):
        raise UnsupportedError("these weights cannot be run: they came without a module")
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(change(name, parameter.detach().clone()))
    return wrap(module, model.tokenizer, name=f"{model.name} ({suffix})")


def _arrays(model: Model, weights: ArrayWeights, suffix: str) -> Model:
    source = replace(model.source, name=f"{model.name} ({suffix})")
    return replace(model, source=source, weights=weights)


def _mapped(value: Any, change: Change, name: str) -> Any:
    """A record of records with its floating tensors changed."""
    if isinstance(value, Tensor):
        return change(name, value) if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(_mapped(item, change, name) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _mapped(getattr(value, f.name), change, f.name) for f in fields(value)})
    return value
