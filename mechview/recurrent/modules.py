"""An LSTM from what PyTorch holds: `nn.LSTM`, stacks of `nn.LSTMCell`, modules around them, plain state dicts.

Everything needed is in the names and shapes of the tensors: layers (`_l0`), directions (`_reverse`),
projections (`weight_hr`), cells (`cells.0.weight_ih`); dropout and `batch_first` change nothing here. What
surrounds the recurrence is found by shape: the one table as wide as the first layer's input is the
embedding, the one matrix that reads the last layer is the read-out, and without one the read-out is tied
to the embedding where their widths agree. Tensors are copied: the caller's stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from mechview.errors import ModelError
from mechview.recurrent.weights import Lstm, LstmLayer

NAME = re.compile(
    r"(?P<place>(?:.*\.)?)(?P<part>weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)"
    r"(?:_l(?P<layer>\d+))?(?P<reverse>_reverse)?"
)
EMBEDDINGS = re.compile(r"emb|wte|encoder|lookup", re.IGNORECASE)
Parts = dict[tuple[Any, ...], dict[str, Tensor]]


def wrap_lstm(module: Any, tokenizer: Any | None = None, *, name: str | None = None) -> Lstm:
    """An LSTM from a live module (bare, of cells, or a language model around one) or a state dict.

    Args:
        module: an `nn.Module`, or a mapping of names to tensors.

    Raises:
        ModelError: no LSTM in it, more than one, a GRU or plain RNN, or tensors that contradict each other.
    """
    state = module.state_dict() if isinstance(module, nn.Module) else module
    if not isinstance(state, Mapping):
        raise ModelError(f"{type(module).__name__} is neither a module nor a state dict: there is no LSTM in it")
    kind = type(module).__name__ if isinstance(module, nn.Module) else "state dict"
    return from_state(state, name or kind, tokenizer)


def from_state(state: Mapping[str, Tensor], name: str, tokenizer: Any | None = None, **about: Any) -> Lstm:
    """The LSTM of a state dict; see the module's text for how its parts are told apart."""
    tensors = {key: value.detach().clone() for key, value in state.items() if isinstance(value, Tensor)}
    check_numbers(tensors)
    layers = stacked(tensors)
    rest = {key: value for key, value in tensors.items() if not NAME.fullmatch(key)}
    width = sum(one.width for one in layers[-1])
    W_E = embedding(rest, layers[0][0].W_x.shape[1])
    W_U, b_U = readout(rest, width, W_E)
    return Lstm(name=name, layers=layers, W_E=W_E, W_U=W_U, b_U=b_U, tokenizer=tokenizer, **about)


def check_numbers(tensors: Mapping[str, Tensor]) -> None:
    for key, value in tensors.items():
        if value.is_meta:
            raise ModelError(f"{key} has no values: the module was built without its weights")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise ModelError(f"{key} holds values that are NaN or infinite; a forward pass would spread them")


def stacked(tensors: Mapping[str, Tensor]) -> tuple[tuple[LstmLayer, ...], ...]:
    """The layers in order, each with its one or two directions."""
    parts: Parts = {}
    for key, value in tensors.items():
        if found := NAME.fullmatch(key):
            where = (found["place"], int(found["layer"] or 0), bool(found["reverse"]))
            parts.setdefault(where, {})[found["part"]] = value
    if not parts:
        raise ModelError("there is no LSTM here: no weight_ih and weight_hh")
    forward = sorted((where for where in parts if not where[2]), key=_order)
    layers = tuple(
        tuple(layer_of(parts[where], where) for where in (one, (*one[:2], True)) if where in parts) for one in forward
    )
    check_chain(layers)
    return layers


def _order(where: tuple[Any, ...]) -> list[Any]:
    """Names in the order a reader expects: `cells.10` after `cells.9`."""
    return [[int(bit) if bit.isdigit() else -1, bit] for bit in re.split(r"(\d+)", where[0])] + [[where[1], ""]]


def layer_of(parts: Mapping[str, Tensor], where: tuple[Any, ...]) -> LstmLayer:
    place = f"{where[0]}layer {where[1]}"
    missing = {"weight_ih", "weight_hh"} - set(parts)
    if missing:
        raise ModelError(f"{place} has no {min(missing)}")
    w_x, w_h, w_r = parts["weight_ih"], parts["weight_hh"], parts.get("weight_hr")
    rows, width = w_h.shape
    cells = width if w_r is None else w_r.shape[1]
    if rows != 4 * cells or len(w_x) != rows:
        kind = {3: "a GRU", 1: "a plain recurrent network"}.get(rows // cells if cells and rows % cells == 0 else 0)
        reason = (
            f"it is {kind}, not an LSTM" if kind else f"weight_hh is {list(w_h.shape)}, weight_ih {list(w_x.shape)}"
        )
        raise ModelError(f"{place} does not have the four gates of an LSTM: {reason}")
    biases = [parts[part] for part in ("bias_ih", "bias_hh") if part in parts]
    if any(bias.shape != (rows,) for bias in biases) or (w_r is not None and w_r.shape[0] != width):
        raise ModelError(f"{place} has a bias or projection that does not fit its {cells} cells")
    return LstmLayer(
        W_x=w_x.view(4, cells, -1).mT,
        W_h=w_h.view(4, cells, width).mT,
        b=sum(biases, torch.zeros(rows, dtype=w_x.dtype)).view(4, cells),
        W_r=None if w_r is None else w_r.mT,
        reverse=where[2],
    )


def check_chain(layers: tuple[tuple[LstmLayer, ...], ...]) -> None:
    """Each layer must read what the one below it gives."""
    for number, (below, above) in enumerate(pairwise(layers), 1):
        given = sum(one.width for one in below)
        if any(one.W_x.shape[1] != given for one in above):
            raise ModelError(
                f"layer {number} reads {above[0].W_x.shape[1]} numbers and the layer below gives {given}: "
                "these are not the layers of one stack"
            )


def embedding(rest: Mapping[str, Tensor], d_in: int) -> Tensor | None:
    """The table that the first layer's input is looked up in, if there is one."""
    wide = [key for key, value in rest.items() if value.ndim == 2 and value.shape[1] == d_in]
    named = [key for key in wide if EMBEDDINGS.search(key)]
    chosen = named or [key for key in wide if len(wide) == 1 and len(rest) == 1]
    if len(chosen) > 1:
        raise ModelError(f"{chosen[0]} and {chosen[1]} may both be the embedding: give the LSTM alone")
    return rest[chosen[0]] if chosen else None


def readout(rest: Mapping[str, Tensor], width: int, W_E: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """`(W_U, b_U)`: the matrix that reads the last layer, or the embedding itself."""
    found = [key for key, v in rest.items() if v.ndim == 2 and v.shape[1] == width and v is not W_E]
    if len(found) > 1:
        raise ModelError(f"{found[0]} and {found[1]} may both read the last layer: give the LSTM alone")
    if found:
        bias = rest.get(f"{found[0].removesuffix('weight')}bias")
        return rest[found[0]].mT, bias
    return (None, None) if W_E is None or W_E.shape[1] != width else (W_E.mT, None)
