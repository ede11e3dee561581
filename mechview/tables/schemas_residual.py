"""Schemas of the residual stream's tables; see `schemas` for what a schema is."""

from __future__ import annotations

from mechview.tables.columns import MODEL, Column, Schema

COMPONENT: Schema = {
    "component": Column("str", "embed, L5H1, L5.attn_bias, L5.mlp, L5.n12, L5H1<-3 (source), ..."),
    "layer": Column("Int16", "block that wrote it; missing for embeddings and the ends' biases"),
    "head": Column("Int16", "query head; missing for other components"),
}
CHECK: Schema = {"completeness_error": Column("float64", "|sum of rows - model's own| / largest: the table adds up")}

RESIDUAL_SCHEMAS: dict[str, Schema] = {
    "contrib": MODEL
    | COMPONENT
    | {
        "pos": Column("int32", "position of the stream it was added to"),
        "first": Column("bool", "position 0, whose norms stand apart (attention sink)"),
        "target": Column("str", "direction the value is along; missing where none was asked for"),
        "value": Column("float64", "share along the direction, in logits for a token; NaN without a direction"),
        "norm": Column("float64", "norm of what was added, stream units"),
        "cos_stream": Column("float64", "cosine to the stream before it was written"),
        "cos_total": Column("float64", "cosine to the stream at `point`"),
        "share_of_update": Column("float64", "projection on what its sublayer added, as a share of that"),
        "point": Column("category", "where in the stream: final, L5.pre, L5.mid, L5.post"),
        "by": Column("category", "grain: layer, head, source, neuron, expert, bias"),
        "total": Column("float64", "the model's own value along the direction, or norm of its own stream"),
    }
    | CHECK,
    "lens": MODEL
    | {
        "point": Column("category", "where the stream was read: L5.pre, L5.mid, final"),
        "pos": Column("int32", "position"),
        "top_id": Column("int32", "most likely token there"),
        "top_token": Column("str", "the same, as shown"),
        "top_prob": Column("float64", "its probability"),
        "entropy": Column("float64", "of the reading, nats"),
        "kl_final": Column("float64", "KL of the model's output from the reading, nats"),
        "target_id": Column("Int32", "the token asked about; missing where none was"),
        "logit": Column("float64", "its logit in the reading"),
        "prob": Column("float64", "its probability"),
        "rank": Column("Int32", "tokens with a larger logit"),
    }
    | CHECK,
    "score_ledger": MODEL
    | {
        "label": Column("str", "the head that looks"),
        "q_pos": Column("int32", "position that looks"),
        "k_pos": Column("int32", "position that is looked at"),
        "query_component": Column("str", "who wrote the query side; head_bias is the affine coordinate"),
        "key_component": Column("str", "who wrote the key side"),
        "value": Column("float64", "their part of the score, before softmax and soft-cap"),
        "total": Column("float64", "the model's own score"),
    }
    | CHECK,
}
