"""What a cell keeps: retention, exact unrolling, half-lives, and how much of a write is gate and how much content.

    R[T, s] = prod_{u = s+1..T} f_u,    c_T = sum_s R[T, s] o w_s + R[T, start] o c_start        (exact)
    alpha[T, s] = R[T, s] o i_s         what stands in the place of attention, channel by channel, over messages g_s
    half-life   = ln 2 / (-mean ln f)   steps; infinite for f = 1, zero where a gate is shut
    horizon     = sum_s R[T, s]         steps that count; 1 / (1 - f) for a constant gate and long T

Retention is multiplied up step by step, never through logarithms, so that shut gates give exact zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.checks import relative
from mechview.errors import UsageError
from mechview.recurrent.cells import CellTrace

MOST_NUMBERS = 2**28  # float64 numbers of a retention tensor: 2 GiB


def retention(forget: Float[Tensor, "step cell"]) -> Float[Tensor, "step past cell"]:
    """`R[T, s]`: what is left at step T of what was written at step s; zero for s after T.

    Raises:
        UsageError: the tensor would not fit into 2 GiB.
    """
    steps, cells = forget.shape
    if steps * steps * cells > MOST_NUMBERS:
        raise UsageError(f"the retention of {cells} cells over {steps} steps is too large: give a shorter prompt")
    kept = forget.new_zeros(steps, steps, cells)
    for step in range(steps):
        if step:
            kept[step, :step] = forget[step] * kept[step - 1, :step]
        kept[step, step] = 1.0
    return kept


def start_retention(forget: Float[Tensor, "step cell"]) -> Float[Tensor, "step cell"]:
    """What is left at each step of the state before step 0."""
    return forget.cumprod(0)


def unrolled(trace: CellTrace) -> Float[Tensor, "step cell"]:
    """The cell state as a sum over everything that was ever written."""
    kept = retention(trace.forget_gate)
    return (kept * trace.writes).sum(1) + start_retention(trace.forget_gate) * trace.start


def unrolling_error(trace: CellTrace) -> float:
    """`max|sum - cell| / max|cell|`: the check that stands beside every retention."""
    return relative(unrolled(trace), trace.cell)


def channel_attention(trace: CellTrace) -> Float[Tensor, "step past cell"]:
    """`R o i`: the weight with which the candidate of each earlier step stands in the cell now."""
    return retention(trace.forget_gate) * trace.input_gate


def half_lives(forget: Float[Tensor, "*row step cell"]) -> Float[Tensor, "cell"]:
    """Steps after which half of a write is left, at the channel's mean log gate; infinite where nothing is lost."""
    rate = forget.double().flatten(0, -2).log().mean(0).abs()  # a gate of 1 loses nothing: +0, never -0
    return math.log(2.0) / rate


def horizons(forget: Float[Tensor, "step cell"]) -> Float[Tensor, "step cell"]:
    """Effective number of steps in the cell: the sum of retentions."""
    kept, found = torch.zeros_like(forget[0]), []
    for gate in forget:
        kept = 1.0 + gate * kept
        found.append(kept)
    return torch.stack(found)


@dataclass(frozen=True)
class Split:
    """Variance of the log size of writes, in shares of the whole: gate + content + covariance = 1.

    `covariance` is 2 Cov(log gate, log content) as a share; `variance` the whole, in nats squared; `dropped`
    counts writes of size zero, which have no logarithm.
    """

    gate: float
    content: float
    covariance: float
    variance: float
    dropped: int

    @property
    def gate_share(self) -> float:
        """Share that goes with the gate: its variance and half of the covariance."""
        return self.gate + self.covariance / 2


def variance_split(gate: Float[Tensor, "*group _sample"], content: Float[Tensor, "*group _sample"]) -> Split:
    """How the size of writes varies inside each group (a channel, a head): by the gate or by the content.

    Group means are taken out first: what distinguishes channels is not gating.
    """
    size = (gate * content).abs()
    there = (size > 0) & torch.isfinite(size)
    n = there.sum(-1, keepdim=True).clamp(min=1)
    logs = [torch.where(there, part.abs().double().clamp(min=1e-300).log(), 0.0) for part in (gate, content)]
    logs = [torch.where(there, part - part.sum(-1, keepdim=True) / n, 0.0) for part in logs]
    count = int(there.sum())
    own = [float(part.square().sum()) / max(count, 1) for part in logs]
    mixed = 2 * float((logs[0] * logs[1]).sum()) / max(count, 1)
    whole = sum(own) + mixed
    gated, filled, both = (part / whole if whole > 0 else math.nan for part in (*own, mixed))
    return Split(gated, filled, both, whole, there.numel() - count)
