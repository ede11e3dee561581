"""Writes of a model on prompts, as one stream record: any family, through the ledger's own steps.

Rows are those of `ledger(by="layer")` at the final stream: attention and MLP of each layer as they are
added, post-norms, multipliers and biases included; what stands before the first block is the start. In
post-norm models (BERT, ALBERT, post-norm OPT) a row is *transported* through the frozen norms to the end, so
gates and retention are of what arrives there, and a norm's bias counts with the write it follows. In
parallel blocks attention counts as written before the MLP. Position 0 is left out: it is an attention sink with a
stream of its own; so are other tokens of massive activations (see `massive`). Encoder-decoder models read the prompt on both sides, and the decoder is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechview.checks import relative
from mechview.models.intervene import recorded
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.models.tracing import Prompt, encode
from mechview.recurrent.stream import START, Stream, blocks, massive, stream_of
from mechview.residual.embeddings import embed_steps
from mechview.residual.ledger import ledger
from mechview.residual.rows import Write


def traced(model: Model, prompts: Sequence[Prompt], bos: str = "auto") -> list[Trace]:
    """A trace a prompt, from the module that ablations act on; both sides of an encoder-decoder read it."""
    found = []
    for prompt in prompts:
        both = encode(model, prompt, bos) if model.shape.n_encoder_layers else None
        found.append(recorded(model, prompt, bos=bos, decoder=both))
    return found


@dataclass(frozen=True)
class Writes:
    """Rows `[write, pos, d_model]` of each prompt, and which of its positions count."""

    names: tuple[str, ...]
    rows: tuple[Float[Tensor, "write _pos d_model"], ...]
    keep: tuple[Bool[Tensor, "_pos"], ...]
    error: float
    transported: bool

    @property
    def left_out(self) -> int:
        """Tokens of massive activations, which do not count."""
        return sum(len(keep) - int(keep.sum()) - (len(keep) > 1) for keep in self.keep)


def writes_of(traces: Sequence[Trace]) -> Writes:
    """What was written on each prompt; position 0 and tokens of massive activations do not count."""
    found = [rows_of(trace) for trace in traces]
    rows = tuple(parts for _, parts in found)
    starts = [int(parts.shape[1] > 1) for parts in rows]
    apart = massive(torch.cat([parts[:, start:] for start, parts in zip(starts, rows, strict=True)], 1))
    each = apart.split([parts.shape[1] - start for start, parts in zip(starts, rows, strict=True)])
    keep = [torch.cat([torch.zeros(start, dtype=torch.bool), ~far]) for start, far in zip(starts, each, strict=True)]
    error = max(relative(parts.sum(0), trace.stream_final) for trace, parts in zip(traces, rows, strict=True))
    return Writes(tuple(found[0][0]), rows, tuple(keep), error, transports(traces[0]))


def depth_stream(found: Writes) -> Stream:
    """The tokens that count, of all prompts together.

    Raises:
        PromptError: fewer than two tokens remain.
    """
    kept = [rows[:, keep] for rows, keep in zip(found.rows, found.keep, strict=True)]
    group = blocks([part.shape[1] for part in kept])
    return stream_of(
        found.names, torch.cat(kept, 1), group, found.error, transported=found.transported, left_out=found.left_out
    )


def rows_of(trace: Trace) -> tuple[list[str], Tensor]:
    """Names and rows `[write, pos, d_model]`, the start first; norm biases count with the write before them."""
    parts = ledger(trace, by="layer")
    started = sum(len(step.names) for step in embed_steps(trace, trace.stack) if isinstance(step, Write))
    names, rows = [START], [parts.values[:started].double().sum(0)]
    for name, values in zip(parts.components[started:], parts.values[started:].double(), strict=True):
        if name.endswith("norm_bias"):
            rows[-1] = rows[-1] + values
        else:
            names.append(name)
            rows.append(values)
    return names, torch.stack(rows)


def transports(trace: Trace) -> bool:
    """Whether later norms carry what was written, as in post-norm models."""
    weights, stack = trace.weights, trace.stack
    return any(part.stream_norm.kind != "none" for part in (weights.attention(0, stack), weights.mlp(0, stack)))
