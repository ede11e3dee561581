"""02: does the ledger add up, and who writes the answer?

Question: how exactly do the rows of the residual stream sum to the model's own stream and logit, at every
grain, and which rows carry the prediction of the next word of a repeated phrase?
Run: `python analyses/02_the_ledger_adds_up.py [MODEL]`. On `toy` it takes about half a minute.

Finding, on `toy`: at every grain (layer, head, source token, neuron, bias) the rows sum to the final stream
and to the likeliest next token's logit to better than 1e-6. Against the mean of all tokens that logit is
9.31, of which the MLP of layer 0 writes 5.89, the MLP of layer 1 2.59, the induction heads of layer 1 0.75 and
the embedding 0.02. The heads that find the answer write little of it directly: a direct share is not an
effect: what follows from a head by way of later layers is not in its row.
"""

# %%
from __future__ import annotations

import sys

import mechview as mv

PROMPT = "the man and the woman and the man and the"
GRAINS = ("layer", "head", "source", "neuron", "bias")


# %%
def errors(trace: mv.Trace) -> dict[str, tuple[float, float]]:
    """Completeness error of stream and of the likeliest next token's logit, by grain."""
    target = int(trace.logits[-1].argmax())
    return {by: (mv.ledger(trace, by).error, mv.shares(trace, target, by=by).error) for by in GRAINS}


def layer_of_the_answer(trace: mv.Trace) -> dict[str, float]:
    """The logit of the likeliest next token against the mean token, by embedding and layer."""
    target = int(trace.logits[-1].argmax())
    everything = list(range(trace.weights.shape.d_vocab))
    found = mv.shares(trace, target, everything, by="layer")
    return dict(zip(found.components, found.values.tolist(), strict=True)) | {"total": found.total}


# %%
def main(spec: str = "toy") -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    model = mv.load(spec)
    trace = mv.trace(model, PROMPT)
    found, parts = errors(trace), layer_of_the_answer(trace)
    for by, (stream, logit) in found.items():
        print(f"by {by}: stream off by {stream:.1e}, logit by {logit:.1e}")
    print(", ".join(f"{name} {value:+.2f}" for name, value in parts.items()))
    return found, parts


if __name__ == "__main__":
    main(*sys.argv[1:2])
