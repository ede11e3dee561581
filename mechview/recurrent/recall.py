"""What an LSTM and a transformer do with what they have read, on the same data.

    repeat    `BOS R R`, R random: loss in the first and the second copy, and by how much it falls
    distance  the same for segments of several lengths: loss in the second copy by distance to the first
    cue       `BOS .. a b, k random tokens, a`: log-probability of b less that of all other tokens on average, and how
              often b is first; the null asks for the token after another one that was not cued
    probe     accuracy with which the token `lag` positions before is read from the state (see `probe`)

All tokens are drawn evenly from the vocabulary (ids from `first` on), so nothing but the context helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from mechview.errors import UnsupportedError, UsageError
from mechview.models.intervene import Place, edited, runnable
from mechview.models.load import Model
from mechview.recurrent.cells import lstm_logits, run
from mechview.recurrent.memory import opened
from mechview.recurrent.probe import probe
from mechview.recurrent.rows import MemoryRow, plain
from mechview.recurrent.verdicts import Measured, Null, null_of
from mechview.recurrent.weights import Lstm
from mechview.results import Result

DISTANCES = (5, 10, 20, 50, 100)
FILLERS = (0, 1, 2, 5, 10, 20, 50)
LAGS = (0, 1, 2, 4, 8, 16, 32)
CLASSES = 16


@dataclass(frozen=True)
class Recall(Result):
    """Rows of the `memory` table, `over="behaviour"`; `models` names each side."""

    models: dict[str, str]
    rows: tuple[MemoryRow, ...]

    def value(self, side: str, quantity: str, lag: int) -> float:
        """One number.

        Raises:
            UsageError: it was not measured.
        """
        found = [r for r in self.rows if (r.side, r.quantity, r.lag) == (side, quantity, lag)]
        if not found:
            raise UsageError(f"no {quantity} of the {side} at {lag} was measured")
        return found[0].found.value


def recall(model: Any = "toy", beside: Any | None = None, *, rows: int = 32, seed: int = 0, half: int = 50) -> Recall:
    """Behaviour on repeated random tokens, cues and probes; `beside` is measured on the very same ids.

    Args:
        rows: sequences of each kind. half: length of the segment in `repeat`.

    Raises:
        UsageError: vocabularies of different sizes. UnsupportedError: a model without logits.
    """
    sides = [opened(one) for one in (model, beside) if one is not None]
    sizes = {vocabulary(one) for one in sides}
    if len(sizes) > 1:
        raise UsageError(
            f"the two have vocabularies of {min(sizes)} and {max(sizes)} tokens: they cannot read the same ids"
        )
    names = {"lstm" if isinstance(one, Lstm) else "transformer": one.name for one in sides}
    found = tuple(row for one in sides for row in behaviour(one, next(iter(sizes)), rows, seed, half))
    return Recall(models=names, rows=found)


def vocabulary(side: Model | Lstm) -> int:
    if isinstance(side, Model):
        return side.shape.d_vocab
    if side.W_E is None or side.W_U is None:
        raise UnsupportedError(f"{side.name} has no embedding or no read-out: it foretells no tokens")
    return len(side.W_E)


def behaviour(side: Model | Lstm, size: int, rows: int, seed: int, half: int) -> list[MemoryRow]:
    name = "lstm" if isinstance(side, Lstm) else "transformer"
    draw = torch.Generator().manual_seed(seed)
    longest = context_of(side)
    start = torch.full((rows, 1), bos_of(side))
    found = repeat_rows(side, name, start, segments(rows, min(half, (longest - 1) // 2), size, draw))
    for distance in (d for d in DISTANCES if 2 * d < longest):
        loss = copy_losses(side, start, segments(rows, distance, size, draw))[1]
        found.append(plain(name, "behaviour", "all", "loss_at_distance", loss, lag=distance, n=rows * (distance - 1)))
    for count in (k for k in FILLERS if k + 4 <= longest):
        found += cue_rows(side, name, start, count, size, draw)
    return found + probe_rows(side, name, rows, size, min(48, longest), draw)


def context_of(side: Model | Lstm) -> int:
    return (side.context if isinstance(side, Lstm) else side.shape.n_ctx) or 256


def bos_of(side: Model | Lstm) -> int:
    return int(getattr(side.tokenizer, "bos_token_id", None) or 0)


def segments(rows: int, length: int, size: int, generator: torch.Generator) -> Int[Tensor, "_row pos"]:
    return torch.randint(1, size, (rows, length), generator=generator)


@torch.no_grad()
def logits_of(side: Model | Lstm, ids: Int[Tensor, "_row pos"]) -> Float[Tensor, "_row pos d_vocab"]:
    """Logits for rows of one length."""
    if isinstance(side, Lstm):
        return lstm_logits(side, ids)
    if side.shape.n_encoder_layers or side.shape.stacks == ("encoder",):
        raise UnsupportedError(f"{side.name} does not foretell the next token: there is no copying to measure")
    logits = getattr(runnable(side)(ids.to(side.device), use_cache=False), "logits", None)
    if logits is None:
        raise UnsupportedError(f"{side.name} has no unembedding: it foretells no tokens")
    return logits.cpu()


def copy_losses(side: Model | Lstm, start: Tensor, segment: Int[Tensor, "_row pos"]) -> tuple[float, float]:
    """Nats per token in the first copy and in the second, whose first token nothing announces and is left out."""
    ids = torch.cat([start, segment, segment], 1)
    losses = cross_entropy(logits_of(side, ids)[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    half = segment.shape[1]
    return float(losses[:, :half].mean()), float(losses[:, half + 1 :].mean())


def repeat_rows(side: Model | Lstm, name: str, start: Tensor, segment: Tensor) -> list[MemoryRow]:
    first, second = copy_losses(side, start, segment)
    values = {"loss_first_copy": first, "loss_second_copy": second, "loss_drop": first - second}
    return [
        plain(name, "behaviour", "all", key, v, lag=segment.shape[1], n=segment.numel()) for key, v in values.items()
    ]


def cue_rows(
    side: Model | Lstm, name: str, start: Tensor, count: int, size: int, generator: torch.Generator
) -> list[MemoryRow]:
    """Recall of a token after its cue, across `count` random tokens; the null cues another token."""
    rows = len(start)
    pair, other = segments(rows, 2, size, generator), segments(rows, 1, size, generator)
    fillers = segments(rows, count, size, generator)
    asked = pair[:, 1]

    def gain(cue: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits_of(side, torch.cat([start, pair, fillers, cue], 1))[:, -1].double()
        log_p = logits.log_softmax(-1)
        return log_p.gather(1, asked[:, None])[:, 0] - log_p.mean(1), (logits.argmax(-1) == asked).double()

    real, null = gain(pair[:, :1]), gain(other)
    return [
        MemoryRow(name, "behaviour", "all", quantity, measured_mean(real[n], null[n]), lag=count, n=rows)
        for n, quantity in enumerate(("cue_gain", "cue_accuracy"))
    ]


def measured_mean(real: Float[Tensor, "_row"], null: Float[Tensor, "_row"]) -> Measured:
    """A mean with a normal 95 % interval over rows, and the null's mean with the error of that mean."""
    half = 1.96 * float(real.std()) / len(real) ** 0.5 if len(real) > 1 else float("nan")
    value, other = float(real.mean()), null_of(null.tolist())
    tokens = Null(other.mean, other.sd / max(other.n, 1) ** 0.5, other.n)
    return Measured(value, value - half, value + half, tokens=tokens)


