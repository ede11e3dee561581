"""Tiny random models of every supported family, built by the original library from its own configuration.

One-dimensional parameters are perturbed and matrices drawn anew, so that biases, norm gains, caps and
position terms really show: with the library's own initialisation patterns are flat and most gains are 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

VOCAB, LENGTH = 100, 48
LONG = 24  # longer than every window below


@dataclass(frozen=True)
class Family:
    config: str
    model: str
    settings: dict[str, Any]

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float32, attention: str = "eager") -> nn.Module:
        torch.manual_seed(seed)
        config = getattr(hf, self.config)(
            vocab_size=VOCAB, attn_implementation=attention, experts_implementation="eager", **self.settings
        )
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
OPT = dict(
    hidden_size=48, num_hidden_layers=2, num_attention_heads=4, ffn_dim=80, word_embed_proj_dim=48,
    max_position_embeddings=LENGTH, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
FALCON = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1, eos_token_id=2)
T5 = dict(
    d_model=48, d_kv=10, d_ff=80, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
    relative_attention_max_distance=20, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
)  # fmt: skip


def llama(**settings: Any) -> Family:
    return Family("LlamaConfig", "LlamaForCausalLM", {**LLAMA, **settings})


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **settings}}


LONGROPE = rope(
    "longrope", factor=3.0, original_max_position_embeddings=16,
    short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 2.0, 4.0, 8.0],
)  # fmt: skip

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
    "gpt2_scaled_by_layer": Family("GPT2Config", "GPT2LMHeadModel", {
        **GPT, "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "tie_word_embeddings": False}),
    "opt": Family("OPTConfig", "OPTForCausalLM", OPT),
    "opt_no_final_norm": Family("OPTConfig", "OPTForCausalLM", {**OPT, "_remove_final_layer_norm": True}),
    "opt_plain": Family("OPTConfig", "OPTForCausalLM", {
        **OPT, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    "opt_post": Family("OPTConfig", "OPTForCausalLM", {
        **OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24}),
    "bloom": Family("BloomConfig", "BloomForCausalLM", dict(hidden_size=48, n_layer=2, n_head=4)),
    "bloom_six_heads": Family("BloomConfig", "BloomForCausalLM", dict(hidden_size=48, n_layer=2, n_head=6)),
    "falcon": Family("FalconConfig", "FalconForCausalLM", {**FALCON, "multi_query": True}),
    "falcon_biased": Family("FalconConfig", "FalconForCausalLM", {
        **FALCON, "multi_query": False, "bias": True, "parallel_attn": False}),
    "falcon_grouped": Family("FalconConfig", "FalconForCausalLM", {
        **FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon_one_norm": Family("FalconConfig", "FalconForCausalLM", {
        **FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    "falcon_alibi": Family("FalconConfig", "FalconForCausalLM", {
        **FALCON, "multi_query": False, "alibi": True, "bias": True, "parallel_attn": False}),
    "phi": Family("PhiConfig", "PhiForCausalLM", {**NEOX, **rope("default", partial_rotary_factor=0.5)}),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", LLAMA),
    "phi3_window": Family("Phi3Config", "Phi3ForCausalLM", {
        **LLAMA, "sliding_window": 5, **rope("default", partial_rotary_factor=0.5)}),
    "phi3_longrope": Family("Phi3Config", "Phi3ForCausalLM", {
        **LLAMA, "original_max_position_embeddings": 16, **LONGROPE}),
    "llama": llama(),
    "llama_bias_wide": llama(attention_bias=True, mlp_bias=True, head_dim=10),
    "llama_linear": llama(**rope("linear", factor=2.0)),
    "llama_dynamic": llama(**rope("dynamic", factor=2.0)),
    "llama_yarn": llama(**rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama3": llama(**rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=16)),
    "llama_longrope": llama(**LONGROPE),
    "mistral": Family("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM", LLAMA),
    "qwen2_window": Family("Qwen2Config", "Qwen2ForCausalLM", {
        **LLAMA, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", {**LLAMA, "head_dim": 10}),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", {
        **LLAMA, "head_dim": 10, "query_pre_attn_scalar": 20, "sliding_window": 5,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": Family("Gemma3TextConfig", "Gemma3ForCausalLM", {
        **LLAMA, "head_dim": 10, "query_pre_attn_scalar": 20, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"]}),
    "gemma3_scaled": Family("Gemma3TextConfig", "Gemma3ForCausalLM", {
        **LLAMA, "head_dim": 10, "query_pre_attn_scalar": 20, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0}}}),
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
    "bert_decoder": Family("BertConfig", "BertLMHeadModel", {**BERT, "is_decoder": True}),
    "albert": Family("AlbertConfig", "AlbertForMaskedLM", {**BERT, "embedding_size": 24}),
    "albert_two_groups": Family("AlbertConfig", "AlbertForMaskedLM", {
        **BERT, "embedding_size": 24, "num_hidden_layers": 4, "num_hidden_groups": 2}),
    "t5": Family("T5Config", "T5ForConditionalGeneration", T5),
    "t5_gated_untied": Family("T5Config", "T5ForConditionalGeneration", {
        **T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5_deep_decoder": Family("T5Config", "T5ForConditionalGeneration", {**T5, "num_decoder_layers": 3}),
}  # fmt: skip


def tokens(length: int = 12, seed: int = 3) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()
