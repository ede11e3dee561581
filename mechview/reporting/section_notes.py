"""Method notes of what belongs to no head: the stream, comparisons, the spin correspondence, memory.

Records of the same kind as those of `heads.registry`, so that a page has one list of notes: of every quantity its
definition, unit, source, and what it cannot show. A page shows the notes of the sections it has.
"""

from __future__ import annotations

from mechview.heads.registry import Metric

SPECTRUM_NULL = {
    "spectrum_null": Metric(
        "null band of the spectra",
        "Mean ± 2 sd of the singular values of products of Gaussian factors of the same sizes, at the head's own norm.",
        "weight units", "Marchenko and Pastur 1967 (one factor); drawn here",
        "What a trained head without a function would look like: training leaves traces of its own.",
    )
}  # fmt: skip
STREAM_NOTES = {
    "component_norm": Metric(
        "norm of what was added", "‖write‖ of a component at a position: one row of the ledger, whose rows sum to the stream.",
        "stream units", "Elhage et al. 2021", "Use: large writes may cancel, or point where nothing reads.",
    ),
    "component_cosine": Metric(
        "cosine to the stream before it was written", "cos(write, the stream that the component read).",
        "", "this program's ledger", "Erasure of content: a write against the stream may only undo a mean.",
    ),
    "logit_share": Metric(
        "share of a logit", "⟨write behind the final norm's frozen scale, direction of the token⟩; shares sum to the model's "
        "own logit before its soft-cap, the error stands beside them.",
        "logits", "Elhage et al. 2021 (direct logit attribution)",
        "Anything indirect: what later layers make of a write is not in it, and the norm's scale is kept as it was.",
    ),
    "stream_growth": Metric(
        "norm and cosine growth", "Norm of the stream at each point, and its cosine to the final stream; the first position apart.",
        "stream units", "Heimersheim and Turner 2023", "Why it grows, or that anything is stored along the way.",
    ),
    "lens": Metric(
        "logit lens", "The final norm and unembedding applied to the stream at a point: likeliest token, its probability, entropy, "
        "and KL to the model's output.",
        "nat", "nostalgebraist 2020", "What the model knows there: early layers were not trained for this readout.",
    ),
}  # fmt: skip
COMPARISON_NOTES = {
    "compare_difference": Metric(
        "difference of writes", "‖b's write − a's write‖ at aligned positions; for a pair of tokens the root of the sum of squares "
        "over components, for a head the root mean square over positions after the first.",
        "stream units", "this program's ledger", "Which side is right, or whether a later layer reads the difference.",
    ),
    "compare_share": Metric(
        "change of a share", "b's share of the logit less a's, each with its own frozen norm; the changes sum to the change of the "
        "model's own value.",
        "logits", "Elhage et al. 2021 (direct logit attribution)", "Cause: put the activations back (mechview patch) for that.",
    ),
    "compare_maps": Metric(
        "maps apart", "‖A − B‖ / ‖A‖ of a head's pattern (at the stated offset) or message in two models, by r × r products; "
        "nothing is rotated into place.",
        "share", "Frobenius norm", "A change of function: a large change may lie where the stream never points.",
    ),
    "compare_interval": Metric(
        "interval of a change", "95 % of bootstrap resamples over prompts (BCa), with a sign-flip or permutation test, corrected for "
        "the number of components.",
        "as the change", "Efron 1987; Benjamini and Hochberg 1995", "Prompts of another kind than those that were given.",
    ),
}  # fmt: skip
SPIN_NOTES = {
    "spin_r2": Metric(
        "R² of a rung", "Share of a layer's writes, on documents that were not fitted, explained by the rung's predictor fields with "
        "one weight each. H1 the field itself; H3 scalar couplings by the pattern; H4 the same in each head's read space; H5 the "
        "gradient of the retrieval energy; M1 a scalar Onsager term; M2 the second-order Plefka basis; M3 the coupling term of "
        "equation (8); M4 a symmetric reaction.",
        "R²", "SPIN correspondence of the article, part C.1",
        "That the layer is the spin model: a control that keeps the statistics and loses the model stands beside it.",
    ),
    "spin_rows": Metric(
        "thermodynamics of rows", "Each attention row is a Boltzmann law over its keys at beta = 1: ln Z = logsumexp of the scores, "
        "U = −mean score, S = ln Z + U, C = variance of the score.",
        "nat", "Ramsauer et al. 2021 (energy of retrieval)", "An equilibrium of the tokens: a causal pattern has none.",
    ),
    "spin_curl": Metric(
        "curl index", "Squared part of the antisymmetric unmasked logits that no potential explains, over all row-centred logits; 0 "
        "if and only if the chain with these rows is in detailed balance.",
        "share", "Kolmogorov's criterion", "Dynamics of the model: the chain is one that its rows define, not one that it runs.",
    ),
    "spin_second_step": Metric(
        "second step and its loss", "‖x₂ − x₁‖ / ‖x₁ − x₀‖ of a block applied twice, with field and couplings kept or computed anew; "
        "and the change of the whole model's loss with the block left out (K = 0) or applied twice (K = 2).",
        "ratio, nat", "this program; null: another token's update of the same norm", "A fixed point: a contraction towards anything passes.",
    ),
    "spin_verdict": Metric(
        "verdict", "informative where the interval lies beyond every draw of the deciding control by a stated margin, weak where less, "
        "vacuous where the control gives as much; of a claim over its layers.",
        "", "rules of mechview spin", "Truth of a claim: informative says that the test tells something, for or against.",
    ),
}  # fmt: skip
MEMORY_NOTES = {
    "memory_retention": Metric(
        "retention", "What is left of a write: over depth the share of a sublayer's write still along it after later writes (1 untouched, "
        "less erased, more than 1 amplified); in an LSTM the product of the forget gates since.",
        "share", "Hochreiter and Schmidhuber 1997; Gers et al. 2000",
        "Storage on purpose: a write may be kept because nothing happened to oppose it.",
    ),
    "memory_half_life": Metric(
        "half-life", "Steps (LSTM) or later writes (stream) until half is left, ln 2 / (−mean ln f); censored where more than half is left "
        "at the end.",
        "steps, writes", "Tallec and Ollivier 2018", "Use: a channel may keep what nothing reads.",
    ),
    "memory_lag": Metric(
        "mass against lag", "R ∘ i of an LSTM, attention (without its first key) of a transformer, by distance; each sums to 1. Even "
        "attention stands beside them.",
        "share", "this program", "What is carried over the distance: it is a weight, not a content.",
    ),
    "memory_gates": Metric(
        "gates over the text", "Means of the LSTM's three gates; of a transformer the weight a token is read with, coherence (‖sum of "
        "gathered messages‖ over the sum of their norms), and the effective forget gate of each write.",
        "gate", "this program", "A gate in the transformer: it computes none, these are what would act like one.",
    ),
    "memory_verdict": Metric(
        "verdict of an analogy", "The transformer's number against copies with permuted weights, against other tokens, and with "
        "every token counting alike.",
        "", "rules of mechview memory", "That two mechanisms are one: the numbers are compared, not the algebra.",
    ),
}  # fmt: skip
