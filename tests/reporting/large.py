"""Reports as large as a page may be asked to be: 144 heads of 64 singular values, attention that rests on its first key.

What the page holds is made up, since its size depends on nothing but shapes and how far attention is spread: scores
are normal with a standard deviation of 2, and every other head adds 4 to the first key's.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import torch

import mechview as mv
from mechview.reporting.gather import Gathered, HeadView, PromptView, gather
from mechview.reporting.streams import StreamView

LAYERS = HEADS = 12


def from_weights() -> Gathered:
    """Weights alone."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator)

    names = {"W_Q": (HEADS, 96, 64), "W_K": (HEADS, 96, 64), "W_V": (HEADS, 96, 64), "W_O": (HEADS, 64, 96)}
    layers = [{name: drawn(*shape) for name, shape in names.items()} for _ in range(LAYERS)]
    model = mv.from_arrays(W_E=drawn(50, 96), W_U=drawn(96, 50), layers=layers)
    settings = {"fold": True, "offset": 0, "bos": "auto", "keep_text": True}
    return gather(model, [], {"layers": None, "heads": None}, settings, None)


def with_prompt(found: Gathered, length: int) -> Gathered:
    """The same heads on a prompt of this many tokens."""
    generator = np.random.default_rng(0)
    maps = [attention(generator, length, 4.0 * (n % 2)) for n in range(HEADS)]
    labels = [(f"L{layer}H{head}", head) for layer in range(LAYERS) for head in range(HEADS)]
    norms = generator.random(length)
    heads = tuple(HeadView(label, "decoder", *maps[head], norms, norms, 0.1) for label, head in labels)
    text = [f"·word{n}" for n in range(length)]
    tokens = pd.DataFrame({"stack": "decoder", "shown": text, "text": text, "special": False})
    rows = [
        (label, metric, generator.random(), 0.5, "weight", length)
        for metric in ("entropy", "first_key_mass", "induction_mass", "previous_token_mass", "same_token_mass")
        for label, _ in labels
    ]
    summaries = pd.DataFrame(rows, columns=["label", "metric", "value", "null_mean", "unit", "n"])
    bias = {f"decoder {layer}": 0.1 for layer in range(LAYERS)}
    view = PromptView(tokens, heads, summaries, bias, "hooks", True, stream(generator, length))
    return dataclasses.replace(found, prompts=(view,))


def attention(generator, length, sink):
    scores = generator.normal(0, 2, (length, length)).astype(np.float32)
    scores[:, 0] += sink
    scores[np.triu_indices(length, 1)] = -np.inf
    weight = np.exp(scores - scores.max(1, keepdims=True))
    return weight / weight.sum(1, keepdims=True), scores


def stream(generator, length):
    names = tuple(f"L{layer}.{part}" for layer in range(LAYERS) for part in ("attn", "mlp"))
    grid = generator.random((len(names), length))
    return StreamView(names, grid, grid, grid, 0.0, names, grid, grid, None, None, ())
