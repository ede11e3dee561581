"""An LSTM's memory over time: half-lives, horizons, the split of writes, mass against lag, gates over text.

Nulls of an LSTM are permuted copies (every gate's matrices with their entries in another order, biases kept) on
the same prompts; the null of other tokens gives each step the input gate of another step of the same
prompt, which breaks what the gate knows about the content it admits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.recurrent.cells import CellTrace, LstmTrace, Read, lstm_trace
from mechview.recurrent.permuted import permuted_lstms
from mechview.recurrent.positions import correlation, half_lag
from mechview.recurrent.retention import (
    Split,
    channel_attention,
    half_lives,
    horizons,
    retention,
    unrolling_error,
    variance_split,
)
from mechview.recurrent.rows import GateRow, MemoryRow, plain
from mechview.recurrent.stream import other_tokens
from mechview.recurrent.verdicts import Measured, bootstrap, null_of
from mechview.recurrent.weights import Lstm

SHUFFLES = 20
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
GATE_NAMES = ("input", "forget", "output", "candidate", "cell")


@dataclass(frozen=True)
class LstmSide:
    """What was measured of an LSTM; `error` is the worst of the exact unrolling of all cells."""

    traces: tuple[LstmTrace, ...]
    gates: tuple[GateRow, ...]
    rows: tuple[MemoryRow, ...]
    headline: dict[str, Measured]
    error: float


def lstm_side(model: Lstm, prompts: Sequence[Read], copies: int, generator: torch.Generator) -> LstmSide:
    """All numbers of an LSTM on some prompts."""
    traces = tuple(lstm_trace(model, prompt) for prompt in prompts)
    null = [headline([lstm_trace(one, p) for p in prompts]) for one in permuted_lstms(model, copies, generator)]
    other = [headline([scrambled(t, generator) for t in traces]) for _ in range(SHUFFLES)]
    each = [headline([trace]) for trace in traces]
    found = {
        name: Measured(
            value,
            *interval([one[name] for one in each], generator),
            tokens=null_of([one[name] for one in other]) if name in SCRAMBLED else Measured(0.0).tokens,
            weights=null_of([one[name] for one in null]),
        )
        for name, value in headline(traces).items()
    }
    summaries = [
        MemoryRow("lstm", "time", "all", name, value, n=len(traces), judged=True) for name, value in found.items()
    ]
    return LstmSide(
        traces=traces,
        gates=tuple(row for number, trace in enumerate(traces) for row in gate_rows(trace, number)),
        rows=(*summaries, *(row for cells in zip(*(t.cells for t in traces), strict=True) for row in cell_rows(cells))),
        headline=found,
        error=max(unrolling_error(cell) for trace in traces for cell in trace.cells),
    )


def interval(values: Sequence[float], generator: torch.Generator) -> tuple[float, float]:
    """Bootstrap interval of the mean over prompts."""
    lo, hi = bootstrap(torch.tensor(values, dtype=torch.float64)[:, None] / len(values), lambda total: total, generator)
    return float(lo), float(hi)


SCRAMBLED = ("gate_share", "gate_content_correlation", "half_lag")


def headline(traces: Sequence[LstmTrace]) -> dict[str, float]:
    """The numbers that stand beside the transformer's."""
    cells = [cell for trace in traces for cell in trace.cells]
    split = pooled_split(cells, lambda c: (c.input_gate, c.candidate))
    emitted = pooled_split(cells, emission)
    return {
        "forgetting": float(torch.cat([1.0 - c.forget_gate.flatten() for c in cells]).mean()),
        "half_life": float(torch.cat([half_lives(c.forget_gate) for c in cells]).median()),
        "horizon": float(torch.cat([horizons(c.forget_gate)[-1] for c in cells]).mean()),
        "gate_share": split.gate_share,
        "gate_content_correlation": correlation(split),
        "output_share": emitted.content + emitted.covariance / 2,
        "half_lag": float(half_lag(lag_profile(cells))),
    }


