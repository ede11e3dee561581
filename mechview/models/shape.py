"""From a Hugging Face configuration to a `ModelShape`, a layout and the numbers layers need.

Configurations disagree on names and on what is implied; each disagreement is one small function
here, or a row of a table. Nothing is read from weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mechview.errors import ModelError, UnsupportedError
from mechview.models.families import LAYOUTS
from mechview.models.layouts import Layout
from mechview.models.refused import REFUSED, REFUSED_KEYS
from mechview.models.weights import Alibi, ModelShape, Rotary, Stack

Config = Any  # transformers' configuration; untyped on purpose, its fields vary by family


def choose_layout(config: Config) -> Layout:
    """The table row of this configuration.

    Raises:
        UnsupportedError: the architecture is out of reach, with the reason.
    """
    family = str(config.model_type)
    if family in REFUSED:
        raise UnsupportedError(f"{family} is not supported: {REFUSED[family]}")
    for keys, reason in REFUSED_KEYS.items():
        if any(getattr(config, key, None) for key in keys):
            raise UnsupportedError(f"{family} is not supported: {reason}")
    variant = VARIANTS.get(family, lambda _: family)(config)
    if variant not in LAYOUTS:
        known = ", ".join(sorted(n for n in LAYOUTS if not any(n.startswith(f"{other}_") for other in LAYOUTS)))
        raise UnsupportedError(f"{family} is not in mechview's table of families ({known})")
    return LAYOUTS[variant]


def _falcon(config: Config) -> str:
    if config.new_decoder_architecture:
        return "falcon_two_norms" if config.num_ln_in_parallel_attn != 1 else "falcon_one_norm"
    return "falcon_parallel" if config.parallel_attn else "falcon"


def refused_pass(config: Config) -> str | None:
    """Why a forward pass of this configuration would not be the model's, if so; weights can still be read."""
    if config.model_type == "falcon" and config.alibi:
        return (
            "transformers adds Falcon's ALiBi twice under eager attention and once elsewhere, so patterns captured "
            "here would be another model's; its weights can be inspected, its activations not"
        )
    return None


def _phi(config: Config) -> str:
    if getattr(config, "qk_layernorm", False):
        raise UnsupportedError("phi with qk_layernorm is not supported: a biased norm of q and k is not one factor")
    return "phi"


def _albert(config: Config) -> str:
    if config.inner_group_num != 1:
        raise UnsupportedError("albert with inner_group_num other than 1 is not supported: no released model uses it")
    return "albert"


def _opt(config: Config) -> str:
    if not config.do_layer_norm_before:
        return "opt_post"
    return "opt_no_final_norm" if config._remove_final_layer_norm else "opt"


def _bloom(config: Config) -> str:
    if config.apply_residual_connection_post_layernorm:
        raise UnsupportedError("bloom whose blocks add to the norm of the stream is not supported: no stream remains")
    return "bloom"


def _gpt2(config: Config) -> str:
    return "gpt2_scaled" if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights else "gpt2"


VARIANTS: dict[str, Callable[[Config], str]] = {
    "falcon": _falcon,
    "phi": _phi,
    "albert": _albert,
    "opt": _opt,
    "bloom": _bloom,
    "gpt2": _gpt2,
    "bert": lambda c: "bert_decoder" if c.is_decoder else "bert",
    "gpt_neox": lambda c: "gpt_neox" if c.use_parallel_residual else "gpt_neox_sequential",
}


