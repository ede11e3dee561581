"""Memory of a transformer or an LSTM on prompts, and of both side by side, each number with its nulls.

The pattern/message article reads the residual stream as an LSTM's cell state, the pattern as its input gate, the
message as its output gate, and says that transformers never forget. Here each of these is a pair of numbers, one of
either side, with a verdict on the transformer's that its nulls give: nothing is decided beforehand. The message
is tried in *both* places, as output gate and as candidate. By algebra it is the candidate's: the pattern
multiplies it as the input gate multiplies the candidate; the output gate's counterpart is the read side (the
norm, W_Q, W_K, W_V, the unembedding). Source: SPIN.md, part D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from mechview.errors import PromptError, UsageError
from mechview.models.load import Model, load
from mechview.models.permuted import permuted_copy
from mechview.models.trace import Trace
from mechview.models.tracing import default_prompt
from mechview.recurrent.analogies import Analogy, analogies
from mechview.recurrent.cells import LstmTrace
from mechview.recurrent.depth import traced
from mechview.recurrent.depth_side import Depth, depth_headline, depth_of, depth_rows
from mechview.recurrent.facts import facts
from mechview.recurrent.load import is_lstm, load_lstm
from mechview.recurrent.lstm_side import LstmSide, lstm_side
from mechview.recurrent.modules import wrap_lstm
from mechview.recurrent.positions_side import (
    Positions,
    head_rows,
    positions_headline,
    positions_of,
    token_rows,
)
from mechview.recurrent.rows import GateRow, MemoryRow
from mechview.recurrent.stream import token_forget_gates
from mechview.recurrent.verdicts import Measured
from mechview.recurrent.weights import Lstm
from mechview.results import Result

COPIES = 5
FEWEST = 5  # permuted copies behind a verdict


@dataclass(frozen=True)
class Memory(Result):
    """All numbers, in two tables that both sides share, and the analogies with their verdicts.

    `error` is the worst completeness error: of the unrolled cell state, or of the stream's rows. `notes` say what was
    left out and why.
    """

    model: str
    beside: str | None
    gates: tuple[GateRow, ...]
    rows: tuple[MemoryRow, ...]
    analogies: tuple[Analogy, ...]
    error: float
    notes: tuple[str, ...]
    traces: tuple[Trace | LstmTrace, ...] = field(repr=False, default=())
    revision: str | None = None
    revision_beside: str | None = None

    def number(self, quantity: str, place: str | None = None, side: str | None = None) -> Measured:
        """One number by name.

        Raises:
            UsageError: nothing of that name was measured, or several things were.
        """
        found = [
            row for row in self.rows
            if row.quantity == quantity and place in (None, row.place) and side in (None, row.side)
        ]  # fmt: skip
        if len(found) != 1:
            raise UsageError(f"{len(found)} numbers are called {quantity}: say of which place")
        return found[0].found


def memory(
    model: Any = "toy",
    prompts: Sequence[Any] | str | None = None,
    *,
    beside: Any | None = None,
    copies: int = COPIES,
    causal: bool = True,
    bos: str = "auto",
    seed: int = 0,
) -> Memory:
    """Gates, retention and forgetting on prompts, with nulls.

    Args:
        model: a transformer (a Model, or what `load` opens), an LSTM (an `Lstm`, what `load_lstm` opens, or a module that
            holds one).
        prompts: texts, token ids, or for a bare LSTM matrices of input vectors; a default sentence unless given.
        beside: the other kind, measured on the same prompts; without it each analogy has one side only.
        copies: permuted copies behind the null of weights; fewer than 5 give no verdict from it.
        causal: also ablate every write (one pass for each, in every copy too).
        seed: of permutations, shuffles and bootstraps.

    Raises:
        UsageError: two models of the same kind, or a number of copies that is none.
        PromptError: a prompt that one of the two cannot read.
    """
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 0:
        raise UsageError(f"copies={copies!r} is not a number of permuted models")
    sides = [opened(one) for one in (model, beside) if one is not None]
    if len(sides) == 2 and isinstance(sides[0], Lstm) == isinstance(sides[1], Lstm):
        raise UsageError("beside= takes the other kind: a transformer beside an LSTM, or an LSTM beside a transformer")
    asked = prompts_of(sides, prompts)
    transformer = next((one for one in sides if isinstance(one, Model)), None)
    lstm = next((one for one in sides if isinstance(one, Lstm)), None)
    a = None if transformer is None else transformer_side(transformer, asked, copies, causal, bos, seed)
    b = None if lstm is None else lstm_side(lstm, asked, copies, torch.Generator().manual_seed(seed))
    told = facts(sides, hashed=False, copies=copies, causal=causal, bos=bos, seed=seed)
    return replace(together(sides, a, b, copies), manifest=told)


def opened(model: Any) -> Model | Lstm:
    """A transformer or an LSTM, from whatever names or holds one."""
    if isinstance(model, (Model, Lstm)):
        return model
    if isinstance(model, (nn.Module, dict)):
        return wrap_lstm(model)
    spec = str(model)
    return load_lstm(spec) if is_lstm(spec) else load(spec)


def prompts_of(sides: Sequence[Model | Lstm], prompts: Any) -> list[Any]:
    if prompts is None:
        asked = [default_prompt(one) for one in sides if isinstance(one, Model)]
        if not asked and getattr(sides[0], "tokenizer", None) is None:
            raise PromptError("this LSTM has no tokenizer: give prompts")
        return asked[:1] or [default_prompt(sides[0])]  # type: ignore[arg-type]
    found = [prompts] if isinstance(prompts, str) else list(prompts)
    if not found:
        raise PromptError("give at least one prompt: memory is measured on text")
    return found


@dataclass(frozen=True)
class TransformerSide:
    """What was measured of a transformer."""

    traces: tuple[Trace, ...]
    gates: tuple[GateRow, ...]
    rows: tuple[MemoryRow, ...]
    headline: dict[str, Measured]
    depth: Depth


def transformer_side(
    model: Model, prompts: Sequence[Any], copies: int, causal: bool, bos: str, seed: int
) -> TransformerSide:
    generator = torch.Generator().manual_seed(seed)
    traces = traced(model, prompts, bos)
    depth, positions = depth_of(model, traces, causal, generator), positions_of(traces, generator)
    nulls: list[tuple[Depth, Positions]] = []
    for _ in range(copies):
        one = permuted_copy(model, generator, ends=True)
        seen = [traced(one, [[token.id for token in trace.source_tokens or trace.tokens]], "no")[0] for trace in traces]
        nulls.append((depth_of(one, seen, depth.causal is not None, generator), positions_of(seen, generator)))
    other_depths, other_positions = [null[0] for null in nulls], [null[1] for null in nulls]
    headline = depth_headline(depth, other_depths, generator)
    headline |= positions_headline(positions, other_positions, generator)
    summaries = [
        MemoryRow(
            "transformer", "depth" if name in DEPTH_NAMES else "positions", "all", name, one, n=len(traces), judged=True
        )
        for name, one in headline.items()
    ]
    rows = (*summaries, *depth_rows(depth, other_depths, generator), *head_rows(positions, other_positions, generator))
    return TransformerSide(tuple(traces), gate_rows(traces, depth, positions), rows, headline, depth)


DEPTH_NAMES = (
    "mlp_forgetting", "embedding_retention", "attention_erased_by_next_mlp", "causal_retention", "algebraic_forget_gate",
)  # fmt: skip


def gate_rows(traces: Sequence[Trace], depth: Depth, positions: Positions) -> tuple[GateRow, ...]:
    """Pattern and coherence of each layer, and the forget gate of each write, over the text."""
    found = [
        row for number, (trace, heads) in enumerate(zip(traces, positions.heads, strict=True))
        for row in token_rows(trace, heads, number)
    ]  # fmt: skip
    gates, column = token_forget_gates(depth.stream), 0
    for number, (trace, keep) in enumerate(zip(traces, depth.written.keep, strict=True)):
        for pos in keep.nonzero().flatten().tolist():
            for name, value in zip(depth.stream.names[1:], gates[:, column].tolist(), strict=True):
                found.append(GateRow("transformer", number, pos, trace.tokens[pos].shown, name, "forget", value))
            column += 1
    return tuple(found)


def together(sides: Sequence[Model | Lstm], a: TransformerSide | None, b: LstmSide | None, copies: int) -> Memory:
    first, second = sides[0], sides[1] if len(sides) == 2 else None
    parts: list[Any] = [part for part in (a, b) if part is not None]
    errors = [*([a.depth.stream.error] if a else []), *([b.error] if b else [])]
    return Memory(
        model=first.name,
        beside=None if second is None else second.name,
        gates=tuple(row for part in parts for row in part.gates),
        rows=tuple(row for part in parts for row in part.rows),
        analogies=analogies(None if a is None else a.headline, None if b is None else b.headline),
        error=max(errors),
        notes=(*notes(a, copies), *notes_of(b)),
        traces=tuple(trace for part in parts for trace in part.traces),
        revision=revision_of(first),
        revision_beside=None if second is None else revision_of(second),
    )


def revision_of(side: Model | Lstm) -> str | None:
    return side.revision if isinstance(side, Lstm) else side.source.revision


def notes(a: TransformerSide | None, copies: int) -> tuple[str, ...]:
    """What a reader must know about how the numbers came about."""
    found = []
    if copies < FEWEST:
        found.append(f"only {copies} permuted copies: verdicts from fewer than {FEWEST} are not to be trusted")
    if a is None:
        return tuple(found)
    found.append("position 0 is left out over depth: it is an attention sink")
    if a.depth.stream.left_out:
        found.append(f"{a.depth.stream.left_out} tokens of massive activations are left out over depth")
    if a.depth.stream.transported:
        found.append("post-norm model: rows are transported through frozen norms to the final stream")
    if a.traces[0].weights.shape.placement == "parallel":
        found.append("parallel blocks: attention counts as written before the MLP of its layer")
    return (*found, *a.depth.remarks)


def notes_of(b: LstmSide | None) -> tuple[str, ...]:
    if b is None or len(b.traces) > 1:
        return ()
    return ("one prompt: the LSTM's numbers have no interval, so none of them is called informative",)
