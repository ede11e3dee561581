"""Copying by eigenvalues: does a head's full message raise the token it reads?

The eigenvalues of `E M U` that are not zero are those of the r x r matrix `W_O (U E) W_V`. Score:
`sum(lambda) / sum(|lambda|)`, from -1 (every direction is turned round) to 1 (every direction is copied), blind to
size (Elhage et al. 2021). `U E` is far from random, with tied embeddings positive; so the null is random W_V and W_O
between the same U and E, behind the same norms, layer by layer, and its spectrum is kept beside the head's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from mechview.factors import HeadFactors
from mechview.heads.vocabulary import Reading, kept_ids, key_rows, token_gram, unembedding
from mechview.heads.weight_scores import WeightScore, head_factors_of, head_layers, named, random_heads, score_row
from mechview.models.weights import HasWeights, ModelWeights, Stack, weights_of
from mechview.results import Result

DRAWS = 16
METRIC = "copying_eigenvalue"


@dataclass(frozen=True)
class HeadSpectrum:
    """Eigenvalues of one head's full message, by modulus descending, and the score they give."""

    score: WeightScore
    eigenvalues: Complex[Tensor, "rank"]


@dataclass(frozen=True)
class Copying(Result):
    """Spectra of heads, and of random heads of each layer (of norm 1, as only their shape says anything)."""

    heads: tuple[HeadSpectrum, ...]
    null: dict[int, Complex[Tensor, "draw rank"]] = field(repr=False)
    reading: Reading
    excluded: int
    model: str = "arrays"
    revision: str | None = None

    def score(self, label: str) -> WeightScore:
        return next(head.score for head in self.heads if head.score.label == label)


@torch.no_grad()
def copying(
    model: ModelWeights | HasWeights,
    *,
    layers: Sequence[int] | None = None,
    space: str = "embed",
    rows: str = "raw",
    centre: bool = False,
    special: bool = False,
    exclude: Sequence[int] = (),
    fold: bool = True,
    stack: Stack | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Copying:
    """Copying scores and spectra of the heads of some layers, beside random heads.

    Raises:
        UnsupportedError: messages of this model or stack have no logits of their own.
    """
    weights, reading = weights_of(model), Reading(space, rows, centre).checked()
    ids = kept_ids(weights.shape.d_vocab, getattr(model, "tokenizer", None), special, exclude)
    found: list[HeadSpectrum] = []
    null: dict[int, Tensor] = {}
    between: Tensor | None = None
    generator = torch.Generator().manual_seed(seed)
    for attention, several in head_layers(weights, layers, stack):
        if between is None:  # rows depend on the layer only through the kind of its norm
            readout = unembedding(weights, weights.ends(), ids, attention.stack, reading, fold)
            between = token_gram(key_rows(weights, ids, reading, attention, fold), readout)
        random = spectra(random_heads(attention, draws, fold, generator), between)
        null[attention.layer] = random / random.abs().square().sum(-1, keepdim=True).sqrt().clamp_min(1e-300)
        heads = head_factors_of(attention, fold, several)
        for factors, values in zip(heads, spectra(heads, between), strict=True):
            score = score_row(factors, METRIC, float(copying_score(values)), copying_score(random))
            found.append(HeadSpectrum(score, values))
    return Copying(
        heads=tuple(found), null=null, reading=reading, excluded=weights.shape.d_vocab - len(ids), **named(model)
    )


def spectra(heads: list[HeadFactors], between: Float[Tensor, "d_model d_model"]) -> Complex[Tensor, "head rank"]:
    """Eigenvalues of `W_O (U E) W_V` of each head, by modulus descending."""
    core = torch.stack([f.output.double() @ between @ f.message.left.double() for f in heads])
    values = torch.linalg.eigvals(core)
    order = values.abs().sort(dim=-1, descending=True, stable=True).indices
    return values.gather(-1, order)


def copying_score(values: Complex[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    """`sum(lambda) / sum(|lambda|)`; 0 where all eigenvalues are zero."""
    size = values.abs().sum(-1)
    return values.sum(-1).real / size.where(size > 0, 1.0)
