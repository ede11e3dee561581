"""Directions of the stream by name: from a file, a head's message or pattern, a neuron, two sets of prompts.

    probe.npy · probe.json · probe.pt · probe.safetensors:key · sae.safetensors:W_dec[123] · scores.npz:key
    L5H1.message.u0 (what it reads most), .v0 (what it writes) · L5H1.pattern.u0 (queries), .v0 (keys)
    L5.n12.in, L5.n12.gate, L5.n12.out

Singular vectors have no sign of their own: theirs is the decomposition's. Read sides are folded through the
norm before them. A direction is read from the raw stream, or behind the final norm (as an unembedding is):
then the norm is frozen at its own scale at each position, its gain and centring are folded into the direction,
and its bias is a row. Files are data only: pickles are read with `weights_only`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import head_factors
from mechview.models.load import Model
from mechview.models.norms import apply_norm, norm_scale
from mechview.models.reader import check_layer
from mechview.models.trace import Trace
from mechview.models.tracing import Bos, Prompt, trace
from mechview.models.weights import HasWeights, ModelWeights, Stack, weights_of
from mechview.residual.grains import Grain, split_of
from mechview.residual.places import checked_position
from mechview.residual.readout import Direction, fold_direction
from mechview.residual.shares import Shares, along

HEAD = re.compile(r"(E\.|X\.)?L(\d+)H(\d+)\.(message|pattern)\.([uv])(\d+)")
NEURON = re.compile(r"(E\.)?L(\d+)\.n(\d+)\.(in|gate|out)")
FILE = re.compile(r"(?P<path>.+?\.(?:npy|npz|safetensors|pt|pth|bin|json))(?::(?P<key>[^\[\]]+))?(?:\[(?P<row>\d+)\])?")
STACKS: dict[str | None, Stack | None] = {None: None, "E.": "encoder", "X.": "cross"}


@dataclass(frozen=True)
class NamedDirection:
    """A vector of the stream; `origin` says in words what it is."""

    name: str
    vector: Float[Tensor, "d_model"]
    origin: str


def named_direction(name: str, weights: ModelWeights | HasWeights | None = None) -> NamedDirection:
    """The direction that a name means; heads and neurons need the weights they belong to.

    Raises:
        UsageError: no such form, file, key, row, head or neuron, or numbers that are no single vector.
    """
    if (match := HEAD.fullmatch(name)) is not None:
        return _of_head(name, match, _needed(name, weights))
    if (match := NEURON.fullmatch(name)) is not None:
        return _of_neuron(name, match, _needed(name, weights))
    if (match := FILE.fullmatch(name)) is not None:
        return _of_file(name, match)
    raise UsageError(
        f"{name!r} is no direction: give a file (.npy, .npz, .safetensors, .pt, .json, with :key and [row]), "
        "L5H1.message.u0, L5H1.pattern.v0, or L5.n12.out"
    )


def mean_direction(
    model: Model, a: Sequence[Prompt], b: Sequence[Prompt], *, layer: int, point: str = "post", position: int = -1,
    bos: Bos = "auto",
) -> NamedDirection:  # fmt: skip
    """Mean stream of the prompts b minus that of the prompts a, at one position of each (difference of means).

    Raises:
        UsageError: an empty set, or a place or position that does not exist.
    """
    if not a or not b or isinstance(a, str) or isinstance(b, str):
        raise UsageError("a difference of means needs two lists of at least one prompt each")
    if point not in ("pre", "mid", "post"):
        raise UsageError(f"point={point!r} is not a place of a layer: use pre, mid or post")
    means = []
    for prompts in (a, b):
        total = torch.zeros(model.shape.d_model, dtype=torch.float64)
        for prompt in prompts:
            stream = trace(model, prompt, bos=bos).stream(layer, point)  # type: ignore[arg-type]
            total += stream[checked_position(position, len(stream))].double().cpu()
        means.append(total / len(prompts))
    name = f"means.L{layer}.{point}"
    origin = f"mean stream at L{layer}.{point} of {len(b)} prompts minus that of {len(a)}, position {position}"
    if not bool((means[1] != means[0]).any()):
        raise UsageError("the two lists have the same mean: their difference is no direction")
    return NamedDirection(name, means[1] - means[0], origin)


def shares_along(
    trace: Trace,
    direction: NamedDirection,
    *,
    position: int | Any = -1,
    by: Grain = "head",
    read: str = "stream",
    neurons: int | Any = None,
) -> Shares:
    """Shares of every component along a named direction, summing to the model's own value of it.

    Args:
        read: `stream` dots the raw final stream; `final norm` what the final norm makes of it. `total` is computed
            from the model's own stream, not from the rows.

    Raises:
        UsageError: no such position or reading, or a vector of another width.
    """
    goal, own = reading(trace, direction, read)
    position = checked_position(position, len(own))
    split = split_of(by, neurons)
    names, values = along(trace, goal, split)
    column, total, folded = values[:, position], float(own[position]), read == "final norm"
    return Shares(
        components=tuple(names), values=column, total=total,
        error=abs(float(column.sum()) - total) / max(abs(total), float(column.abs().max()), 1e-30),
        direction=goal.name, position=position, by=by, neurons=split.neurons, freeze="own" if folded else "none", fold=folded,
        model=trace.model, revision=trace.revision,
    )  # fmt: skip


def reading(trace: Trace, direction: NamedDirection, read: str) -> tuple[Direction, Float[Tensor, "pos"]]:
    """The direction at every position, and the model's own value of it."""
    stream, norm = trace.stream_final.double(), trace.weights.ends().final_norm
    vector = direction.vector.double().to(stream.device)
    if vector.shape != stream.shape[-1:]:
        raise UsageError(f"{direction.name} has {tuple(vector.shape)} numbers; the stream has {stream.shape[-1]}")
    if read == "stream":
        name = f"{direction.name} ({direction.origin}), read before the final norm"
        return Direction(name, vector.expand_as(stream), {}), stream @ vector
    if read != "final norm":
        raise UsageError(f"read={read!r} is not a reading: use stream, or final norm")
    name = f"{direction.name} ({direction.origin}), read behind the final norm, frozen and folded"
    rows = {} if norm.bias is None else {"final_norm_bias": float(norm.bias.double() @ vector)}
    vectors = fold_direction(vector, norm) / norm_scale(stream, norm)
    return Direction(name, vectors, rows), apply_norm(stream, norm) @ vector


