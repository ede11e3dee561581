"""Trained models: parity on every head, and behaviour that is known from their makers or was measured once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import mechview as mv

PROMISE = 1e-4
SENTENCE = "When Mary and John went to the store, John gave a drink to"


@pytest.mark.real
def test_every_head_of_smollm2_is_rebuilt(smollm2: mv.load) -> None:
    parity = mv.parity(smollm2, SENTENCE)
    assert 12 <= parity.n_tokens <= 24
    assert len(parity.errors("pattern")) == len(parity.errors("message")) == 30 * 9
    assert parity.worst.error < PROMISE, parity.worst


@pytest.mark.real
def test_smollm2_knows_its_capital_and_its_previous_token_heads(smollm2: mv.load) -> None:
    seen = mv.trace(smollm2, "The capital of France is")
    chances = seen.logits[-1].softmax(-1)
    assert smollm2.tokenizer.decode(int(chances.argmax())) == " Paris"
    assert float(chances.max()) == pytest.approx(0.77, abs=0.02)
    ids = torch.randint(1000, 40000, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    patterns = mv.trace(smollm2, ids).patterns
    previous = {(layer, head): float(patterns[layer][head].diagonal(-1).mean()) for layer in range(30) for head in range(9)}
    assert {(16, 0), (11, 1)} <= set(sorted(previous, key=previous.__getitem__)[-3:])
    assert previous[16, 0] == pytest.approx(0.89, abs=0.06)
    assert smollm2.shape.n_kv_heads == 3


@pytest.mark.real
def test_every_head_of_minilm_is_rebuilt(minilm: mv.load) -> None:
    parity = mv.parity(minilm, SENTENCE)
    assert len(parity.errors("pattern")) == 6 * 12
    assert parity.worst.error < PROMISE, parity.worst
    assert parity.backend == "forward hooks", "a bare BERT has no unembedding for the bridge"
    first, last = mv.trace(minilm, SENTENCE).tokens[0], mv.trace(minilm, SENTENCE).tokens[-1]
    assert (first.shown, last.shown, first.special) == ("[CLS]", "[SEP]", True)


def test_stories_has_its_previous_token_heads(shared: Path) -> None:
    model = mv.load(str(shared / "models" / "stories260k"))
    seen = mv.trace(model, "Once upon a time, there was a little girl named Lily. She liked to play.")
    assert mv.parity(model, seen).worst.error < PROMISE
    previous = {(n, h): float(p[h].diagonal(-1).mean()) for n, p in enumerate(seen.patterns) for h in range(8)}
    assert {(1, 3), (3, 6)} <= set(sorted(previous, key=previous.__getitem__)[-3:])


def tracr(folder: Path) -> tuple[mv.load, dict[str, Any]]:
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    return build_tracr(tensors, config), config


def build_tracr(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> mv.load:
    raise NotImplementedError