def emission(cell: CellTrace) -> tuple[Tensor, Tensor]:
    """Size of the squashed state of a step, and the share of it that the output gate lets out."""
    held = cell.cell.tanh()
    size = held.norm(dim=-1, keepdim=True)
    return size, (cell.output_gate * held).norm(dim=-1, keepdim=True) / size.clamp(min=1e-300)


def pooled_split(cells: Sequence[CellTrace], parts: Callable[[CellTrace], tuple[Tensor, Tensor]]) -> Split:
    """The split inside each channel of each cell, prompts one after the other."""
    groups = [[part.mT for part in parts(cell)] for cell in cells]
    longest = max(part.shape[-1] for gate, _ in groups for part in [gate])
    filled = [[torch.nn.functional.pad(part, (0, longest - part.shape[-1])) for part in pair] for pair in groups]
    return variance_split(torch.cat([gate for gate, _ in filled]), torch.cat([content for _, content in filled]))


def scrambled(trace: LstmTrace, generator: torch.Generator) -> LstmTrace:
    """The same trace with each step's input gate taken from another step."""
    from dataclasses import replace

    def mixed(cell: CellTrace) -> CellTrace:
        count = len(cell.input_gate)
        other = other_tokens(count, generator) if count > 1 else torch.zeros(1, dtype=torch.int64)
        return replace(cell, input_gate=cell.input_gate[other])

    return replace(trace, layers=tuple(tuple(mixed(cell) for cell in layer) for layer in trace.layers))


def lag_profile(cells: Sequence[CellTrace]) -> Float[Tensor, "_lag"]:
    """Mean of `R[T, T - lag] o i` over channels and steps, made to sum to 1: the cell's mass against lag."""
    longest = max(len(cell.input_gate) for cell in cells)
    total = torch.zeros(longest, dtype=torch.float64)
    for cell in cells:
        alpha = channel_attention(cell).mean(-1)
        for lag in range(len(alpha)):
            total[lag] += alpha.diagonal(-lag).sum()
    return total / total.sum()


def gate_rows(trace: LstmTrace, number: int) -> list[GateRow]:
    """Each gate at each token: mean and quartiles over a layer's channels; of candidate and cell the size."""
    found = []
    for cell in trace.cells:
        values = (cell.input_gate, cell.forget_gate, cell.output_gate, cell.candidate.abs(), cell.cell.abs())
        for gate, part in zip(GATE_NAMES, values, strict=True):
            part = cell.in_text_order(part)
            low, high = torch.quantile(part, torch.tensor([0.25, 0.75], dtype=part.dtype), dim=-1)
            found += [
                GateRow("lstm", number, pos, token.shown, cell.label, gate, mean, one, other, part.shape[-1])
                for pos, (token, mean, one, other) in enumerate(
                    zip(trace.tokens, part.mean(-1).tolist(), low.tolist(), high.tolist(), strict=True)
                )
            ]
    return found


def cell_rows(cells: Sequence[CellTrace]) -> list[MemoryRow]:
    """One direction of one layer over all prompts: spectra, quantiles and profiles."""
    label, forget = cells[0].label, torch.cat([cell.forget_gate for cell in cells])
    lives = half_lives(forget)
    found = [plain("lstm", "time", label, "half_life", float(life), index=n) for n, life in enumerate(lives)]
    finite = torch.where(torch.isinf(lives), torch.finfo(lives.dtype).max, lives)
    for share, value in zip(QUANTILES, torch.quantile(finite, torch.tensor(QUANTILES, dtype=lives.dtype)), strict=True):
        found.append(plain("lstm", "time", label, f"half_life_q{round(100 * share)}", float(value)))
    for gate in ("input", "forget", "output"):
        values = torch.cat([getattr(cell, f"{gate}_gate").flatten() for cell in cells])
        found.append(plain("lstm", "time", label, f"mean_{gate}_gate", float(values.mean()), n=len(values)))
    kept = max((retention(cell.forget_gate) for cell in cells), key=len).mean(-1)
    mass = lag_profile(cells)
    found += [
        plain("lstm", "time", label, "retention", float(kept.diagonal(-lag).mean()), lag=lag)
        for lag in range(len(kept))
    ]
    return found + [plain("lstm", "time", label, "lag_mass", float(value), lag=n) for n, value in enumerate(mass)]
