"""Schemas of the memory tables, which an LSTM and a transformer share; see `schemas` for what a schema is."""

from __future__ import annotations

from mechview.tables.columns import MODEL, PROMPT, Column, Schema

SIDE: Schema = {"side": Column("category", "lstm or transformer")}
NULLS: Schema = {
    "lo": Column(
        "float64", "lower end of the 95 % bootstrap interval over prompts (of one prompt: blocks of 16 tokens)"
    ),
    "hi": Column("float64", "upper end"),
    "even": Column("float64", "the same number with every token counting alike; NaN where that is no choice"),
    "null_tokens": Column("float64", "mean of the null of other tokens; NaN where there is none"),
    "null_tokens_sd": Column("float64", "its standard deviation over draws"),
    "null_weights": Column("float64", "mean over copies of the model with permuted weight matrices, same prompts"),
    "null_weights_sd": Column("float64", "its standard deviation over copies"),
}
VERDICT: Schema = {
    "verdict": Column("category", "informative, weak, vacuous, not-applicable; missing where not judged")
}

MEMORY_SCHEMAS: dict[str, Schema] = {
    "gates": MODEL
    | SIDE
    | PROMPT
    | {
        "pos": Column("int32", "position of the token"),
        "token": Column("str", "the token as shown"),
        "place": Column("str", "layer, direction (L1.backward) or sublayer (L1.mlp)"),
        "layer": Column("Int16", "block or LSTM layer, from 0"),
        "gate": Column("category", "input, forget, output, candidate and cell (sizes); pattern (received), coherence"),
        "value": Column("float64", "mean over channels or heads; of a write its effective forget gate at this token"),
        "q25": Column("float64", "lower quartile over channels or heads; NaN for one number"),
        "q75": Column("float64", "upper quartile"),
        "n": Column("int32", "channels or heads behind it"),
    },
    "memory": MODEL
    | SIDE
    | {
        "over": Column("category", "time (LSTM steps), depth (writes), positions (heads) or behaviour"),
        "place": Column("str", "layer, head, sublayer, embed, all, or even attention"),
        "layer": Column("Int16", "block or LSTM layer; missing for the whole model"),
        "head": Column("Int16", "head; missing elsewhere"),
        "quantity": Column("category", "half_life, horizon, forget_gate, erasure, retention, coherence, lag_mass, ..."),
        "later": Column("str", "write at which it is taken; missing where there is none"),
        "lag": Column("Int32", "steps, writes or tokens in between"),
        "index": Column("Int32", "channel of a spectrum, or place of a write"),
        "value": Column("float64", "the number: shares, steps (half-lives; infinite where censored), nats"),
    }
    | NULLS
    | {"n": Column("int32", "tokens or prompts behind it")}
    | VERDICT,
    "analogies": {
        "model": Column("str", "the model, and what stands beside it"),
        "claim": Column("str", "what is said to be like what"),
        "mapping": Column("str", "how it is read; the message has two readings"),
        "statistic": Column("str", "what is compared"),
        "lstm": Column("float64", "the LSTM's number; NaN where there is none"),
        "transformer": Column("float64", "the transformer's number"),
        "apart": Column("float64", "transformer less LSTM"),
    }
    | NULLS
    | VERDICT
    | {"meaning": Column("str", "the verdict in words")},
}
