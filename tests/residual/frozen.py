"""An independent way to the direct path: the original module with everything but one path held still.

Norms keep the scale they had, every attention and MLP output is the one recorded, and one component's
write is added `t` times more. The output is then affine in `t`, and autograd gives the direct effect.
"""

from __future__ import annotations

import copy

import torch
from torch import nn


class FrozenNorm(nn.Module):
    """A norm whose scale is the one it had on the recorded input."""

    def __init__(self, norm: nn.Module, seen: torch.Tensor, gain_offset: float):
        super().__init__()
        self.centre = isinstance(norm, nn.LayerNorm) or "LayerNorm" in type(norm).__name__
        self.weight, self.bias = norm.weight, getattr(norm, "bias", None)
        self.offset = gain_offset
        eps = next(getattr(norm, n) for n in ("eps", "variance_epsilon") if hasattr(norm, n))
        x = seen - seen.mean(-1, keepdim=True) if self.centre else seen
        self.scale = (x.square().mean(-1, keepdim=True) + eps).sqrt()

    def forward(self, x: torch.Tensor, *_: object) -> torch.Tensor:
        x = x - x.mean(-1, keepdim=True) if self.centre else x
        y = x / self.scale * (self.weight + self.offset)
        return y if self.bias is None else y + self.bias


def record(module: nn.Module, ids: torch.Tensor, paths: list[str]) -> dict[str, dict[str, torch.Tensor]]:
    seen: dict[str, dict[str, torch.Tensor]] = {}

    def listener(path):
        def hook(_, args, kwargs, output):
            first = args[0] if args else kwargs.get("hidden_states")
            seen[path] = {"in": first.detach(), "out": (output[0] if isinstance(output, tuple) else output).detach()}

        return hook

    handles = [module.get_submodule(p).register_forward_hook(listener(p), with_kwargs=True) for p in paths]
    with torch.no_grad():
        module(ids[None])
    for handle in handles:
        handle.remove()
    return seen


def direct_effect(
    module: nn.Module, ids: torch.Tensor, site: str, write: torch.Tensor, norms: list[str], writers: list[str],
    gain_offset: float, readout,
) -> torch.Tensor:  # fmt: skip
    """d(readout)/dt when `t * write` is added to the output of the module at `site`."""
    seen = record(module, ids, norms + writers)
    frozen = copy.deepcopy(module)
    for path in norms:
        parent, _, name = path.rpartition(".")
        setattr(
            frozen.get_submodule(parent), name, FrozenNorm(module.get_submodule(path), seen[path]["in"], gain_offset)
        )
    t = torch.zeros((), dtype=write.dtype, requires_grad=True)

    def holding(path):
        def hook(_, __, output):
            held = seen[path]["out"] + (t * write if path == site else 0)
            return (held, *output[1:]) if isinstance(output, tuple) else held

        return hook

    for path in writers:
        frozen.get_submodule(path).register_forward_hook(holding(path))
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    value = readout(frozen(ids[None], output_hidden_states=True))
    return torch.autograd.grad(value, t)[0]
