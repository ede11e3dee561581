"""Schemas of the residual stream's tables; see `schemas` for what a schema is."""

from __future__ import annotations

from mechview.tables.columns import MODEL, Column, Schema

COMPONENT: Schema = {
    "component": Column("str", "embed, L5H1, L5.attn_bias, L5.mlp, L5.n12, L5H1<-3 (source), ..."),
    "layer": Column("Int16", "block that wrote it; missing for embeddings and the ends' biases"),
    "head": Column("Int16", "query head; missing for other components"),
}
NEURONS = Column("Int32", "neurons of each MLP with rows of their own, the others in mlp_rest; missing at other grains")
CHECK: Schema = {"completeness_error": Column("float64", "|sum of rows - model's own| / largest: the table adds up")}

RESIDUAL_SCHEMAS: dict[str, Schema] = {
    "contrib": MODEL
    | COMPONENT
    | {
        "pos": Column("int32", "position of the stream it was added to"),
        "first": Column("bool", "position 0, whose norms stand apart (attention sink)"),
        "target": Column("str", "direction the value is along, or the cosine is to; missing where none was asked for"),
        "value": Column("float64", "share along the direction, in logits for a token; NaN without a direction"),
        "norm": Column("float64", "norm of what was added, stream units"),
        "cos_stream": Column("float64", "cosine to the stream before it was written"),
        "cos_direction": Column("float64", "cosine to the direction, as the row reaches `point`; NaN without one"),
        "cos_total": Column("float64", "cosine to the stream at `point`"),
        "share_of_update": Column("float64", "projection on what its sublayer added, as a share of that"),
        "point": Column("category", "where in the stream: final, L5.pre, L5.mid, L5.post"),
        "by": Column("category", "grain: layer, head, source, neuron, expert, bias"),
        "neurons": NEURONS,
        "freeze": Column("category", "norm scale of each position: own, or none; of a logit, that of the final norm"),
        "fold": Column("boolean", "gain and centring of the final norm folded into the direction; missing without one"),
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
    "lens_changes": MODEL
    | {
        "since": Column("str", "the point before; start: nothing, where the reading is 0"),
        "point": Column("str", "the point read"),
        "pos": Column("int32", "position"),
    }
    | COMPONENT
    | {
        "target": Column("str", "the logit that is read"),
        "value": Column(
            "float64", "what the component does to the reading, logits; rescaling: what stood there before"
        ),
        "change": Column("float64", "of the reading since the point before"),
        "logit": Column("float64", "the reading at `point`, before any soft-cap"),
        "by": Column("category", "grain of the components"),
        "neurons": NEURONS,
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
        "by": Column("category", "grain of both sides"),
        "neurons": NEURONS,
        "total": Column("float64", "the model's own score"),
    }
    | CHECK,
    "compare": {
        "model_a": Column("str", "first side: a model, with its revision"),
        "model_b": Column("str", "second side"),
    }
    | COMPONENT
    | {
        "kv_head": Column("Int16", "key/value head; missing for other components"),
        "position_a": Column("Int32", "position in a; missing for weights, and for what was inserted"),
        "position_b": Column("Int32", "position in b; missing for weights, and for what was deleted"),
        "quantity": Column("category", "norm, difference, cosine, share, pattern, message, angles in degrees, ..."),
        "side_a": Column("float64", "value in a"),
        "side_b": Column("float64", "value in b"),
        "delta": Column("float64", "b - a, or the norm of the difference of vectors and maps"),
        "rel": Column("float64", "delta / |side_a|; of an angle, over 90 degrees"),
        "lo": Column("float64", "lower end of the 95 % bootstrap interval of delta"),
        "hi": Column("float64", "upper end"),
        "p": Column("float64", "permutation test of no difference"),
        "p_adjusted": Column("float64", "the same, corrected for all components (Benjamini-Hochberg)"),
        "aligned": Column("category", "how the sides came together: same, substituted, inserted, deleted, depth, ..."),
    },
    "effects": MODEL
    | COMPONENT
    | {
        "stack": Column("category", "decoder, encoder or cross"),
        "direct": Column("float64", "share of the metric with norms frozen, logits; NaN where the head is not linear"),
        "total": Column("float64", "metric of the clean pass less that of the ablated one, logits"),
        "difference": Column("float64", "direct - total: positive where later components make up for the loss"),
        "method": Column("category", "what the component is replaced by: zero, mean, resample"),
        "metric": Column("str", "logit or difference of logits, before a soft-cap"),
        "position": Column("int32", "where the metric is read"),
        "error": Column("float64", "change of the metric in a pass with all values put back as they were"),
    },
    "patching": MODEL
    | COMPONENT
    | {
        "stack": Column("category", "decoder, encoder or cross"),
        "patched_position": Column("Int32", "position patched; missing where all were patched together"),
        "receiver": Column("str", "input that a path leads to (L5H1.k); empty for plain patching"),
        "value": Column("float64", "metric of the patched pass, logits"),
        "change": Column("float64", "value less the corrupted pass"),
        "normalised": Column("float64", "0 for no change, 1 for the clean pass"),
        "what": Column("category", "heads, attention, mlp, stream or path"),
        "metric": Column("str", "logit or difference of logits"),
        "position": Column("int32", "where the metric is read"),
        "clean": Column("float64", "metric of the clean pass"),
        "corrupted": Column("float64", "metric of the corrupted pass"),
        "error": Column("float64", "change of the metric in a pass with its own values put back"),
    },
}
