"""The independent side of parity: what an untouched module of the original library does, by hooks of the test.

Nothing of mechview is used here, neither its layout table nor its copies. `attention` adds to the stream
what the module after it is seen to read, less what the block read; parallel blocks have no such point, and
there the attention module's own output is taken. A head's write is the output projection applied to that
head's slice alone, less its bias, then the norm after it at the scale of the whole.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import families


@dataclass(frozen=True)
class Sites:
    """Module paths inside a block. `mid` reads the stream after attention; without it `whole` is attention."""

    block: str
    projection: str
    mid: str | None = None
    whole: str | None = None
    post_norm: str | None = None
    before: str | None = None


GPT2 = Sites("transformer.h.{}", "attn.c_proj", mid="ln_2")
NEOX = Sites("gpt_neox.layers.{}", "attention.dense", whole="attention")
OPT = Sites("model.decoder.layers.{}", "self_attn.out_proj", mid="final_layer_norm")
BLOOM = Sites("transformer.h.{}", "self_attention.dense", mid="post_attention_layernorm")
PARALLEL_FALCON = Sites("transformer.h.{}", "self_attention.dense", whole="self_attention")
LLAMA = Sites("model.layers.{}", "self_attn.o_proj", mid="post_attention_layernorm")
GEMMA = Sites("model.layers.{}", "self_attn.o_proj", "pre_feedforward_layernorm", None, "post_attention_layernorm")
BERT = Sites("bert.encoder.layer.{}", "attention.output.dense", mid="attention.output.LayerNorm")
ALBERT = Sites("albert.encoder.albert_layer_groups.{}.albert_layers.0", "attention.dense", mid="attention.LayerNorm")
SITES = {
    "gpt2": GPT2,
    "gpt_neo": Sites("transformer.h.{}", "attn.attention.out_proj", mid="ln_2"),
    "gptj": Sites("transformer.h.{}", "attn.out_proj", whole="attn"),
    "gpt_neox": NEOX,
    "gpt_neox_sequential": Sites(NEOX.block, NEOX.projection, mid="post_attention_layernorm"),
    "opt": OPT,
    "opt_post": Sites(OPT.block, OPT.projection, mid="self_attn_layer_norm"),
    "bloom": BLOOM,
    "falcon": PARALLEL_FALCON,
    "falcon_biased": BLOOM,
    "phi3": LLAMA,
    "phi": Sites("model.layers.{}", "self_attn.dense", whole="self_attn"),
    "gemma": GEMMA,
    "olmo2": Sites("model.layers.{}", "self_attn.o_proj", "mlp", None, "post_attention_layernorm"),
    "cohere": Sites("model.layers.{}", "self_attn.o_proj", whole="self_attn"),
    "bert": BERT,
    "albert": ALBERT,
}
T5 = {
    "encoder": Sites("encoder.block.{}", "layer.0.SelfAttention.o", mid="layer.1.layer_norm"),
    "decoder": Sites("decoder.block.{}", "layer.0.SelfAttention.o", mid="layer.1.layer_norm"),
    "cross": Sites("decoder.block.{}", "layer.1.EncDecAttention.o", "layer.2.layer_norm", before="layer.1.layer_norm"),
}
PATTERNS = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


@dataclass(frozen=True)
class Layer:
    """One attention layer of the original: stream before and after, pattern, and how heads write."""

    before: Tensor
    after: Tensor | None
    pattern: Tensor
    added: Tensor
    head_writes: Tensor


@dataclass(frozen=True)
class Original:
    logits: Tensor
    layers: dict[tuple[str, int], Layer]


def sites_of(name: str) -> dict[str, Sites]:
    """Paths of a family by stack; the longest table name that the family's name starts with."""
    if name.startswith("t5"):
        return T5
    found = max((key for key in SITES if name.startswith(key)), key=len, default=None)
    stack = "encoder" if name in ("bert", "albert", "albert_two_groups") else "decoder"
    return {stack: SITES[found] if found else LLAMA}


