"""Reading embedding and unembedding, with the multipliers and caps that stand around them."""

from __future__ import annotations

from torch import Tensor

from mechview.models.shape import Config, norm_eps
from mechview.models.tensors import NamedTensors
from mechview.models.weights import IDENTITY_NORM, EndWeights, ModelShape, NormWeights


def read_ends(tensors: NamedTensors, shape: ModelShape, has_head: bool) -> EndWeights:
    names, config = tensors.layout.ends, tensors.config
    W_E = tensors.read(names.embed + ".weight")
    positions = tensors.optional(f"{names.position}.weight")
    projection = tensors.optional(f"{names.embed_projection}.weight")
    return EndWeights(
        W_E=W_E,
        W_pos=None if positions is None else positions[names.position_offset :],
        W_type=tensors.optional(f"{names.token_type}.weight"),
        embed_norm=tensors.norm("", names.embed_norm),
        embed_projection=None if projection is None else projection.mT,
        embed_projection_bias=tensors.optional(f"{names.embed_projection}.bias"),
        embed_scale=embed_scale(config, shape.d_model),
        final_norm=tensors.norm("", names.final_norm),
        W_U=_unembedding(tensors, W_E, shape.tied) if has_head else None,
        b_U=tensors.optional(f"{names.unembed}.bias", f"{names.unembed_bias}") if has_head else None,
        logit_scale=logit_scale(config, shape.d_model),
        softcap=getattr(config, "final_logit_softcapping", None),
        head_transform=_transform(tensors) if has_head else None,
        encoder_final_norm=_encoder_norm(tensors),
    )


def embed_scale(config: Config, d_model: int) -> float:
    if config.model_type.startswith("gemma"):
        return float(d_model) ** 0.5
    return float(getattr(config, "embedding_multiplier", 1.0))


def logit_scale(config: Config, d_model: int) -> float:
    """What the logits are multiplied by: Cohere, Granite, and T5 with tied embeddings."""
    if config.model_type == "t5":
        scaled = getattr(config, "scale_decoder_outputs", getattr(config, "tie_word_embeddings", True))
        return float(d_model) ** -0.5 if scaled else 1.0
    return float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)


def _unembedding(tensors: NamedTensors, W_E: Tensor, tied: bool) -> Tensor | None:
    """W_U `[d_model, d_vocab]`, from its own tensor or from the tied embedding."""
    names = tensors.layout.ends
    own = tensors.optional(f"{names.unembed}.weight")
    W_U = own if own is not None else (W_E if tied else None)
    projection = tensors.optional(f"{names.unembed_projection}.weight")
    if W_U is None or projection is None:
        return None if W_U is None else W_U.mT
    return projection.mT @ W_U.mT


def _transform(tensors: NamedTensors) -> tuple[Tensor, Tensor, NormWeights, str] | None:
    names = tensors.layout.ends
    if names.transform is None:
        return None
    W, b = tensors.read(names.transform + ".weight").mT, tensors.read(names.transform + ".bias")
    return W, b, tensors.norm("", names.transform_norm), str(tensors.config.hidden_act)


def _encoder_norm(tensors: NamedTensors) -> NormWeights:
    encoder = tensors.layout.encoder
    if encoder is None:
        return IDENTITY_NORM
    gain = tensors.read(f"{encoder.ends.final_norm}.weight")
    return NormWeights(encoder.norm, gain, None, norm_eps(tensors.config))
