"""Quantities that tables measure themselves: of spectra, of one prompt, and the checks.

They stand in the one registry of `heads.registry`, beside the metrics that `mv.head_scores` measures.
"""

from __future__ import annotations

from mechview.heads.notes_weights import WEIGHT_NOTES
from mechview.heads.registry import METRICS, Metric


def _both(name: str, title: str, definition: str, unit: str, source: str, cannot: str) -> dict[str, Metric]:
    about = (definition, unit, source, cannot)
    return {f"{side}_{name}": Metric(f"{side}: {title}", *about) for side in ("pattern", "message")}


TABLED: dict[str, Metric] = (
    _both(
        "norm",
        "norm",
        "Frobenius norm of the d_model × d_model map, √Σσ². The pattern without attention scale, both without biases.",
        "weight units",
        "Elhage et al. 2021",
        "How much the head matters on text: the stream's size and direction decide that. It has no null.",
    )
    | _both(
        "top_singular_value",
        "largest singular value",
        "σ₁: the largest stretch of a unit vector.",
        "weight units",
        "Millidge and Black 2022",
        "Whether the stream ever points along that direction. It has no null.",
    )
    | _both(
        "stable_rank",
        "stable rank",
        "‖M‖²_F / σ₁². Null: the product of two Gaussian factors of the same sizes, mean ± sd over its draws.",
        "rank",
        "Rudelson and Vershynin 2007",
        "What the directions mean; one outlier direction brings it close to 1 whatever the rest does.",
    )
    | _both(
        "effective_rank",
        "effective rank",
        "exp of the entropy of σ / Σσ. Null: the product of two Gaussian factors of the same sizes.",
        "rank",
        "Roy and Vetterli 2007",
        "Which directions are used on text: it counts those the weights offer.",
    )
    | _both(
        "parity_error",
        "parity error",
        "max|rebuilt − model's| / max|model's| on one prompt: attention rebuilt from the factors, "
        "or the head's write as Σ A·message.",
        "relative",
        "this program's own check",
        "Anything on other prompts, or whether the model itself is right.",
    )
    | {
        "first_key_mass": Metric(
            "attention on the first key",
            "Mean weight on the first position, over queries that see more than one key.",
            "weight",
            "Xiao et al. 2023 (attention sinks)",
            "Whether the first token is read for its content or only rested on.",
        ),
        "entropy": Metric(
            "attention entropy",
            "Mean over queries of −Σ A ln A, in nats.",
            "nat",
            "Shannon 1948",
            "What is attended to; long prompts allow larger values, so compare with the even-attention value.",
        ),
        "previous_token_mass": Metric(
            "attention on the previous token",
            "Mean weight on k = q − 1.",
            "weight",
            "Elhage et al. 2021",
            "A previous-token head in general: one prompt, and neighbours may be attended for their content.",
        ),
        "same_token_mass": Metric(
            "attention on the same token",
            "Mean weight on earlier positions that hold the query's own token, over queries that have one.",
            "weight",
            "Wang et al. 2022 (duplicate-token heads)",
            "Anything when the prompt repeats no token: it is NaN then.",
        ),
        "induction_mass": Metric(
            "attention after the same token",
            "Mean weight on positions right after an earlier occurrence of the query's token.",
            "weight",
            "Olsson et al. 2022",
            "An induction head in general: natural text repeats for many reasons. It is NaN without repeats.",
        ),
        "weight": Metric(
            "attention weight",
            "The model's own pattern A[q, k] after softmax.",
            "weight",
            "the model",
            "Cause: a token that is attended to may send nothing that is used.",
        ),
        "score": Metric(
            "attention score",
            "The logit before softmax, scaled, capped and biased as the model does; from its own hook, or rebuilt "
            "from weights where it has none.",
            "logit",
            "the model, or the factors",
            "More than its differences along a row: softmax ignores a constant.",
        ),
        "value_norm": Metric(
            "value norm",
            "‖[x, 1] message‖ of the key's token, before any norm after attention.",
            "stream units",
            "Kobayashi et al. 2020",
            "Where the message points.",
        ),
        "write_norm": Metric(
            "write norm",
            "‖what the head adds to the stream‖ at each position, output bias left out.",
            "stream units",
            "Elhage et al. 2021",
            "Whether later layers read it; two heads may write large vectors that cancel.",
        ),
        "write_share": Metric(
            "share of the layer's attention write",
            "Σ⟨head's write, layer's write⟩ / Σ‖layer's write‖² over positions. Signed; a layer's heads and its "
            "output bias add up to 1.",
            "share",
            "projection on the total",
            "A share of effect: a head with a small share may decide an output.",
        ),
        "ablation_repeats": Metric(
            "change of loss on repeats without the head",
            "Loss of the second copy of repeated random tokens with the head ablated, less the loss with it; the null "
            "is the same change for other heads of the model.",
            "nat",
            "Olsson et al. 2022 (ablations)",
            "What the head does elsewhere; other heads may make up for its loss.",
        ),
        "ablation_text": Metric(
            "change of loss on text without the head",
            "Loss of next tokens of text with the head ablated, less the loss with it; the null is the same change for "
            "other heads of the model.",
            "nat",
            "Michel et al. 2019 (ablations)",
            "What the head does: it says only that it matters there.",
        ),
    }
    | WEIGHT_NOTES
)

for _name, _note in TABLED.items():
    METRICS.setdefault(_name, _note)  # one that is measured already says more
NOTES = METRICS
