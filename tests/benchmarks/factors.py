"""The factor tasks of GPT-2 small (12 layers x 12 heads, d_model 768, d_head 64), timed and checked side by side.

The reference is the original library's `FactoredMatrix` (TransformerLens 4.3) on the same float32 tensors. Weights
are random; a spectrum over a factor 30 inside each factor makes them as uneven as trained ones. Timing alternates
the two sides inside one process and keeps the minimum of each, so that a busy machine slows both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformer_lens import FactoredMatrix

from mechview.lowrank import LowRank, frobenius_norms

Answer = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Comparison:
    """Seconds and relative errors of one task, theirs (the original library) and ours."""

    task: str
    their_seconds: float
    our_seconds: float
    their_error: float
    our_error: float

    @property
    def ratio(self) -> float:
        return self.their_seconds / self.our_seconds


@dataclass(frozen=True)
class Task:
    """One question, asked of `FactoredMatrix` and of `LowRank`, and the error of an answer against float64."""

    factors: tuple[Tensor, Tensor]
    theirs: Callable[[FactoredMatrix], Answer]
    ours: Callable[[LowRank], Answer]
    error: Callable[[Answer, Tensor], float]


def gpt2_factors(kind: str, *, heads: tuple[int, ...] = (12, 12), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random `message` (W_V, W_O) or `pattern` (W_Q, W_K^T) factors of GPT-2 small's shape."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(*heads, 768, 64, generator=generator) for _ in range(2))
    uneven = torch.logspace(-1.0, -2.5, 64)
    if kind == "pattern":
        return first * uneven, (second * uneven).mT
    return first * uneven, (second * uneven).mT.contiguous()


def value_error(values: Tensor, product: Tensor) -> float:
    """Largest error of a singular value over the largest singular value, worst head."""
    exact = torch.linalg.svdvals(product)[..., : values.shape[-1]]
    return ((values.double() - exact).abs().amax(-1) / exact[..., 0]).max().item()


def svd_error(answer: tuple[Tensor, Tensor, Tensor], product: Tensor) -> float:
    """Worst of: singular values, reconstruction (relative to the largest entry) and orthonormality of both sides."""
    U, S, Vh = (x.double() for x in answer)
    identity = torch.eye(S.shape[-1], dtype=torch.float64)
    rebuilt = (U * S[..., None, :] @ Vh - product).abs().amax((-2, -1)) / product.abs().amax((-2, -1))
    skew = max((U.mT @ U - identity).abs().max().item(), (Vh @ Vh.mT - identity).abs().max().item())
    return max(value_error(S, product), rebuilt.max().item(), skew)


def norm_error(norms: Tensor, product: Tensor) -> float:
    return (norms.double() / torch.linalg.matrix_norm(product) - 1).abs().max().item()


def eigenvalue_error(values: Tensor, product: Tensor) -> float:
    """Largest difference of sorted moduli over the largest modulus: pairing complex values is not needed for it."""
    exact = torch.linalg.eigvals(product).abs().sort(descending=True).values[..., : values.shape[-1]]
    found = values.abs().double().sort(descending=True).values
    return ((found - exact).abs().amax(-1) / exact[..., 0]).max().item()


def _their_svd(matrix: FactoredMatrix) -> tuple[Tensor, ...]:
    U, S, V = matrix.svd()
    return U, S, V.mT


def tasks() -> dict[str, Task]:
    message, pattern = gpt2_factors("message"), gpt2_factors("pattern")
    return {
        "message SVD": Task(message, _their_svd, LowRank.svd, svd_error),
        "pattern SVD": Task(pattern, _their_svd, LowRank.svd, svd_error),
        "singular values": Task(message, lambda m: m.svd()[1], LowRank.singular_values, value_error),
        "Frobenius norm": Task(message, lambda m: m.norm(), frobenius_norms, norm_error),
        "eigenvalues": Task(message, lambda m: m.eigenvalues, LowRank.eigenvalues, eigenvalue_error),
    }


def compare(name: str, task: Task, *, repeats: int = 5, checked_heads: int = 2) -> Comparison:
    """Time both sides alternately; check the first `checked_heads` heads of layer 0 in float64."""
    left, right = task.factors
    theirs = ours = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        their_answer = task.theirs(FactoredMatrix(left, right))
        middle = time.perf_counter()
        our_answer = task.ours(LowRank(left, right))
        theirs, ours = min(theirs, middle - start), min(ours, time.perf_counter() - middle)
    product = left[0, :checked_heads].double() @ right[0, :checked_heads].double()
    errors = [task.error(_first(answer, checked_heads), product) for answer in (their_answer, our_answer)]
    return Comparison(name, theirs, ours, *errors)


def _first(answer: Answer, heads: int) -> Answer:
    return answer[0, :heads] if isinstance(answer, Tensor) else tuple(x[0, :heads] for x in answer)


def conditions() -> str:
    """What a ratio depends on: version, threads, and how busy the machine was."""
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {load}"
