"""07: is the residual stream an LSTM's cell state, and do transformers never forget?

Question: on the same data, what do `toy` and its LSTM twin (same tokenizer, same batches in the same order,
196,928 against 196,352 parameters) keep of what they have read, and which of the pattern/message article's
analogies survive models with permuted weights?
Run: `python analyses/07_the_stream_and_the_lstm.py`. About a minute on one quiet core.

Finding: FINDING
"""

# %%
from __future__ import annotations

import mechview as mv

PROMPTS = (
    "And the evening and the morning were the first day. And the evening and the morning were the second day.",
    "Mr. Darcy bowed, and said that he should be very happy to see them at the house on the morrow.",
    "And he said unto them, Go ye into all the land, and see whether the waters are gone from the earth.",
)
DISTANCES = (5, 20, 100)


# %%
def side_by_side() -> mv.Memory:
    """Gates, retention and forgetting of both, with nulls."""
    return mv.memory("toy", PROMPTS, beside="twin")


def behaviour() -> mv.Recall:
    """Copying, cues and probes of both on the same random tokens."""
    return mv.recall("toy", "twin")


def numbers(found: mv.Memory, done: mv.Recall) -> dict[str, float]:
    """What the finding quotes."""
    quoted = {}
    for side, name in (("transformer", "toy"), ("lstm", "twin")):
        quoted[f"{name} drop"] = done.value(side, "loss_drop", 50)
        for distance in DISTANCES:
            quoted[f"{name} loss at {distance}"] = done.value(side, "loss_at_distance", distance)
        quoted[f"{name} cue gain over 10"] = done.value(side, "cue_gain", 10)
        for lag in (0, 4, 16):
            quoted[f"{name} probe at {lag}"] = done.value(side, "probe_accuracy", lag)
    for key in ("forgetting", "half_life"):
        quoted[f"twin {key}"] = found.number(key, "all", "lstm").value
    for key in ("mlp_forgetting", "embedding_retention", "attention_erased_by_next_mlp", "causal_retention"):
        quoted[f"toy {key}"] = found.number(key, "all", "transformer").value
    return quoted


# %%
def main() -> tuple[mv.Memory, mv.Recall, dict[str, float]]:
    found, done = side_by_side(), behaviour()
    quoted = numbers(found, done)
    for name, value in quoted.items():
        print(f"{name}: {value:.2f}")
    for one in found.analogies:
        values = [f"{part.value:.2f}" for part in (one.left, one.right) if part is not None]
        print(f"{one.claim} ({one.mapping}): {' against '.join(values)}, {one.verdict}")
    return found, done, quoted


if __name__ == "__main__":
    main()
