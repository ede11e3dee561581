"""Tiny random models of every supported family, built by the original library from its own configuration.

One-dimensional parameters are perturbed and matrices drawn anew, so that biases, norm gains, caps and
position terms really show: with the library's own initialisation patterns are flat and most gains are 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

VOCAB, LENGTH = 100, 48


@dataclass(frozen=True)
class Family:
    config: str
    model: str
    settings: dict[str, Any]

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
        torch.manual_seed(seed)
        config = getattr(hf, self.config)(vocab_size=VOCAB, attn_implementation="eager", **self.settings)
        return perturb(getattr(hf, self.model)(config).eval().to(dtype), seed)


def perturb(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            if parameter.ndim == 1:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(0.15 * noise)
    return module


LLAMA = dict(
    hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
    max_position_embeddings=LENGTH, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
GPT = dict(n_embd=48, n_layer=2, n_head=4, n_positions=LENGTH, bos_token_id=1, eos_token_id=2)
NEO = dict(
    hidden_size=48, num_layers=2, num_heads=4, max_position_embeddings=LENGTH, bos_token_id=1, eos_token_id=2,
    attention_types=[[["global", "local"], 1]], window_size=5,
)  # fmt: skip
BERT = dict(
    hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80,
    max_position_embeddings=LENGTH, type_vocab_size=2,
)  # fmt: skip
NEOX = {**LLAMA, "num_attention_heads": 4}
NEOX.pop("num_key_value_heads")


def llama(**settings: Any) -> Family:
    return Family("LlamaConfig", "LlamaForCausalLM", {**LLAMA, **settings})


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **settings}}


FAMILIES: dict[str, Family] = {
    "gpt2": Family("GPT2Config", "GPT2LMHeadModel", GPT),
    "gpt_neo": Family("GPTNeoConfig", "GPTNeoForCausalLM", NEO),
    "gptj": Family("GPTJConfig", "GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "gpt_neox": Family(
        "GPTNeoXConfig", "GPTNeoXForCausalLM",
        {**NEOX, **rope("default", partial_rotary_factor=0.5)},
    ),
    "gpt_neox_sequential": Family("GPTNeoXConfig", "GPTNeoXForCausalLM", {
        **NEOX, "use_parallel_residual": False, **rope("default", partial_rotary_factor=1.0)}),
    "opt": Family(
        "OPTConfig", "OPTForCausalLM",
        dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, ffn_dim=80, word_embed_proj_dim=48,
             max_position_embeddings=LENGTH, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    ),
    "bloom": Family("BloomConfig", "BloomForCausalLM", dict(hidden_size=48, n_layer=2, n_head=4)),
    "falcon": Family(
        "FalconConfig", "FalconForCausalLM",
        dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, multi_query=True, parallel_attn=True,
             new_decoder_architecture=False, bos_token_id=1, eos_token_id=2),
    ),
    "falcon_grouped": Family(
        "FalconConfig", "FalconForCausalLM",
        dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
             new_decoder_architecture=True, bos_token_id=1, eos_token_id=2),
    ),
    "falcon_alibi": Family(
        "FalconConfig", "FalconForCausalLM",
        dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, multi_query=False, alibi=True, bias=True,
             parallel_attn=False, new_decoder_architecture=False, bos_token_id=1, eos_token_id=2),
    ),
    "phi": Family("PhiConfig", "PhiForCausalLM", {**NEOX, **rope("default", partial_rotary_factor=0.5)}),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", LLAMA),
    "llama": llama(),
    "llama_bias_wide": llama(attention_bias=True, mlp_bias=True, head_dim=10),
    "llama_linear": llama(**rope("linear", factor=2.0)),
    "llama_dynamic": llama(**rope("dynamic", factor=2.0)),
    "llama_yarn": llama(**rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama3": llama(**rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=16)),
    "mistral": Family("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM", LLAMA),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", {**LLAMA, "head_dim": 10}),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", {
        **LLAMA, "head_dim": 10, "query_pre_attn_scalar": 20, "sliding_window": 5,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": Family("Gemma3TextConfig", "Gemma3ForCausalLM", {
        **LLAMA, "head_dim": 10, "query_pre_attn_scalar": 20, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"]}),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM", LLAMA),
    "mixtral": Family("MixtralConfig", "MixtralForCausalLM", {**LLAMA, "num_local_experts": 4}),
    "gpt_oss": Family("GptOssConfig", "GptOssForCausalLM", {
        **LLAMA, "head_dim": 8, "sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"], **rope(
            "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, truncate=False)}),
    "granite": Family("GraniteConfig", "GraniteForCausalLM", {
        **LLAMA, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2,
        "logits_scaling": 2.0}),
    "cohere": Family("CohereConfig", "CohereForCausalLM", {**LLAMA, "logit_scale": 0.25}),
    "cohere_qk_norm": Family("CohereConfig", "CohereForCausalLM", {**LLAMA, "logit_scale": 0.25, "use_qk_norm": True}),
    "bert": Family("BertConfig", "BertForMaskedLM", BERT),
    "albert": Family("AlbertConfig", "AlbertForMaskedLM", {**BERT, "embedding_size": 24}),
    "t5": Family("T5Config", "T5ForConditionalGeneration", dict(
        d_model=48, d_kv=10, d_ff=80, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
        relative_attention_max_distance=20, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)),
    "t5_gated_untied": Family("T5Config", "T5ForConditionalGeneration", dict(
        d_model=48, d_kv=10, d_ff=80, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
        relative_attention_max_distance=20, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
}  # fmt: skip

Builder = Callable[[], nn.Module]


def tokens(length: int = 12, seed: int = 3) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()
