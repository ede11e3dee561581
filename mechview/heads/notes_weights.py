"""What the scores from weights alone are: the part of the registry of `notes` that this code needs."""

from __future__ import annotations

from mechview.heads.registry import Metric as Note

RELATIONS = ("country_capital", "present_past", "singular_plural", "year_next", "own")


def _relation(name: str) -> dict[str, Note]:
    words = "pairs given by the user" if name == "own" else name.replace("_", " to ")
    return {
        f"relation_{name}": Note(
            f"relation, {words}",
            "Share of source words whose target is among the k tokens that the head's full message raises most. "
            "Null: targets of other pairs.",
            "share",
            "Elhelo and Geva 2024 (MAPS)",
            "Whether the head is used for it: attention and norms decide what it reads on text.",
        ),
        f"suppression_{name}": Note(
            f"suppression, {words}",
            "Share of source words whose target is among the k tokens that the head's full message lowers most. "
            "Null: targets of other pairs.",
            "share",
            "Elhelo and Geva 2024 (MAPS)",
            "Whether the head is used for it: attention and norms decide what it reads on text.",
        ),
    }


WEIGHT_NOTES: dict[str, Note] = {
    "copying_eigenvalue": Note(
        "copying by eigenvalues",
        "Σλ / Σ|λ| over the eigenvalues of E·M·U, from W_O (U E) W_V. Null: random W_V and W_O behind the same norms.",
        "share",
        "Elhage et al. 2021",
        "How strongly it copies: the score is blind to size; positive eigenvalues may serve frequent tokens.",
    ),
    "pattern_symmetry": Note(
        "pattern: symmetry",
        "tr(PP) / ‖P‖², 1 symmetric, −1 antisymmetric. Null: a random rotation between the head's two sides.",
        "share",
        "Saponati et al. 2025",
        "Which tokens attend to which; biases and positions other than the offset are left out.",
    ),
    "pattern_directionality": Note(
        "pattern: directionality",
        "(c − r) / (c + r), what column (key side) and row (query side) norms have beyond mean + 2 sd, summed; positive: the "
        "key side stands out. Null: random heads behind the same norms.",
        "share",
        "Saponati et al. 2025",
        "Anything free of the stream's basis: a rotation of the stream changes it.",
    ),
    "copy": Note(
        "copying of tokens",
        "Share of sampled tokens that are among the k their own full-message row raises most. Null: other tokens.",
        "share",
        "Wang et al. 2022; Elhage et al. 2021",
        "Copying on text: what the head attends to is not in it.",
    ),
    "copy_suppression": Note(
        "copy suppression",
        "Share of sampled tokens that are among the k their own full-message row lowers most. Null: other tokens.",
        "share",
        "McDougall et al. 2023",
        "Suppression on text: what the head attends to is not in it.",
    ),
    "successor": Note(
        "successor",
        "Share of words of ordered lists whose next word the head raises most among the list. Null: random targets.",
        "share",
        "Gould et al. 2023",
        "Words that are several tokens: they are left out.",
    ),
} | {metric: note for name in RELATIONS for metric, note in _relation(name).items()}
