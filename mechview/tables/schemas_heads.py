"""Schemas of what heads do by their weights alone; see `schemas` for what a schema is."""

from __future__ import annotations

from mechview.tables.columns import HEAD, MODEL, Column, Schema

OFFSET: Schema = {"offset": Column("Int32", "q_pos - k_pos of a rotary pattern; missing for other positions")}
SUMMED: Schema = MODEL | {
    "stack": Column("category", "decoder, encoder or cross"),
    "layer": Column("Int16", "block, from 0; missing for a sum of heads"),
    "head": Column("Int16", "query head; missing for a sum of heads"),
    "kv_head": Column("Int16", "key/value head it reads; missing for a sum of heads"),
    "label": Column("str", "L5H1, or L5H1+L7H3 for a sum"),
}
READING: Schema = {
    "space": Column("category", "embed, or mlp0: the embedding after the first MLP"),
    "rows": Column("category", "raw, unit or normed rows of tokens"),
    "centred": Column("bool", "rows lose their mean over the tokens kept"),
}
CHECKS: Schema = {
    "completeness_error": Column("float64", "mean of all streamed scores against r x r products, over their spread"),
    "error": Column("float64", "largest difference of the pairs shown from float64, relative"),
}
RANKED: Schema = {
    "rank": Column("int32", "place in its list, from 0"),
    "sign": Column("int8", "1 for the highest, -1 for the lowest"),
}
BESIDE: Schema = {
    "null": Column("float64", "the same for a writer turned at random in the stream (root mean square; exact)"),
    "excess": Column("float64", "value - null"),
    "shuffled": Column("float64", "mean over writers whose output coordinates were permuted; NaN without draws"),
    "shuffled_excess": Column("float64", "value - shuffled"),
    "z": Column("float64", "distance from the null in its standard deviations (of squared scores)"),
    "low": Column("float64", "lower end of the null's 95 % band"),
    "high": Column("float64", "upper end"),
    "n": Column("int32", "draws behind shuffled"),
}


def _end(side: str, what: str) -> Schema:
    return {
        f"{side}_stack": Column("category", f"stack of the {what}"),
        f"{side}_layer": Column("int16", f"layer of the {what}"),
        f"{side}_head": Column("int16", f"number of the {what} in its layer"),
        f"{side}_kv_head": Column("int16", f"key/value head of the {what}"),
        f"{side}_label": Column("str", f"name of the {what}"),
    }


