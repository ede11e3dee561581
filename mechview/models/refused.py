"""What cannot be opened in principle, with the reason: by family, and by what a configuration speaks of."""

from __future__ import annotations

REFUSED: dict[str, str] = {
    "gemma3": "it is the image-and-text model; open its language model (gemma3_text) alone",
    "deepseek_v2": "multi-head latent attention has no per-head key and value matrices on the residual stream",
    "deepseek_v3": "multi-head latent attention has no per-head key and value matrices on the residual stream",
    "minicpm3": "multi-head latent attention has no per-head key and value matrices on the residual stream",
    "mamba": "a state-space layer has no attention heads",
    "mamba2": "a state-space layer has no attention heads",
    "falcon_mamba": "a state-space layer has no attention heads",
    "rwkv": "a recurrent (linear-attention) layer has no attention heads",
    "jamba": "state-space layers have no attention heads, and hybrids are not opened in part",
    "bamba": "state-space layers have no attention heads, and hybrids are not opened in part",
    "zamba": "state-space layers have no attention heads, and hybrids are not opened in part",
    "zamba2": "state-space layers have no attention heads, and hybrids are not opened in part",
    "recurrent_gemma": "recurrent blocks have no attention heads, and hybrids are not opened in part",
    "qwen3_next": "gated delta-net layers have no attention heads, and hybrids are not opened in part",
}

# Families that nobody listed, told by what their configuration speaks of.
REFUSED_KEYS: dict[tuple[str, ...], str] = {
    ("kv_lora_rank", "q_lora_rank"): "multi-head latent attention has no per-head key and value matrices on the stream",
    (
        "ssm_cfg",
        "ssm_state_size",
        "state_size",
        "mamba_d_state",
        "mamba_d_ssm",
    ): "state-space layers have no attention heads",
    ("linear_num_value_heads", "linear_conv_kernel_dim"): "linear-attention layers have no attention pattern",
}
