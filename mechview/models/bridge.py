"""TransformerLens 4: hooks of a live model. The only file that imports transformer_lens.

The bridge is used raw: its compatibility mode rounds through float32, changes weights in place and is
wrong for models with attention sinks. Hook names follow TransformerLens.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from mechview.errors import ModelError
from mechview.models.capture import AttentionCapture, Capture, MlpCapture, Site
from mechview.models.layouts import Layout
from mechview.models.modules import reset_dynamic_rotary
from mechview.models.reader import NamedWeights

MASKED = -1e30  # the bridge marks masked scores with the dtype's minimum in raw mode


def build_bridge(module: nn.Module, config: Any) -> Any:
    """A raw bridge around `module`, which it rewrites: pass a copy."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched here, and lookups would stall
    import logging

    logger = logging.getLogger("transformers")
    level = logger.level
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    bridge = build_bridge_from_module(module, type(module).__name__, hf_config=config)
    logger.setLevel(level)  # importing the bridge silences the whole library
    return bridge.eval()


def check_raw(bridge: Any) -> None:
    """Refuse a bridge whose weights were folded in place."""
    if getattr(bridge, "compatibility_mode", False):
        raise ModelError("this bridge is in compatibility mode: its weights were folded; boot it again without")


@torch.no_grad()
def capture_bridge(bridge: Any, weights: NamedWeights, ids: Tensor) -> Capture:
    """One pass with the hooks that the ledger needs, and no others."""
    reset_dynamic_rotary(bridge)
    layout = weights.layout
    wanted = {f"blocks.{layer}.{name}" for layer in range(weights.shape.n_layers) for name in hook_names(layout)}
    logits, cache = bridge.run_with_cache(ids[None], names_filter=sorted(wanted))
    return capture_of_cache(cache, weights, logits)


def capture_of_cache(cache: Any, weights: NamedWeights, logits: Tensor | None) -> Capture:
    """What a cache of one prompt holds, with or without its batch axis.

    Raises:
        ModelError: a hook that the ledger needs is not in it, or it holds several prompts.
    """
    layout = weights.layout
    wanted = {f"blocks.{layer}.{name}" for layer in range(weights.shape.n_layers) for name in hook_names(layout)}
    missing = sorted(name for name in wanted if name not in cache)
    if missing:
        raise ModelError(f"TransformerLens did not fire {missing[0]} for {weights.shape.family}: nothing is guessed")
    stack = weights.shape.stacks[0]
    attention: dict[Site, AttentionCapture] = {}
    mlp: dict[Site, MlpCapture] = {}
    post: dict[Site, Tensor] = {}
    batched = cache["blocks.0.hook_resid_pre"].ndim == 3
    for layer in range(weights.shape.n_layers):
        hooks = {name: _one(cache[f"blocks.{layer}.{name}"], batched) for name in hook_names(layout)}
        attention[stack, layer] = _attention(hooks)
        mlp[stack, layer] = MlpCapture(hooks[middle_hook(layout)], hooks[layout.bridge_mlp])
        post[stack, layer] = hooks["hook_resid_post"]
    own = None if logits is None else _one(logits, logits.ndim == 3)
    return Capture(attention, mlp, post, own, "TransformerLens bridge")


def _one(values: Tensor, batched: bool) -> Tensor:
    if batched and len(values) != 1:
        raise ModelError(f"the cache holds {len(values)} prompts: give one at a time")
    return values[0] if batched else values


def middle_hook(layout: Layout) -> str:
    """The stream that the MLP adds to: TransformerLens has no name of its own for it in BERT."""
    return {"parallel": "hook_resid_pre", "post": "ln1.hook_out"}.get(layout.placement, "hook_resid_mid")


def hook_names(layout: Layout) -> list[str]:
    names = {
        "hook_resid_pre", "hook_resid_post", middle_hook(layout), layout.bridge_mlp,
        "attn.q.hook_in", "attn.hook_pattern", "attn.hook_z", "attn.o.hook_out",
    }  # fmt: skip
    return sorted(names | ({"attn.hook_attn_scores"} if layout.bridge_scores else set()))


def _attention(hooks: dict[str, Tensor]) -> AttentionCapture:
    scores = hooks.get("attn.hook_attn_scores")
    return AttentionCapture(
        stream=hooks["hook_resid_pre"],
        reads=hooks["attn.q.hook_in"],
        source=hooks["attn.q.hook_in"],
        pattern=hooks["attn.hook_pattern"],
        scores=None if scores is None else scores.masked_fill(scores < MASKED, -torch.inf),
        z=hooks["attn.hook_z"],
        written=hooks["attn.o.hook_out"],
    )