HEADS_SCHEMAS: dict[str, Schema] = {
    "qk_pairs": SUMMED
    | RANKED
    | {
        "q_id": Column("int32", "token that looks"),
        "q_token": Column("str", "the same, as shown"),
        "k_id": Column("int32", "token that is looked at"),
        "k_token": Column("str", "the same, as shown"),
        "score": Column("float64", "attention score of the pair, scale included, cap and position bias not"),
        "z": Column("float64", "(score - mean) / sd over all pairs of kept tokens"),
    }
    | OFFSET
    | READING
    | CHECKS,
    "ov_tokens": SUMMED
    | RANKED
    | {
        "src_id": Column("int32", "token that is read"),
        "src_token": Column("str", "the same, as shown"),
        "dst_id": Column("int32", "token whose logit is raised or lowered"),
        "dst_token": Column("str", "the same, as shown"),
        "logit": Column("float64", "its change, before the final norm's scale, bias and soft-cap"),
        "z": Column("float64", "(logit - mean) / sd over all pairs of kept tokens"),
    }
    | READING
    | CHECKS,
    "diagonal": SUMMED
    | {
        "side": Column("category", "pattern or message"),
        "among": Column("category", "highest or lowest: which end of its row a token's own column is among"),
        "top": Column("int32", "how many columns count as that end"),
        "value": Column("float64", "share of tokens whose own column is among them"),
        "null_mean": Column("float64", "the same with a random rotation between the head's two sides"),
        "null_sd": Column("float64", "standard deviation of the null over its draws"),
        "n": Column("int32", "draws"),
        "chance": Column("float64", "top / tokens kept"),
        "tokens": Column("int32", "tokens kept"),
        "excluded": Column("int32", "special, unused and excluded tokens left out"),
    }
    | OFFSET
    | READING,
    "svd_tokens": HEAD
    | OFFSET
    | {
        "side": Column("category", "pattern or message"),
        "end": Column("category", "read and written (message), query and key (pattern)"),
        "index": Column("int32", "component, from 0, descending singular value"),
        "sigma": Column("float64", "its singular value"),
        "share": Column("float64", "sigma^2 over the sum of all"),
        "degenerate": Column("bool", "a neighbour lies within 1 %: only the span of the group is determined"),
        "sign": Column("int8", "which end of the direction; equal signs of the two ends belong together"),
        "rank": Column("int32", "place in the list, from 0"),
        "token_id": Column("int32", "token"),
        "token": Column("str", "the same, as shown"),
        "value": Column("float64", "projection of the token on the direction"),
        "coherence": Column("float64", "mean cosine between the embeddings of the list"),
        "shuffled_mean": Column("float64", "the same for lists of a shuffled vocabulary"),
        "shuffled_sd": Column("float64", "its standard deviation"),
        "random_mean": Column("float64", "the same for lists of random directions"),
        "random_sd": Column("float64", "its standard deviation"),
    }
    | READING,
    "composition": MODEL
    | {
        "kind": Column("category", "Q, K or V: the input of the receiver that is fed"),
        "definition": Column("category", "full (Elhage et al. 2021) or kernel (overlap of spans)"),
    }
    | _end("src", "sender")
    | _end("dst", "receiver")
    | {"value": Column("float64", "the score")}
    | BESIDE
    | OFFSET,
    "composition_components": MODEL
    | {"kind": Column("category", "Q, K or V: the input of the receiver that is fed")}
    | _end("src", "sender")
    | _end("dst", "receiver")
    | {
        "index": Column("int32", "component of the sender's message, from 0"),
        "sigma": Column("float64", "its singular value"),
        "degenerate": Column("bool", "a neighbour lies within 1 %: only the span of the group is determined"),
        "value": Column("float64", "score of that component alone"),
        "null": Column("float64", "root mean square of a random unit vector's"),
        "z": Column("float64", "distance from it in standard deviations (of squared scores)"),
    }
    | OFFSET,
    "eig": HEAD
    | {
        "draw": Column("Int32", "number of the random head; missing for the head itself"),
        "index": Column("int32", "place, by modulus descending"),
        "re": Column("float64", "real part; of a spectrum scaled to norm 1"),
        "im": Column("float64", "imaginary part"),
        "score": Column("float64", "sum of eigenvalues / sum of moduli, of the spectrum it belongs to"),
    },
    "offsets": HEAD
    | {
        "position": Column("category", "kind of positions"),
        "offset": Column("int32", "q_pos - k_pos"),
        "norm": Column("float64", "norm of the pattern at the offset"),
        "cosine": Column("float64", "cosine to the pattern at offset 0"),
        "cosine_null": Column("float64", "the same for random factors"),
        "symmetry": Column("float64", "tr(PP) / |P|^2 at the offset"),
        "kernel": Column("float64", "part of the score that depends on distance alone"),
        "same": Column("float64", "mean score of a token with itself at that distance"),
    },
    "similarity": MODEL
    | {
        "model_b": Column("category", "model of the second head"),
        "revision_b": Column("category", "its revision"),
        "label_a": Column("str", "first head"),
        "label_b": Column("str", "second head"),
        "side": Column("category", "pattern or message"),
        "space": Column("category", "stream, or tokens: compared through the vocabulary"),
        "cosine": Column("float64", "<A, B> / |A||B|"),
        "null_sd": Column("float64", "standard deviation of the cosine of unrelated maps, whose mean is 0"),
        "z": Column("float64", "cosine / null_sd"),
    }
    | OFFSET,
}