def probe_rows(
    side: Model | Lstm, name: str, rows: int, size: int, length: int, generator: torch.Generator
) -> list[MemoryRow]:
    """Probes at every lag, on sequences over a few ids; control accuracies are the null of tokens."""
    chosen = 1 + torch.randperm(size - 1, generator=generator)[: min(CLASSES, size - 1)]
    labels = torch.randint(len(chosen), (4 * rows, length), generator=generator)
    states, found = states_of(side, chosen[labels]), []
    for lag in (lag for lag in LAGS if lag < length - 1):
        one = probe(states, labels, lag, len(chosen), generator)
        null = Null(one.control, (one.chance * (1 - one.chance) / one.n) ** 0.5, 1)
        value = Measured(one.accuracy, tokens=null)
        found.append(MemoryRow(name, "behaviour", "all", "probe_accuracy", value, lag=lag, n=one.n, judged=True))
    return found


@torch.no_grad()
def states_of(side: Model | Lstm, ids: Int[Tensor, "_row pos"]) -> Float[Tensor, "_row pos d"]:
    """Cell states of all layers side by side, or the stream after the last block."""
    if isinstance(side, Lstm):
        layers = run(side, side.W_E[ids])  # type: ignore[index]
        return torch.cat([one.in_text_order(one.cell) for layer in layers for one in layer], -1)
    seen: list[Tensor] = []

    def listen(value: Tensor) -> Tensor:
        seen.append(value)
        return value

    module = runnable(side)
    place = Place("post", side.shape.n_layers - 1, side.shape.stacks[0])
    with edited(module, side, {place: listen}):
        module(ids.to(side.device), use_cache=False)
    return seen[-1].cpu()
