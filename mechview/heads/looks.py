"""Metrics of where heads look: previous, duplicate and induction attention, sinks, distance, position.

Indices say what is meant: for a prompt of random tokens `R` of period `n` given twice after what the
tokenizer puts in front, a query `q` of the second copy finds its own token at `q - n` (duplicate) and the
token that followed it at `q - n + 1` (induction, "the stripe"). Means run over queries, heads kept apart.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError
from mechview.heads.passes import LayerPass
from mechview.heads.registry import metric

REPEATS = "Random tokens, given twice (periods 25 and 50 where they fit)."
WEIGHTED = (
    "The same, with attention weighted by what is sent: A‖[x, 1] message‖ of each key as a share of its query's sum. "
)


@metric(
    "previous_token", "repeats", source="Elhage et al. 2021", where="self",
    definition=f"Mean weight on k = q − 1. {REPEATS}",
    cannot="Why: position and content of the neighbour both lead there; see the positional share of the score.",
)  # fmt: skip
def previous_token(seen: LayerPass) -> Float[Tensor, "head"]:
    return seen.mass(seen.offset_cells(1, seen.prompt.start + 1))


@metric(
    "duplicate_token", "repeats", source="Wang et al. 2022", where="self",
    definition=f"Mean weight on the earlier copy of the query's token, k = q − n, over the second copy. {REPEATS}",
    cannot="Duplicates at other distances, and words of several tokens.",
)  # fmt: skip
def duplicate_token(seen: LayerPass) -> Float[Tensor, "head"]:
    return seen.mass(seen.offset_cells(seen.prompt.period, seen.prompt.start + seen.prompt.period))


@metric(
    "induction", "repeats", source="Elhage et al. 2021; Olsson et al. 2022", where="causal", title="induction (stripe)",
    definition=f"Mean weight on the token after the earlier copy of the query's token, k = q − n + 1, over the second "
    f"copy. {REPEATS}",
    cannot="What is sent from there (see copying), and induction over similar instead of equal tokens.",
)  # fmt: skip
def induction(seen: LayerPass) -> Float[Tensor, "head"]:
    return seen.mass(seen.offset_cells(seen.prompt.period - 1, seen.prompt.start + seen.prompt.period))


@metric(
    "prefix_matching", "fourfold", source="Olsson et al. 2022", where="causal",
    definition="25 random tokens four times (as often as they fit): mean weight on all tokens that follow earlier "
    "copies of the query's token, k = q − mn + 1 for m = 1, 2, …, over all copies but the first.",
    cannot="Which of the copies is read; with the first copy alone it is the stripe.",
)  # fmt: skip
def prefix_matching(seen: LayerPass) -> Float[Tensor, "head"]:
    period, start, stop = seen.prompt.period, seen.prompt.start, seen.prompt.stop
    cells = torch.zeros_like(seen.visible)
    for offset in range(period - 1, stop - start, period):
        cells |= seen.offset_cells(offset, start + period)
    return seen.mass(cells)


@metric(
    "entropy", "text", source="Shannon 1948", title="attention entropy", unit="nat",
    definition="Mean over queries of −Σ A ln A, in nats.",
    cannot="What is attended to; long prompts allow larger values, so compare with even attention or the relative entropy.",
)  # fmt: skip
def entropy(seen: LayerPass) -> Float[Tensor, "head"]:
    return row_entropy(seen)[:, seen.visible.sum(1) > 1].mean(1)


@metric(
    "relative_entropy", "text", source="Shannon 1948", unit="share",
    definition="Mean over queries of the entropy of attention divided by that of even attention on the visible keys.",
    cannot="Whether the keys that are left out are left out for their place or for their content.",
)  # fmt: skip
def relative_entropy(seen: LayerPass) -> Float[Tensor, "head"]:
    count = seen.visible.sum(1)
    rows = count > 1
    return (row_entropy(seen)[:, rows] / count[rows].double().log()).mean(1)


def row_entropy(seen: LayerPass) -> Float[Tensor, "head q_pos"]:
    return torch.special.entr(seen.pattern.double()).sum(-1)


@metric(
    "sink_mass", "text", source="Xiao et al. 2023", title="attention on the first key",
    definition="Mean weight on the first position, over queries that see it beside others, on text.",
    cannot="Whether the first token is read for its content or only rested on; without a BOS it is an ordinary token.",
)  # fmt: skip
def sink_mass(seen: LayerPass) -> Float[Tensor, "head"]:
    return seen.mass(first_key(seen))


@metric(
    "learned_sink_mass", "text", source="OpenAI 2025 (gpt-oss)", title="weight of the learned sink",
    definition="1 − Σ A: what the learned sink in the softmax takes, mean over queries, on text.",
    cannot="What a sink token would get: models with learned sinks need none.",
)  # fmt: skip
def learned_sink_mass(seen: LayerPass) -> Float[Tensor, "head"]:
    if seen.attention.sinks is None:
        raise UnsupportedError("learned sinks do not exist in this model: its attention rows sum to 1")
    return 1 - seen.pattern.double().sum(-1).mean(1)


@metric(
    "mean_distance", "text", source="Vig and Belinkov 2019", where="self", unit="tokens",
    definition="Mean over queries of Σ A |q − k|, on text.",
    cannot="The shape of the profile: near and far attention average to a middle distance (see distance profile).",
)  # fmt: skip
def mean_distance(seen: LayerPass) -> Float[Tensor, "head"]:
    place = torch.arange(seen.pattern.shape[1], device=seen.pattern.device)
    apart = (place[:, None] - place[None, :]).abs()
    return (seen.pattern.double() * apart).sum(-1)[:, seen.visible.sum(1) > 1].mean(1)


@metric(
    "value_weighted_previous_token", "repeats", source="Kobayashi et al. 2020", where="self", unit="share",
    definition=f"{WEIGHTED}On k = q − 1. {REPEATS}",
    cannot="Where the message points, and what of it is read later.",
)  # fmt: skip
def value_weighted_previous_token(seen: LayerPass) -> Float[Tensor, "head"]:
    return seen.mass(seen.offset_cells(1, seen.prompt.start + 1), seen.value_weighted)


@metric(
    "value_weighted_duplicate_token", "repeats", source="Kobayashi et al. 2020", where="self", unit="share",
    definition=f"{WEIGHTED}On the earlier copy of the query's token, k = q − n. {REPEATS}",
    cannot="Where the message points, and what of it is read later.",
)  # fmt: skip
def value_weighted_duplicate_token(seen: LayerPass) -> Float[Tensor, "head"]:
    cells = seen.offset_cells(seen.prompt.period, seen.prompt.start + seen.prompt.period)
    return seen.mass(cells, seen.value_weighted)


@metric(
    "value_weighted_induction", "repeats", source="Kobayashi et al. 2020", where="causal", unit="share",
    definition=f"{WEIGHTED}On the stripe k = q − n + 1. {REPEATS}",
    cannot="Where the message points, and what of it is read later.",
)  # fmt: skip
def value_weighted_induction(seen: LayerPass) -> Float[Tensor, "head"]:
    cells = seen.offset_cells(seen.prompt.period - 1, seen.prompt.start + seen.prompt.period)
    return seen.mass(cells, seen.value_weighted)


@metric(
    "value_weighted_sink", "text", source="Kobayashi et al. 2020", unit="share",
    definition=f"{WEIGHTED}On the first key, on text.",
    cannot="Whether the little that is sent from a sink matters as a constant.",
)  # fmt: skip
def value_weighted_sink(seen: LayerPass) -> Float[Tensor, "head"]:
    return seen.mass(first_key(seen), seen.value_weighted)


def first_key(seen: LayerPass) -> Tensor:
    cells = torch.zeros_like(seen.visible)
    cells[:, 0] = seen.visible.sum(1) > 1
    return cells


@metric(
    "positional_share", "random", source="analysis of variance of the scores", where="self", unit="share", per="seed",
    title="positional share of the score",
    definition="Share of the variance of scores along rows (visible keys but the query's own) that the same cell has in every "
    "random prompt, from 4 prompts of 32 tokens; the rest is content. Unbiased, so it may fall below 0.",
    cannot="Content that depends on position through earlier layers counts as position.",
)  # fmt: skip
def positional_share(seen: list[LayerPass]) -> Float[Tensor, "head"]:
    if len(seen) < 2:
        raise UnsupportedError("the positional share compares several prompts")
    cells = ordinary_cells(seen[0])
    scores = torch.stack([_along_rows(one.scores.double(), cells) for one in seen])
    total, between = scores.square().mean((0, 2)), scores.mean(0).square().mean(1)
    within = scores.var(0).mean(1)
    return (between - within / len(seen)) / total


def ordinary_cells(seen: LayerPass) -> Tensor:
    """Visible cells of ordinary tokens but the query itself, which is one place and one token, in rows with several."""
    place = torch.arange(seen.pattern.shape[1], device=seen.pattern.device)
    inside = (place >= seen.prompt.start) & (place < seen.prompt.stop)
    cells = seen.visible & inside[:, None] & inside[None, :] & (place[:, None] != place[None, :])
    return cells & (cells.sum(1, keepdim=True) > 1)


def _along_rows(scores: Tensor, cells: Tensor) -> Float[Tensor, "head cell"]:
    """Scores less the mean of their row, which softmax ignores."""
    kept = scores.masked_fill(~cells, 0.0)
    mean = kept.sum(-1, keepdim=True) / cells.sum(-1, keepdim=True).clamp(min=1)
    return (kept - mean)[:, cells]
