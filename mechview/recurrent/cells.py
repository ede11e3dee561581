"""Running an LSTM with everything laid open: gates, candidate, cell and hidden state of every step.

The recurrence is written out, so that each factor of `c_t = f o c_{t-1} + i o g` is there to be read; it is
checked against `torch.nn.LSTM` and computed in float64 whatever the weights are stored in. A layer's trace
is in the order in which it was *run*: for the backward direction step 0 is the last token, so that "earlier"
and "later" mean the same in every formula; `in_text_order` turns it round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from mechview.errors import CheckError, PromptError
from mechview.models.tracing import given_ids
from mechview.recurrent.weights import Lstm, LstmLayer
from mechview.results import Result
from mechview.tokens import Token, describe

Read = str | Sequence[Any] | Tensor  # text, token ids, or a matrix of input vectors; checked where it is read


@dataclass(frozen=True)
class CellTrace:
    """One direction of one layer on one prompt or several; `start` is the cell state before step 0."""

    layer: int
    reverse: bool
    input_gate: Float[Tensor, "*row step cell"]
    forget_gate: Float[Tensor, "*row step cell"]
    candidate: Float[Tensor, "*row step cell"]
    output_gate: Float[Tensor, "*row step cell"]
    cell: Float[Tensor, "*row step cell"]
    hidden: Float[Tensor, "*row step d_hidden"]
    start: Float[Tensor, "*row cell"]

    @property
    def writes(self) -> Float[Tensor, "*row step cell"]:
        """What each step adds to the cell: `i o g`."""
        return self.input_gate * self.candidate

    @property
    def label(self) -> str:
        return f"L{self.layer}.backward" if self.reverse else f"L{self.layer}"

    def in_text_order(self, values: Float[Tensor, "*row step cell"]) -> Float[Tensor, "*row pos cell"]:
        """Values by token position, whichever way the layer ran."""
        return values.flip(-2) if self.reverse else values


@dataclass(frozen=True)
class LstmTrace(Result):
    """One prompt through an LSTM, in float64. `logits[pos]` foretell the token after `pos`; None without read-out."""

    model: str
    tokens: tuple[Token, ...]
    layers: tuple[tuple[CellTrace, ...], ...]
    logits: Float[Tensor, "pos d_vocab"] | None
    tokenizer: Any | None = field(default=None, repr=False, compare=False)
    revision: str | None = None

    @property
    def cells(self) -> tuple[CellTrace, ...]:
        """All directions of all layers."""
        return tuple(direction for layer in self.layers for direction in layer)

    @property
    def hidden(self) -> Float[Tensor, "pos d_hidden"]:
        """Hidden state of the last layer, directions side by side."""
        return beside(self.layers[-1])


def lstm_trace(model: Lstm, prompt: Read) -> LstmTrace:
    """Everything one prompt does in an LSTM that starts from zero state.

    A model with a window (textgenrnn) reads the prompt left-padded to its length, as it was trained to; the
    padding is part of the trace.

    Raises:
        PromptError: empty, too long, or not what this LSTM reads. CheckError: the state is not finite.
    """
    exact = model.to(torch.float64)
    ids, x = read_prompt(exact, prompt)
    layers = run(exact, x)
    check_finite(layers)
    return LstmTrace(
        model=model.name,
        tokens=describe(ids, model.tokenizer) if ids else tuple(Token(n, n, str(n), str(n)) for n in range(len(x))),
        layers=layers,
        logits=None if exact.W_U is None else read_out(exact, x, layers),
        tokenizer=model.tokenizer,
        revision=model.revision,
    )


def read_prompt(model: Lstm, prompt: Read) -> tuple[list[int], Float[Tensor, "pos d_in"]]:
    """Token ids (none for plain input vectors) and the vectors the first layer reads."""
    if model.W_E is None:
        return [], input_vectors(model, prompt)
    ids = encode(model, prompt)
    if model.window is not None:
        ids = [model.window.pad] * (model.window.length - len(ids)) + ids
    return ids, model.W_E[torch.tensor(ids)]


def encode(model: Lstm, prompt: Read) -> list[int]:
    """Checked token ids of a prompt.

    Raises:
        PromptError: empty, too long, or with characters or ids the LSTM does not have.
    """
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise PromptError(f"{model.name} has no tokenizer; give the prompt as token ids")
        ids = list(model.tokenizer(prompt)["input_ids"])
    else:
        ids = given_ids(prompt)
    if not ids:
        raise PromptError("the prompt is empty: it has no tokens")
    count = 0 if model.W_E is None else len(model.W_E)
    wrong = next((i for i in ids if not 0 <= i < count), None)
    if wrong is not None:
        raise PromptError(f"token id {wrong} does not exist: the vocabulary has ids 0 to {count - 1}")
    longest = model.window.length if model.window else None
    if longest is not None and len(ids) > longest:
        raise PromptError(f"the prompt has {len(ids)} tokens; {model.name} reads a window of {longest}")
    return ids


def input_vectors(model: Lstm, prompt: Any) -> Float[Tensor, "pos d_in"]:
    x = prompt if isinstance(prompt, Tensor) else None
    if x is None or x.ndim != 2 or x.shape[1] != model.d_in or not len(x) or not x.is_floating_point():
        raise PromptError(f"{model.name} has no embedding: a prompt is a float tensor [pos, {model.d_in}] of inputs")
    return x.to(torch.float64)


def run(model: Lstm, x: Float[Tensor, "*row pos d_in"]) -> tuple[tuple[CellTrace, ...], ...]:
    """All layers; each reads the directions of the one below side by side."""
    found: list[tuple[CellTrace, ...]] = []
    for number, layer in enumerate(model.layers):
        found.append(tuple(run_layer(x, direction, number) for direction in layer))
        x = beside(found[-1])
    return tuple(found)


def beside(directions: Sequence[CellTrace]) -> Float[Tensor, "*row pos d_hidden"]:
    return torch.cat([one.in_text_order(one.hidden) for one in directions], -1)


def run_layer(x: Float[Tensor, "*row pos d_in"], layer: LstmLayer, number: int = 0) -> CellTrace:
    """One direction, from zero state."""
    x = x.flip(-2) if layer.reverse else x
    drive = einsum(x, layer.W_x, "... step d_in, gate d_in cell -> gate ... step cell")
    drive = drive + layer.b.reshape(4, *[1] * (drive.ndim - 2), -1)
    h, c = x.new_zeros(*x.shape[:-2], layer.width), x.new_zeros(*x.shape[:-2], layer.cells)
    start, seen = c, []
    for step in range(x.shape[-2]):
        sums = drive[..., step, :] + einsum(h, layer.W_h, "... d_hidden, gate d_hidden cell -> gate ... cell")
        i, f, o, g = sums[0].sigmoid(), sums[1].sigmoid(), sums[3].sigmoid(), sums[2].tanh()
        c = f * c + i * g
        h = o * c.tanh() if layer.W_r is None else (o * c.tanh()) @ layer.W_r
        seen.append((i, f, g, o, c, h))
    i, f, g, o, cell, hidden = (torch.stack(part, -2) for part in zip(*seen, strict=True))
    return CellTrace(number, layer.reverse, i, f, g, o, cell, hidden, start)


def check_finite(layers: Sequence[Sequence[CellTrace]]) -> None:
    for one in (direction for layer in layers for direction in layer):
        for name in ("input_gate", "forget_gate", "candidate", "output_gate", "cell", "hidden"):
            if not torch.isfinite(getattr(one, name)).all():
                raise CheckError(
                    f"the forward pass gives NaN or infinity in {one.label}, in the {name.replace('_', ' ')}"
                )


def read_out(
    model: Lstm, x: Float[Tensor, "*row pos d_in"], layers: Sequence[Sequence[CellTrace]]
) -> Float[Tensor, "*row _out d_vocab"]:
    """Logits at each position; of a windowed model one row, for the token after the window."""
    top = beside(layers[-1]) if model.window is None else pooled(model, x, layers)
    logits = top @ model.W_U  # type: ignore[operator]
    return logits if model.b_U is None else logits + model.b_U


def pooled(model: Lstm, x: Tensor, layers: Sequence[Sequence[CellTrace]]) -> Float[Tensor, "*row 1 d_in"]:
    """The attention-weighted mean over a window (Keras's epsilon in the denominator is left out: 1e-7)."""
    states = torch.cat([x, *(beside(layer) for layer in layers)], -1)
    weight = (states @ model.window.weight).softmax(-1)  # type: ignore[union-attr]
    return einsum(weight, states, "... pos, ... pos d -> ... d")[..., None, :]


@torch.no_grad()
def lstm_logits(model: Lstm, ids: Int[Tensor, "_row pos"]) -> Float[Tensor, "_row pos d_vocab"]:
    """Logits for several prompts of one length, in the LSTM's own number type, each from zero state.

    Raises:
        PromptError: the LSTM has no embedding or no read-out.
    """
    if model.W_E is None or model.W_U is None:
        raise PromptError(f"{model.name} has no {'embedding' if model.W_E is None else 'read-out'}: it has no logits")
    if model.window is None:
        x = model.W_E[ids]
        return read_out(model, x, run(model, x))
    length = model.window.length
    padded = torch.nn.functional.pad(ids, (length - 1, 0), value=model.window.pad)
    x = model.W_E[padded.unfold(1, length, 1).flatten(0, 1)]
    return read_out(model, x, run(model, x)).view(*ids.shape, -1)


def token_losses(model: Lstm, ids: Int[Tensor, "_row pos"]) -> Float[Tensor, "_row _next"]:
    """Nats for each token after the first."""
    logits = lstm_logits(model, ids)[:, :-1]
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
