"""The rows: where each family keeps its tensors, and its habits. Tables, no code.

Read a row as differences from the one it is made of: most decoders are Llama with other names. A family
that is not here is refused; `refused.py` holds those that cannot be opened in principle, with the reason.
"""

from __future__ import annotations

from dataclasses import replace

from mechview.models.layouts import AttentionNames, EndNames, Fused, Layout, MlpNames

SELF = "self_attn."
LLAMA = Layout(
    base="model.",
    block="model.layers.{layer}.",
    attention=AttentionNames(
        query=SELF + "q_proj", key=SELF + "k_proj", value=SELF + "v_proj", output=SELF + "o_proj",
        norm="input_layernorm",
    ),
    mlp=MlpNames("mlp", up="mlp.up_proj", gate="mlp.gate_proj", down="mlp.down_proj", norm="post_attention_layernorm"),
    ends=EndNames(embed="model.embed_tokens", final_norm="model.norm"),
)  # fmt: skip
GEMMA2 = replace(
    LLAMA,
    placement="sandwich",
    gain_offset=1.0,
    attention=replace(LLAMA.attention, post_norm="post_attention_layernorm"),
    mlp=replace(LLAMA.mlp, norm="pre_feedforward_layernorm", post_norm="post_feedforward_layernorm"),
)
GPT2 = Layout(
    base="transformer.",
    block="transformer.h.{layer}.",
    norm="layer",
    linear="in out",
    attention=AttentionNames(query=Fused("attn.c_attn", "concat"), output="attn.c_proj", norm="ln_1"),
    mlp=MlpNames("mlp", up="mlp.c_fc", down="mlp.c_proj", norm="ln_2"),
    ends=EndNames(embed="transformer.wte", position="transformer.wpe", final_norm="transformer.ln_f"),
)
NEO = "attn.attention."
NEOX = Layout(
    base="gpt_neox.",
    block="gpt_neox.layers.{layer}.",
    norm="layer",
    placement="parallel",
    attention=AttentionNames(
        query=Fused("attention.query_key_value", "grouped"), output="attention.dense", norm="input_layernorm"
    ),
    mlp=MlpNames("mlp", up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h", norm="post_attention_layernorm"),
    ends=EndNames(embed="gpt_neox.embed_in", final_norm="gpt_neox.final_layer_norm"),
)
BLOOM = Layout(
    base="transformer.",
    block="transformer.h.{layer}.",
    norm="layer",
    attention=AttentionNames(
        query=Fused("self_attention.query_key_value", "grouped"),
        output="self_attention.dense",
        norm="input_layernorm",
    ),
    mlp=MlpNames(
        "mlp.dense_4h_to_h", up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h", norm="post_attention_layernorm"
    ),  # BLOOM's MLP returns the stream with its write already added
    bridge_mlp="mlp.out.hook_out",
    ends=EndNames(
        embed="transformer.word_embeddings",
        embed_norm="transformer.word_embeddings_layernorm",
        final_norm="transformer.ln_f",
    ),
)
FALCON = replace(BLOOM, ends=replace(BLOOM.ends, embed_norm=None))
FALCON_PARALLEL = replace(
    FALCON, placement="parallel", mlp=replace(FALCON.mlp, norm="input_layernorm")
)  # attention and MLP read through the same norm
FALCON_TWO_NORMS = replace(
    FALCON,
    placement="parallel",
    bridge=False,
    attention=replace(FALCON.attention, norm="ln_attn"),
    mlp=replace(FALCON.mlp, norm="ln_mlp"),
)
OPT_SELF = AttentionNames(
    query=SELF + "q_proj", key=SELF + "k_proj", value=SELF + "v_proj", output=SELF + "out_proj",
    norm="self_attn_layer_norm",
)  # fmt: skip
OPT = Layout(
    base="model.",
    block="model.decoder.layers.{layer}.",
    norm="layer",
    bridge_scores=False,
    attention=OPT_SELF,
    mlp=MlpNames("fc2", up="fc1", down="fc2", norm="final_layer_norm"),
    ends=EndNames(
        embed="model.decoder.embed_tokens",
        position="model.decoder.embed_positions",
        position_offset=2,
        final_norm="model.decoder.final_layer_norm",
    ),
)
OPT_POST = replace(
    OPT,
    placement="post",
    bridge=False,
    attention=replace(OPT_SELF, norm=None, stream_norm="self_attn_layer_norm"),
    mlp=replace(OPT.mlp, norm=None, stream_norm="final_layer_norm"),
    ends=replace(
        OPT.ends,
        final_norm=None,
        embed_projection="model.decoder.project_in",
        unembed_projection="model.decoder.project_out",
    ),
)
BERT = Layout(
    base="bert.",
    block="bert.encoder.layer.{layer}.",
    norm="layer",
    placement="post",
    causal=False,
    bridge_scores=False,
    attention=AttentionNames(
        query="attention.self.query", key="attention.self.key", value="attention.self.value",
        output="attention.output.dense", stream_norm="attention.output.LayerNorm",
    ),
    mlp=MlpNames("output.dense", up="intermediate.dense", down="output.dense", stream_norm="output.LayerNorm"),
    ends=EndNames(
        embed="bert.embeddings.word_embeddings",
        position="bert.embeddings.position_embeddings",
        token_type="bert.embeddings.token_type_embeddings",
        embed_norm="bert.embeddings.LayerNorm",
        unembed="cls.predictions.decoder",
        unembed_bias="cls.predictions.bias",
        transform="cls.predictions.transform.dense",
        transform_norm="cls.predictions.transform.LayerNorm",
    ),
)  # fmt: skip
ALBERT = replace(
    BERT,
    base="albert.",
    block="albert.encoder.albert_layer_groups.{layer}.albert_layers.0.",
    bridge=False,
    attention=AttentionNames(
        query="attention.query", key="attention.key", value="attention.value",
        output="attention.dense", stream_norm="attention.LayerNorm",
    ),
    mlp=MlpNames("ffn_output", up="ffn", down="ffn_output", stream_norm="full_layer_layer_norm"),
    ends=EndNames(
        embed="albert.embeddings.word_embeddings",
        position="albert.embeddings.position_embeddings",
        token_type="albert.embeddings.token_type_embeddings",
        embed_norm="albert.embeddings.LayerNorm",
        embed_projection="albert.encoder.embedding_hidden_mapping_in",
        unembed="predictions.decoder",
        unembed_bias="predictions.bias",
        transform="predictions.dense",
        transform_norm="predictions.LayerNorm",
    ),
)  # fmt: skip


def _t5(stack: str, last: int) -> Layout:
    inner = "layer.0.SelfAttention."
    return Layout(
        base="",
        block=f"{stack}.block.{{layer}}.",
        bridge=False,
        causal=stack == "decoder",
        attention=AttentionNames(
            query=inner + "q", key=inner + "k", value=inner + "v", output=inner + "o",
            norm="layer.0.layer_norm",
            relative_bias=f"{stack}.block.0.{inner}relative_attention_bias",
        ),
        mlp=MlpNames(
            f"layer.{last}.DenseReluDense",
            up=f"layer.{last}.DenseReluDense.wi",
            down=f"layer.{last}.DenseReluDense.wo",
            norm=f"layer.{last}.layer_norm",
        ),
        ends=EndNames(embed="shared", final_norm=f"{stack}.final_layer_norm"),
    )  # fmt: skip


CROSS = "layer.1.EncDecAttention."
T5 = replace(
    _t5("decoder", last=2),
    encoder=_t5("encoder", last=1),
    cross=AttentionNames(
        query=CROSS + "q", key=CROSS + "k", value=CROSS + "v", output=CROSS + "o", norm="layer.1.layer_norm"
    ),
)
QK_NORMS = replace(LLAMA.attention, q_norm=SELF + "q_norm", k_norm=SELF + "k_norm")

LAYOUTS: dict[str, Layout] = {
    "gpt2": GPT2,
    "gpt2_scaled": replace(GPT2, bridge=False),  # the bridge ignores its attention scale
    "gpt_neo": replace(
        GPT2,
        linear="out in",
        bridge_scores=False,
        attention=AttentionNames(
            query=NEO + "q_proj", key=NEO + "k_proj", value=NEO + "v_proj", output=NEO + "out_proj", norm="ln_1"
        ),
    ),
    "gptj": replace(
        GPT2,
        linear="out in",
        placement="parallel",
        bridge_scores=False,
        rotary_interleaved=True,
        attention=AttentionNames(
            query="attn.q_proj", key="attn.k_proj", value="attn.v_proj", output="attn.out_proj", norm="ln_1"
        ),
        mlp=MlpNames("mlp", up="mlp.fc_in", down="mlp.fc_out", norm="ln_1"),
        ends=EndNames(embed="transformer.wte", final_norm="transformer.ln_f"),
    ),
    "gpt_neox": NEOX,
    "gpt_neox_sequential": replace(NEOX, placement="pre"),
    "opt": OPT,
    "opt_post": OPT_POST,
    "opt_no_final_norm": replace(OPT, bridge=False, ends=replace(OPT.ends, final_norm=None)),
    "bloom": BLOOM,
    "falcon": FALCON,
    "falcon_parallel": FALCON_PARALLEL,
    "falcon_two_norms": FALCON_TWO_NORMS,
    "falcon_one_norm": replace(FALCON_PARALLEL, bridge=False),
    "phi": replace(
        LLAMA,
        norm="layer",
        placement="parallel",
        attention=replace(LLAMA.attention, output=SELF + "dense"),
        mlp=MlpNames("mlp", up="mlp.fc1", down="mlp.fc2", norm="input_layernorm"),
        ends=EndNames(embed="model.embed_tokens", final_norm="model.final_layernorm"),
    ),
    "phi3": replace(
        LLAMA,
        attention=AttentionNames(
            query=Fused(SELF + "qkv_proj", "concat"), output=SELF + "o_proj", norm="input_layernorm"
        ),
        mlp=MlpNames("mlp", fused_gate="mlp.gate_up_proj", down="mlp.down_proj", norm="post_attention_layernorm"),
    ),
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "granite": LLAMA,
    "qwen3": replace(LLAMA, attention=QK_NORMS),
    "gemma2": GEMMA2,
    "gemma3_text": replace(GEMMA2, attention=replace(QK_NORMS, post_norm="post_attention_layernorm")),
    "olmo2": replace(
        LLAMA,
        placement="write",
        qk_norm_across_heads=True,
        attention=replace(QK_NORMS, norm=None, post_norm="post_attention_layernorm"),
        mlp=replace(LLAMA.mlp, norm=None, post_norm="post_feedforward_layernorm"),
    ),
    "mixtral": replace(
        LLAMA,
        mlp=MlpNames(
            "mlp", fused_gate="mlp.experts.gate_up_proj", down="mlp.experts.down_proj", router="mlp.gate",
            experts="out in", norm="post_attention_layernorm",
        ),
    ),
    "gpt_oss": replace(
        LLAMA,
        attention=replace(LLAMA.attention, sinks=SELF + "sinks"),
        mlp=MlpNames(
            "mlp", fused_gate="mlp.experts.gate_up_proj", down="mlp.experts.down_proj", router="mlp.router",
            experts="in out interleaved", norm="post_attention_layernorm",
        ),
    ),
    "cohere": replace(
        LLAMA,
        norm="layer",
        placement="parallel",
        rotary_interleaved=True,
        attention=QK_NORMS,
        mlp=replace(LLAMA.mlp, norm="input_layernorm"),
    ),
    "bert": BERT,
    "bert_decoder": replace(BERT, causal=True, bridge=False),
    "albert": ALBERT,
    "t5": T5,
}  # fmt: skip
