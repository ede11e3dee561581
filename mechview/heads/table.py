"""The head table: spectra, norms and ranks of every head's pattern and message, with nulls and parity.

Singular values are those of the pure maps (no biases, no attention scale), norms folded unless asked
otherwise; a rotary head's pattern is taken at a stated offset. The null of a rank is the same rank for
Gaussian factors of the same sizes: what no training would give. Norms have no null and say so by NaN.
Stable rank: `||M||_F^2 / ||M||_2^2`. Effective rank: `exp(entropy(S / sum S))` (Roy and Vetterli 2007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.checks import Parity
from mechview.errors import HeadError
from mechview.factors import HeadFactors, layer_factors
from mechview.heads.labels import HeadName, Placed, placed_heads
from mechview.lowrank import LowRank
from mechview.manifest import sides_manifest
from mechview.models.weights import HasWeights, ModelShape, ModelWeights, Stack, weights_of
from mechview.reprs import short_repr
from mechview.results import Result

NULL_DRAWS = 8
UNITS = {"norm": "weight units", "top_singular_value": "weight units", "stable_rank": "rank", "effective_rank": "rank"}


@dataclass(frozen=True)
class Null:
    """What a quantity is without structure: mean and standard deviation over `n` draws."""

    mean: float
    sd: float
    n: int


NO_NULL = Null(float("nan"), float("nan"), 0)


@dataclass(frozen=True)
class HeadRow:
    """One head: its place, its singular values (descending), and its parity errors where measured."""

    __repr__ = short_repr

    label: str
    layer: int
    head: int
    kv_head: int
    stack: Stack
    offset: int | None
    pattern_values: Float[Tensor, "rank"]
    message_values: Float[Tensor, "rank"]
    pattern_error: float = float("nan")
    message_error: float = float("nan")

    def values(self, side: str) -> Float[Tensor, "rank"]:
        return self.pattern_values if side == "pattern" else self.message_values


@dataclass(frozen=True)
class HeadTable(Result):
    """Rows of heads, and the nulls of their ranks. `folded` and `dtype` say how they were computed."""

    model: str
    revision: str | None
    rows: tuple[HeadRow, ...]
    nulls: dict[str, Null]
    folded: bool
    dtype: str

    def with_parity(self, parity: Parity) -> HeadTable:
        """The table with the errors of a parity check beside its heads."""
        nan = float("nan")
        patterns, messages = parity.errors("pattern"), parity.errors("message")
        rows = (
            replace(row, pattern_error=patterns.get(row.label, nan), message_error=messages.get(row.label, nan))
            for row in self.rows
        )
        return replace(self, rows=tuple(rows))


def head_table(
    weights: ModelWeights | HasWeights,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[str | HeadName | tuple[int, int]] | None = None,
    stack: Stack | None = None,
    fold: bool = True,
    offset: int = 0,
    parity: Parity | None = None,
    seed: int = 0,
) -> HeadTable:
    """Spectra of pattern and message for heads of a model; only the layers asked for are read.

    Args:
        layers: layers to read, all unless given.
        heads: heads to keep, as `"L5H1"`, `"E.L5H1"`, or `(5, 1)` in every stack.
        stack: the one stack to read, of a model with several; all unless given.
        offset: where a rotary pattern is taken.
        parity: errors to stand beside the heads, from `mv.parity`.
    """
    source = getattr(weights, "source", None)
    told = sides_manifest(
        weights, hashed=layers is None and heads is None, layers=layers, heads=heads, stack=stack, fold=fold,
        offset=offset, seed=seed,
    )  # fmt: skip
    weights = weights_of(weights)
    kept = None if heads is None else placed_heads(heads, weights.shape, stack)
    wanted = _wanted(weights.shape, layers, kept)
    rows: list[HeadRow] = []
    dtype = ""
    for name in [stack] if stack else weights.shape.stacks:
        for layer in (n for n in wanted if n < weights.shape.layers(name) and _asked(kept, name, n)):
            factors = layer_factors(weights, layer=layer, fold=fold, stack=name)
            dtype = str(factors[0].output.dtype).removeprefix("torch.")
            rows += [row for row in layer_rows(factors, offset) if kept is None or (name, layer, row.head) in kept]
    generator = torch.Generator().manual_seed(seed)
    table = HeadTable(
        model=getattr(source, "name", "arrays"),
        revision=getattr(source, "revision", None),
        rows=tuple(rows),
        nulls=rank_nulls(weights.shape.d_model, weights.shape.d_head, generator.initial_seed()),
        folded=fold,
        dtype=dtype,
        manifest=told,
    )
    return table if parity is None else table.with_parity(parity)


def layer_rows(factors: list[HeadFactors], offset: int = 0) -> list[HeadRow]:
    """Rows of one layer; the heads' factors are decomposed in one batch."""
    at = offset if factors[0].needs_offset else None
    patterns, messages = [f.pattern(at) for f in factors], [f.message for f in factors]
    S_pattern, S_message = stacked(patterns).singular_values(), stacked(messages).singular_values()
    return [
        HeadRow(f.label, f.layer, f.head, f.kv_head, f.stack, at, S_pattern[n], S_message[n])
        for n, f in enumerate(factors)
    ]


def stacked(factors: list[LowRank]) -> LowRank:
    """Maps of equal size as one batch."""
    return LowRank(torch.stack([f.left for f in factors]), torch.stack([f.right for f in factors]))


def norm(S: Float[Tensor, "rank"]) -> float:
    return float(S.double().square().sum().sqrt())


def stable_rank(S: Float[Tensor, "rank"]) -> float:
    """0 for the zero map."""
    return float(S.double().square().sum() / S.double()[0].square()) if S[0] > 0 else 0.0


def effective_rank(S: Float[Tensor, "rank"]) -> float:
    """0 for the zero map."""
    if not S[0] > 0:
        return 0.0
    share = S.double() / S.double().sum()
    return float(torch.special.entr(share).sum().exp())


MEASURES = {
    "norm": norm,
    "top_singular_value": lambda S: float(S[0]),
    "stable_rank": stable_rank,
    "effective_rank": effective_rank,
}


@lru_cache(maxsize=8)
def rank_nulls(d_model: int, d_head: int, seed: int) -> dict[str, Null]:
    """Stable and effective rank of products of Gaussian factors `[d_model, d_head] [d_head, d_model]`."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(NULL_DRAWS, d_model, d_head, generator=generator, dtype=torch.float64)
    right = torch.randn(NULL_DRAWS, d_head, d_model, generator=generator, dtype=torch.float64)
    spectra = LowRank(left, right).singular_values()
    nulls = dict.fromkeys(MEASURES, NO_NULL)
    for name in ("stable_rank", "effective_rank"):
        draws = torch.tensor([MEASURES[name](S) for S in spectra], dtype=torch.float64)
        nulls[name] = Null(float(draws.mean()), float(draws.std()), NULL_DRAWS)
    return nulls


def _asked(kept: Sequence[Placed] | None, stack: Stack, layer: int) -> bool:
    return kept is None or any(place[:2] == (stack, layer) for place in kept)


def _wanted(shape: ModelShape, layers: Sequence[int] | None, heads: Sequence[Placed] | None) -> list[int]:
    count = max(shape.n_layers, shape.n_encoder_layers)
    wanted = sorted(set(layers) if layers is not None else {layer for _, layer, _ in heads or ()} or set(range(count)))
    outside = next((layer for layer in wanted if not 0 <= layer < count), None)
    if outside is not None:
        raise HeadError(f"layer {outside} does not exist: this model has layers 0 to {count - 1}")
    return wanted
