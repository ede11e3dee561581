"""The stream as a cell state over depth: forget gates, erasure, retention, half-lives, dilution (SPIN.md, D.2).

    x_K = x_0 + sum_k w_k                 exact: read algebraically, every forget gate is 1
    f_k = 1 + <w_k, x_{k-1}> / |x_{k-1}|^2          effective gate: below 1 a write erases, above 1 it amplifies
    e_{m <- k} = -<w_m, w_k> / |w_k|^2              how much of write k a later write m takes back
    rho_k(m) = 1 - sum_{k < l <= m} e_{l <- k}      retention; half-life = first m with rho <= 1/2, else censored

Writes are centred over tokens: otherwise the mean vector that all tokens share dominates every product. All
four are ratios of sums over tokens of inner products, so they are functions of one Gram matrix of the writes,
`G[k, l] = sum_t <w_k(t), w_l(t)>` with `x_0` as number 0; bootstraps add up Gram matrices of prompts, and the
null of other tokens replaces the numerators by `<w_k(t), w_l(pi t)>`. Dilution is of the raw stream, which is
what the final norm divides by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechview.errors import PromptError

START = "embed"
MASSIVE = 4.0
BLOCK = 16  # tokens of a block where one prompt stands alone


@dataclass(frozen=True)
class Stream:
    """What was written to the stream of some tokens, in the order of writing; `writes[0]` is the stream before.

    `writes` are centred over the tokens, `rms` is of the raw stream after each write; `group` numbers the
    prompt (or block of tokens) that each token belongs to. `error` is of the sum against the model's own stream.
    """

    names: tuple[str, ...]
    writes: Float[Tensor, "write token d_model"]
    rms: Float[Tensor, "write token"]
    group: Int[Tensor, "token"]
    error: float
    transported: bool = False
    left_out: int = 0


def stream_of(
    names: Sequence[str],
    writes: Float[Tensor, "write token d_model"],
    group: Int[Tensor, "token"] | None = None,
    error: float = 0.0,
    *,
    centre: bool = True,
    transported: bool = False,
    left_out: int = 0,
) -> Stream:
    """A stream record from raw writes, the first of which is the stream before all others.

    Raises:
        PromptError: fewer than two tokens, whose deviation from their mean is nothing.
    """
    raw = writes.double()
    if centre and raw.shape[1] < 2:
        raise PromptError(
            "memory over depth is measured against the mean over tokens: give at least two after the first"
        )
    return Stream(
        names=tuple(names),
        writes=raw - raw.mean(1, keepdim=True) if centre else raw,
        rms=raw.cumsum(0).square().mean(-1).sqrt(),
        group=torch.zeros(raw.shape[1], dtype=torch.int64) if group is None else group,
        error=error,
        transported=transported,
        left_out=left_out,
    )


def massive(writes: Float[Tensor, "write token d_model"]) -> Bool[Tensor, "token"]:
    """Tokens whose stream is at some depth more than four times as far out as the median token's.

    A handful of such tokens (delimiters with massive activations; Sun et al. 2024) carry most of the sum of
    squares and shift the mean of all others, so they are left out and counted. Distances are to the
    coordinate-wise median, which they do not move.
    """
    streams = writes.cumsum(0)
    size = (streams - streams.median(1, keepdim=True).values).norm(dim=-1)
    return (size[1:] > MASSIVE * size[1:].median(1, keepdim=True).values).any(0)


def grams(stream: Stream, *, even: bool = False) -> Float[Tensor, "_group write later"]:
    """A Gram matrix of the writes for each prompt; with `even` every token's squared writes sum to 1."""
    W, weight = stream.writes, torch.ones(stream.writes.shape[1], dtype=torch.float64)
    if even:
        weight = 1.0 / W.square().sum((0, 2)).clamp(min=1e-300)
    found = []
    for number in stream.group.unique():
        here = stream.group == number
        part = W[:, here] * weight[here, None].sqrt()
        found.append(einsum(part, part, "write token d, later token d -> write later"))
    return torch.stack(found)


def mixed_gram(stream: Stream, other: Int[Tensor, "token"]) -> Float[Tensor, "write later"]:
    """Products of each write with the later ones of another token: the numerators of the null."""
    return einsum(stream.writes, stream.writes[:, other], "write token d, later token d -> write later")


def other_tokens(count: int, generator: torch.Generator) -> Int[Tensor, "token"]:
    """A random assignment of another token to each: one cycle through all, so nobody gets itself."""
    order = torch.randperm(count, generator=generator)
    other = torch.empty_like(order)
    other[order] = order.roll(-1)
    return other


def forget_gates(
    gram: Float[Tensor, "write later"], products: Float[Tensor, "write later"] | None = None
) -> Float[Tensor, "_write"]:
    """`f_k` of every write after the start; `products` replaces the numerators (a null)."""
    met = (gram if products is None else products).triu(1).sum(0)
    size = gram.cumsum(0).cumsum(1).diagonal()
    return 1.0 + met[1:] / size[:-1]


def erasure(
    gram: Float[Tensor, "write later"], products: Float[Tensor, "write later"] | None = None
) -> Float[Tensor, "write later"]:
    """`e[k, m]`: the share of write k that the later write m takes back; 0 for writes that are not later."""
    return -(gram if products is None else products).triu(1) / gram.diagonal()[:, None]


def retention_curves(
    gram: Float[Tensor, "write later"], products: Float[Tensor, "write later"] | None = None
) -> Float[Tensor, "write later"]:
    """`rho[k, m]`: what is left of write k after write m; NaN before it was made."""
    kept = 1.0 - erasure(gram, products).cumsum(1)
    return kept.masked_fill(torch.ones_like(kept, dtype=torch.bool).tril(-1), math.nan)


def write_half_lives(kept: Float[Tensor, "write later"]) -> list[int | None]:
    """Writes until half is left; None where more than half is left at the end (censored)."""
    found: list[int | None] = []
    for k, row in enumerate(kept):
        gone = (row[k:] <= 0.5).nonzero()
        found.append(int(gone[0]) if len(gone) else None)
    return found


def dilution(rms: Float[Tensor, "write token"]) -> Float[Tensor, "write later"]:
    """`rms(x_k) / rms(x_m)`, mean over tokens: what the growth of the stream alone leaves of write k at m."""
    return (rms[:, None] / rms[None]).mean(-1)


def token_forget_gates(stream: Stream) -> Float[Tensor, "_write token"]:
    """`f_k` of each token by itself, of every write after the start; NaN where the stream before is nothing."""
    before = stream.writes.cumsum(0)[:-1]
    return 1.0 + (stream.writes[1:] * before).sum(-1) / before.square().sum(-1)


def blocks(lengths: Sequence[int]) -> Int[Tensor, "token"]:
    """The group of each token: its prompt, or of a single prompt its block of 16 tokens."""
    if len(lengths) > 1:
        return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(list(lengths)))
    return torch.arange(lengths[0]) // BLOCK