def _needed(name: str, weights: ModelWeights | HasWeights | None) -> ModelWeights:
    if weights is None:
        raise UsageError(f"{name} belongs to a model: give its weights")
    return weights_of(weights)


def _of_head(name: str, match: re.Match[str], weights: ModelWeights) -> NamedDirection:
    side, which, number = match[4], match[5], int(match[6])
    factors = head_factors(weights, layer=int(match[2]), head=int(match[3]), stack=STACKS[match[1]] or "decoder")
    at = 0 if factors.needs_offset else None
    low = factors.message if side == "message" else factors.pattern(at)
    U, S, Vh = low.svd()
    if number >= len(S):
        raise UsageError(f"{name} does not exist: {side} of {factors.label} has singular vectors 0 to {len(S) - 1}")
    what = {"messageu": "reads", "messagev": "writes", "patternu": "asks with", "patternv": "is found by"}[side + which]
    origin = (
        f"singular vector {number} of what {factors.label} {what}, singular value {float(S[number]):.4g}, norms folded"
    )
    vector = U[:, number] if which == "u" else Vh[number]
    return NamedDirection(name, vector.double(), origin + (" at offset 0" if at == 0 and side == "pattern" else ""))


def _of_neuron(name: str, match: re.Match[str], weights: ModelWeights) -> NamedDirection:
    layer, number, side = int(match[2]), int(match[3]), match[4]
    stack = check_layer(weights.shape, layer, STACKS[match[1]])
    mlp = weights.mlp(layer, stack)
    if mlp.router is not None:
        raise UsageError(f"{name}: layer {layer} is a mixture of experts, whose neurons are not numbered through")
    matrix = {"in": mlp.W_in, "gate": mlp.W_gate, "out": mlp.W_out.mT}[side]
    if matrix is None:
        raise UsageError(f"{name} does not exist: the MLP of layer {layer} has no gate")
    if number >= matrix.shape[1]:
        raise UsageError(f"{name} does not exist: layer {layer} has neurons 0 to {matrix.shape[1] - 1}")
    vector = matrix[:, number].double()
    if side == "out":
        gain = mlp.post_norm.gain
        written = (vector if gain is None else vector * gain.double()) * mlp.multiplier
        return NamedDirection(name, written, f"what neuron {number} of layer {layer} writes for an activation of 1")
    origin = f"what neuron {number} of layer {layer} reads ({side}), norm folded"
    return NamedDirection(name, fold_direction(vector, mlp.norm), origin)


def _of_file(name: str, match: re.Match[str]) -> NamedDirection:
    path, key, row = Path(match["path"]).expanduser(), match["key"], match["row"]
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        held = READERS[path.suffix](path)
    except Exception as error:  # every format fails in ways of its own
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split()[:20])}") from None
    array = _entry(held, key, path)
    if row is not None:
        if array.ndim != 2 or int(row) >= len(array):
            raise UsageError(f"{name}: row {row} does not exist in numbers of shape {list(array.shape)}")
        array = array[int(row)]
    array = array.squeeze()
    if array.ndim != 1:
        raise UsageError(f"{name} has shape {list(array.shape)}, not one vector; choose a row: {name}[0]")
    if not torch.isfinite(array).all() or not array.any():
        raise UsageError(f"{name} holds NaN, infinity or nothing but zeros: it is no direction")
    where = path.name + (f", {key}" if key else "") + ("" if row is None else f", row {row}")
    return NamedDirection(name, array, f"from {where}")


def _entry(held: Any, key: str | None, path: Path) -> Tensor:
    if isinstance(held, dict):
        if key is None and len(held) == 1:
            key = next(iter(held))
        if key not in held:
            names = ", ".join(map(str, list(held)[:8]))
            raise UsageError(f"{path} holds {names}: say which, {path}:{next(iter(held), 'key')}")
        held = held[key]
    elif key is not None:
        raise UsageError(f"{path} holds one array and no names: leave out :{key}")
    try:
        return torch.as_tensor(np.asarray(held) if isinstance(held, list) else held).double()
    except (TypeError, ValueError):
        raise UsageError(f"{path} holds no numbers there") from None


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _pickle(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": lambda path: np.load(path, allow_pickle=False),
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".safetensors": _safetensors,
    ".pt": _pickle,
    ".pth": _pickle,
    ".bin": _pickle,
}  # fmt: skip