def model_shape(config: Config, layout: Layout) -> ModelShape:
    """Sizes and kinds; a configuration whose numbers contradict each other is refused."""
    heads, d_model = int(config.num_attention_heads), int(config.hidden_size)
    d_head = int(getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or d_model // max(heads, 1))
    kv_heads = _kv_heads(config, heads)
    layers = int(getattr(config, "num_decoder_layers", None) or config.num_hidden_layers)
    shape = ModelShape(
        family=str(config.model_type),
        d_model=d_model,
        d_head=d_head,
        d_mlp=_d_mlp(config, d_model),
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        d_vocab=int(config.vocab_size),
        n_ctx=context_length(config),
        stacks=_stacks(layout),
        norm=layout.norm,
        placement=layout.placement,
        position=_position(config, layout),
        n_encoder_layers=int(config.num_hidden_layers) if layout.encoder else 0,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
    )
    _check(shape)
    norm_eps(config)
    if shape.position == "rotary":
        for layer in range(min(layers, len(getattr(config, "layer_types", None) or [0]))):
            _rotary(config, layout, shape, layer)
    return shape


def _check(shape: ModelShape) -> None:
    for name in ("d_model", "d_head", "n_layers", "n_heads", "n_kv_heads", "d_vocab"):
        if getattr(shape, name) < 1:
            raise ModelError(f"the configuration says {name} = {getattr(shape, name)}; it must be positive")
    if shape.n_heads % shape.n_kv_heads:
        raise ModelError(f"{shape.n_heads} heads cannot share {shape.n_kv_heads} key/value heads evenly")


def _kv_heads(config: Config, heads: int) -> int:
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        return 1 if config.multi_query else heads
    found = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    return int(found or heads)


def _d_mlp(config: Config, d_model: int) -> int:
    names = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size")
    found = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    return int(found or 4 * d_model)


def _stacks(layout: Layout) -> tuple[Stack, ...]:
    if layout.encoder is not None:
        return ("encoder", "decoder", "cross")
    return ("decoder",) if layout.causal else ("encoder",)


def _position(config: Config, layout: Layout) -> str:
    if layout.attention.relative_bias:
        return "relative bias"
    if config.model_type == "bloom" or getattr(config, "alibi", False):
        return "alibi"
    return "learned" if layout.ends.position else "rotary"


def context_length(config: Config) -> int | None:
    """Longest prompt the model was made for; `None` where positions have no end (ALiBi, T5)."""
    if config.model_type in ("bloom", "t5") or getattr(config, "alibi", False):
        return None
    longest = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    stretch = float(rope.get("factor", 1.0)) if rope.get("rope_type") == "dynamic" else 1.0
    return None if longest is None else int(longest * stretch)


def norm_eps(config: Config) -> float:
    names = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps")
    eps = float(next((getattr(config, n) for n in names if getattr(config, n, None) is not None), 1e-5))
    if not 0 <= eps < math.inf:
        raise ModelError(f"the configuration says that norms have eps = {eps}; it must be a small positive number")
    return eps


@dataclass(frozen=True)
class LayerNumbers:
    """What one attention layer takes from the configuration."""

    scale: float
    softcap: float | None
    window: int | None
    rotary: Rotary | None


def layer_numbers(config: Config, layout: Layout, shape: ModelShape, layer: int) -> LayerNumbers:
    return LayerNumbers(
        scale=attention_scale(config, shape, layer),
        softcap=getattr(config, "attn_logit_softcapping", None),
        window=_window(config, layer),
        rotary=_rotary(config, layout, shape, layer) if shape.position == "rotary" else None,
    )


def attention_scale(config: Config, shape: ModelShape, layer: int) -> float:
    family = config.model_type
    if family in ("gpt_neo", "t5"):
        return 1.0
    if family == "granite":
        return float(config.attention_multiplier)
    if family.startswith("gemma"):
        return float(config.query_pre_attn_scalar) ** -0.5
    scale = shape.d_head**-0.5 if getattr(config, "scale_attn_weights", True) else 1.0
    return scale / (layer + 1) if getattr(config, "scale_attn_by_inverse_layer_idx", False) else scale


def _window(config: Config, layer: int) -> int | None:
    if config.model_type == "gpt_neo":
        return int(config.window_size) if config.attention_layers[layer] == "local" else None
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or (kinds is not None and kinds[layer] != "sliding_attention"):
        return None
    return int(window)


def _rotary(config: Config, layout: Layout, shape: ModelShape, layer: int) -> Rotary:
    parameters, layer_type = _rope_parameters(config, layer)
    kind = parameters.get("rope_type", "default")
    share = parameters.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    width = int(getattr(config, "rotary_dim", None) or shape.d_head * share)
    thetas = (parameters.get("rope_theta"), getattr(config, "rope_theta", None), 10_000.0)
    base = float(next(theta for theta in thetas if theta is not None))

    if kind != "default" and kind not in rope_kinds():
        raise ModelError(
            f"the configuration says rope_type = {kind!r}, which this version of transformers does not know"
        )
    if not 0 < base < math.inf:
        raise ModelError(f"the configuration says rope_theta = {base:g}; it must be positive")

    @cache
    def frequencies(length: int | None) -> tuple[Tensor, float]:
        if kind == "default":
            return 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width), 1.0
        return _scaled_frequencies(config, kind, layer_type, length)

    return Rotary(width, layout.rotary_interleaved, frequencies, kind, kind in ("dynamic", "longrope"))


def _rope_parameters(config: Config, layer: int) -> tuple[dict[str, Any], str | None]:
    """The rotary parameters of a layer; Gemma-3 keeps one set per kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[layer] in parameters:
        return parameters[kinds[layer]], kinds[layer]
    return parameters, None


def rope_kinds() -> frozenset[str]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return frozenset(ROPE_INIT_FUNCTIONS)


def _scaled_frequencies(config: Config, kind: str, layer_type: str | None, length: int | None) -> tuple[Tensor, float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    keywords = {} if layer_type is None else {"layer_type": layer_type}
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length, **keywords)
    return frequencies, float(factor)


def alibi(config: Config, shape: ModelShape) -> Alibi | None:
    """ALiBi slopes as the original library computes them (head counts need not be powers of two)."""
    if shape.position != "alibi":
        return None
    near = 2 ** (shape.n_heads.bit_length() - 1)
    slopes = [2 ** (-8.0 * (n + 1) / near) for n in range(near)]
    extra = [2 ** (-4.0 * (2 * n + 1) / near) for n in range(shape.n_heads - near)]
    falcon = config.model_type == "falcon"
    return Alibi(torch.tensor(slopes + extra), before_scale=falcon, half=falcon)
