"""A copy of a model whose weights are permuted: the same numbers in every matrix, at places drawn by chance.

What a head of such a copy scores is what its size, its norms and the model's own embeddings give without
anything learned inside the blocks: the null of scores. Entries of every matrix inside the blocks are
permuted (fused query, key and value matrices part by part, experts one by one); embeddings, unembedding,
norms and biases stay, so that the copy reads the same inputs and is read out the same way. With `ends` the
embeddings and the unembedding are permuted too (tied ones stay tied): the control N4 of SPIN.md, for numbers
of whole streams. The copy shares what it does not permute with the model, which is left as it was.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from mechview.models.arrays import ArrayWeights
from mechview.models.intervene import runnable
from mechview.models.layouts import Fused, Layout
from mechview.models.load import Model, wrap
from mechview.models.modules import shared_copy
from mechview.models.native import stack_layout, stack_names
from mechview.models.reader import NamedWeights, block_path, split_fused
from mechview.models.weights import EndWeights

MATRICES = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_out", "W_gate", "W_E", "W_pos", "W_U")


def permuted_copy(model: Model, generator: torch.Generator, *, ends: bool = False) -> Model:
    """The model with the entries of every matrix inside its blocks permuted.

    Args:
        ends: permute every matrix outside the blocks as well.

    Raises:
        UnsupportedError: the model cannot be run, or lives inside a bridge.
    """
    module = runnable(model)
    if isinstance(model.weights, ArrayWeights):
        weights = model.weights
        attentions = tuple(_record(layer, generator) for layer in weights.attentions)
        mlps = tuple(_record(layer, generator) for layer in weights.mlps)
        outside = _ends(weights, generator) if ends else weights.end_weights
        return replace(model, weights=replace(weights, attentions=attentions, mlps=mlps, end_weights=outside))
    copy = shared_copy(module)
    permute_matrices(copy, model.weights, generator, ends)  # type: ignore[arg-type] # runnable refused every other kind
    return wrap(copy, model.tokenizer, name=model.name)


@torch.no_grad()
def permute_matrices(module: nn.Module, weights: NamedWeights, generator: torch.Generator, ends: bool) -> None:
    """Give every matrix inside a copy's blocks, or every matrix, permuted values; tied ones stay tied."""
    blocks, fused = _blocks(weights), _fused(weights)
    for path, parameter in module.named_parameters():
        if parameter.ndim < 2 or not (ends or path.startswith(blocks)):
            continue
        parts = fused.get(path)
        value = permuted(parameter, generator) if parts is None else _by_parts(parameter, parts, weights, generator)
        parameter.data = value  # another tensor: what the original holds is not written to


def permuted(W: Tensor, generator: torch.Generator) -> Tensor:
    """Entries of each matrix (the last two axes; heads of a layer together) at random places."""
    if W.ndim > 2 and W.shape[0] > 1:
        return torch.stack([permuted(part, generator) for part in W])
    order = torch.randperm(W.numel(), generator=generator).to(W.device)
    return W.detach().reshape(-1)[order].reshape(W.shape)


def _ends(weights: ArrayWeights, generator: torch.Generator) -> EndWeights:
    """Embeddings and unembedding of plain arrays permuted; a tied unembedding stays tied."""
    ends: EndWeights = _record(weights.end_weights, generator)
    return replace(ends, W_U=ends.W_E.mT) if weights.shape.tied else ends


def _record(record: Any, generator: torch.Generator) -> Any:
    """Plain arrays with their matrices permuted, all heads of a matrix together."""
    found = {field.name: getattr(record, field.name) for field in fields(record) if field.name in MATRICES}
    return replace(
        record,
        **{
            name: permuted(W.reshape(1, -1), generator).reshape(W.shape)
            for name, W in found.items()
            if W is not None and W.numel()
        },
    )


def _by_parts(W: Tensor, fused: Fused, weights: NamedWeights, generator: torch.Generator) -> Tensor:
    """Queries, keys and values of one matrix permuted among themselves."""
    place = torch.arange(W.numel(), dtype=torch.float64).reshape(W.shape)
    turned = place if weights.layout.linear == "in out" else place.mT
    flat = W.detach().reshape(-1)
    made = flat.clone()
    for part in split_fused(turned, fused, weights.shape):
        at = part.reshape(-1).long().to(W.device)
        made[at] = flat[at[torch.randperm(len(at), generator=generator).to(W.device)]]
    return made.reshape(W.shape)


def _blocks(weights: NamedWeights) -> tuple[str, ...]:
    """Beginnings of the paths of everything inside a block, with and without the base of the full model."""
    found: set[str] = set()
    for stack in weights.shape.stacks:
        layout = stack_layout(weights.layout, stack)
        for layer in range(weights.shape.layers(stack)):
            found |= _spellings(block_path(weights.config, layout, weights.shape, layer), weights.layout)
    return tuple(sorted(found))


def _fused(weights: NamedWeights) -> dict[str, Fused]:
    found: dict[str, Fused] = {}
    for stack in weights.shape.stacks:
        layout, names = stack_layout(weights.layout, stack), stack_names(weights.layout, stack)
        if isinstance(names.query, Fused):
            for layer in range(weights.shape.layers(stack)):
                path = f"{block_path(weights.config, layout, weights.shape, layer)}{names.query.name}.weight"
                found |= dict.fromkeys(_spellings(path, weights.layout), names.query)
    return found


def _spellings(path: str, layout: Layout) -> set[str]:
    return {path, path.removeprefix(layout.base)}