def run(name: str, ids: list[int], decoder_ids: list[int] | None = None, module: nn.Module | None = None) -> Original:
    """One pass of a freshly built module, listened to by this file's own hooks."""
    module = module if module is not None else families.FAMILIES[name].build()
    table = sites_of(name)
    heard = Ears(module)
    for stack, sites in table.items():
        for layer in range(n_layers(module, stack)):
            block = sites.block.format(group_of(module, layer))
            heard.at(block, *(f"{block}.{path}" for path in (sites.projection, sites.mid, sites.whole, sites.before)
                              if path))  # fmt: skip
    keywords = {} if decoder_ids is None else {"decoder_input_ids": torch.tensor([decoder_ids])}
    with torch.no_grad():
        output = module(torch.tensor([ids]), output_attentions=True, **keywords)
        layers = {
            (stack, layer): read(heard, module, sites, stack, layer, output)
            for stack, sites in table.items()
            for layer in range(n_layers(module, stack))
        }
    return Original(output.logits[0], layers)


class Ears:
    """Inputs and outputs of modules, call by call (ALBERT calls one block many times)."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.inputs, self.outputs = module, defaultdict(list), defaultdict(list)
        self.known: set[str] = set()

    def at(self, *paths: str) -> None:
        for path in set(paths) - self.known:
            self.known.add(path)
            part = self.module.get_submodule(path)
            part.register_forward_hook(lambda _, args, kwargs, out, path=path: self.hear(path, args, kwargs, out),
                                       with_kwargs=True)  # fmt: skip

    def hear(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        value = args[0] if args else kwargs["hidden_states"]
        width = value.shape[-1]
        self.inputs[path].append(value.reshape(-1, width).clone())
        first = out[0] if isinstance(out, tuple) else out
        self.outputs[path].append(first.reshape(-1, first.shape[-1]).clone())


def read(heard: Ears, module: nn.Module, sites: Sites, stack: str, layer: int, output: Any) -> Layer:
    block = sites.block.format(group_of(module, layer))
    call = sum(group_of(module, n) == group_of(module, layer) for n in range(layer))
    before = heard.inputs[f"{block}.{sites.before}" if sites.before else block][call]
    if sites.mid is None:
        added = heard.outputs[f"{block}.{sites.whole}"][call]
    else:
        added = heard.inputs[f"{block}.{sites.mid}"][call] - before
    many = output.keys() & PATTERNS.values()
    pattern = output[PATTERNS[stack] if many and "encoder_attentions" in many else "attentions"][layer][0]
    z = heard.inputs[f"{block}.{sites.projection}"][call]
    whole = heard.outputs[f"{block}.{sites.projection}"][call]
    writes = isolated(module.get_submodule(f"{block}.{sites.projection}"), z, len(pattern))
    if sites.post_norm:  # the norm's gain and its scale for the whole write, elementwise
        writes = writes * (module.get_submodule(f"{block}.{sites.post_norm}")(whole) / whole)
    writes = writes * getattr(module.config, "residual_multiplier", 1.0)
    after = None if stack == "decoder" and sites is T5["decoder"] else heard.outputs[block][call]
    return Layer(before, after, pattern, added, writes)


def isolated(projection: nn.Module, z: Tensor, heads: int) -> Tensor:
    """`[head, pos, d_model]`: the projection with every other head's input zeroed, less what zeros give."""
    width = z.shape[-1] // heads
    parts = []
    for head in range(heads):
        alone = torch.zeros_like(z)
        alone[:, head * width : (head + 1) * width] = z[:, head * width : (head + 1) * width]
        parts.append(projection(alone) - projection(torch.zeros_like(z)))
    return torch.stack(parts)


def n_layers(module: nn.Module, stack: str) -> int:
    config = module.config
    return (getattr(config, "num_decoder_layers", None) if stack in ("decoder", "cross") else None) or (
        config.num_hidden_layers
    )


def group_of(module: nn.Module, layer: int) -> int:
    """The block a layer uses: its own, or ALBERT's group."""
    config = module.config
    return layer * config.num_hidden_groups // config.num_hidden_layers if config.model_type == "albert" else layer
