"""Reading an MLP or a mixture of experts into `MlpWeights`.

`gated` MLPs compute `(act(x W_gate) * (x W_in)) W_out`. gpt-oss clamps and shifts its gate; its
activation is named so that nobody mistakes it for a plain one.
"""

from __future__ import annotations

from torch import Tensor

from mechview.models.shape import Config
from mechview.models.tensors import NamedTensors
from mechview.models.weights import MlpWeights, Stack

Inward = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # W_in, W_gate, b_in, b_gate


def read_mlp(tensors: NamedTensors, block: str, layer: int, stack: Stack) -> MlpWeights:
    names, config = tensors.layout.mlp, tensors.config
    W_in, W_gate, b_in, b_gate = _inward(tensors, block)
    down = block + names.down
    return MlpWeights(
        layer=layer,
        stack=stack,
        W_in=W_in,
        W_gate=W_gate,
        W_out=_outward(tensors, down),
        b_in=b_in,
        b_gate=b_gate,
        b_out=tensors.optional(down + ".bias", down + "_bias"),
        activation=activation_name(config),
        norm=tensors.norm(block, names.norm),
        post_norm=tensors.norm(block, names.post_norm),
        stream_norm=tensors.norm(block, names.stream_norm),
        router=tensors.read(f"{block}{names.router}.weight").mT if names.router else None,
        router_bias=tensors.optional(f"{block}{names.router}.bias"),
        experts_per_token=config.num_experts_per_tok if names.router else None,
        multiplier=float(getattr(config, "residual_multiplier", 1.0)),
    )


def activation_name(config: Config) -> str:
    """The activation of the family, by the name the original library gives it."""
    if config.model_type == "gpt_oss":
        return "clamped swiglu (gpt-oss)"
    if config.model_type == "bloom":
        return "gelu_tanh"
    names = ("dense_act_fn", "hidden_activation", "activation_function", "hidden_act", "activation")
    return str(next(getattr(config, name) for name in names if getattr(config, name, None)))


def _inward(tensors: NamedTensors, block: str) -> Inward:
    names = tensors.layout.mlp
    if names.fused_gate is not None:
        return _fused(tensors, block + names.fused_gate)
    up, gate = f"{block}{names.up}", None if names.gate is None else f"{block}{names.gate}"
    if not tensors.has(up + ".weight"):  # T5's gated variant splits wi in two
        up, gate = f"{up}_1", f"{up}_0"
    b_in = tensors.optional(up + ".bias")
    if gate is None:
        return tensors.matrix(up), None, b_in, None
    return tensors.matrix(up), tensors.matrix(gate), b_in, tensors.optional(gate + ".bias")


def _fused(tensors: NamedTensors, name: str) -> Inward:
    kind = tensors.layout.mlp.experts
    W = tensors.read(name if kind != "none" else name + ".weight")
    b = tensors.optional(name + "_bias")
    if kind == "in out interleaved":
        return W[..., 1::2], W[..., ::2], *((None, None) if b is None else (b[..., 1::2], b[..., ::2]))
    gate, up = W.mT.chunk(2, dim=-1)
    return up, gate, None, None


def _outward(tensors: NamedTensors, name: str) -> Tensor:
    kind = tensors.layout.mlp.experts
    if kind == "none":
        return tensors.matrix(name)
    W = tensors.read(name)
    return W.mT if kind == "out in" else W
