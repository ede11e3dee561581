"""The MLP opened: hidden activations, neurons and experts, from weights and the captured stream.

An MLP's write is `sum_n a_n W_out[n] + b_out` with `a = act(x W_gate) * (x W_in)` (or `act(x W_in)`).
A mixture adds its chosen experts' writes, weighted by the softmax of their router logits; an expert's
own output bias is part of its write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechview.errors import UnsupportedError
from mechview.models.norms import apply_norm
from mechview.models.weights import MlpWeights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_new": nn.GELU("tanh"),
    "gelu_tanh": nn.GELU("tanh"),
    "gelu_pytorch_tanh": nn.GELU("tanh"),
    "none": torch.clone,
    "identity": torch.clone,
}
OSS, OSS_ALPHA, OSS_LIMIT = "clamped swiglu (gpt-oss)", 1.702, 7.0


@dataclass(frozen=True)
class Routing:
    """Which experts each position uses and with what weight; positions it does not use weigh 0."""

    weights: Float[Tensor, "pos expert"]
    chosen: Int[Tensor, "pos slot"]


def activations(stream: Float[Tensor, "pos d_model"], mlp: MlpWeights) -> Float[Tensor, "pos d_mlp"]:
    """Hidden activations of a dense MLP: what multiplies each row of `W_out`."""
    return hidden(apply_norm(stream, mlp.norm), mlp.W_in, mlp.W_gate, mlp.b_in, mlp.b_gate, mlp.activation)


def hidden(
    x: Tensor, W_in: Tensor, W_gate: Tensor | None, b_in: Tensor | None, b_gate: Tensor | None, activation: str
) -> Float[Tensor, "pos d_mlp"]:
    up = affine(x, W_in, b_in)
    if activation == OSS:
        gate = affine(x, W_gate, b_gate).clamp(max=OSS_LIMIT)
        return (up.clamp(-OSS_LIMIT, OSS_LIMIT) + 1) * gate * torch.sigmoid(OSS_ALPHA * gate)
    if activation not in ACTIVATIONS:
        raise UnsupportedError(f"the activation {activation} is not known; neurons of this model are not split")
    act = ACTIVATIONS[activation]
    return act(up) if W_gate is None else act(affine(x, W_gate, b_gate)) * up


def affine(x: Tensor, W: Tensor | None, b: Tensor | None) -> Tensor:
    if W is None:
        raise UnsupportedError("this activation needs a gate, and the MLP has none")
    y = x @ W.to(x)
    return y if b is None else y + b.to(x)


def routing(x: Float[Tensor, "pos d_model"], mlp: MlpWeights) -> Routing:
    """Weights of a mixture's experts: softmax of the router logits over the chosen ones."""
    logits = affine(x, mlp.router, mlp.router_bias)
    top = logits.topk(mlp.experts_per_token or 1, dim=-1)
    weights = torch.zeros_like(logits).scatter(-1, top.indices, top.values.softmax(-1))
    return Routing(weights, top.indices)


def expert_writes(stream: Float[Tensor, "pos d_model"], mlp: MlpWeights) -> Float[Tensor, "expert pos d_model"]:
    """What each expert adds, zero where it is not chosen; before any post-norm or multiplier."""
    x = apply_norm(stream, mlp.norm)
    weights = routing(x, mlp).weights
    writes = x.new_zeros(weights.shape[1], *x.shape)
    for expert in weights.sum(0).nonzero().flatten().tolist():
        at = weights[:, expert].nonzero().flatten()
        act = hidden(
            x[at], mlp.W_in[expert], _of(mlp.W_gate, expert), _of(mlp.b_in, expert), _of(mlp.b_gate, expert),
            mlp.activation,
        )  # fmt: skip
        written = affine(act, mlp.W_out[expert], _of(mlp.b_out, expert))
        writes[expert, at] = written * weights[at, expert, None]
    return writes


def _of(tensor: Tensor | None, expert: int) -> Tensor | None:
    return None if tensor is None else tensor[expert]
