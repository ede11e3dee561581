"""Trained models: parity on every head, and behaviour that is known from their makers or was measured once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import mechview as mv
from mechview.models.load import Model

PROMISE = 1e-4
SENTENCE = "When Mary and John went to the store, John gave a drink to"


@pytest.mark.real
def test_every_head_of_smollm2_is_rebuilt(smollm2: Model) -> None:
    parity = mv.parity(smollm2, SENTENCE)
    assert 12 <= parity.n_tokens <= 24
    assert len(parity.errors("pattern")) == len(parity.errors("message")) == 30 * 9
    assert parity.worst.error < PROMISE, parity.worst


@pytest.mark.real
def test_smollm2_knows_its_capital_and_its_previous_token_heads(smollm2: Model) -> None:
    seen = mv.trace(smollm2, "The capital of France is")
    chances = seen.logits[-1].softmax(-1)
    assert smollm2.tokenizer.decode(int(chances.argmax())) == " Paris"
    assert float(chances.max()) == pytest.approx(0.77, abs=0.02)
    ids = torch.randint(1000, 40000, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    patterns = mv.trace(smollm2, ids).patterns
    previous = {
        (layer, head): float(patterns[layer][head].diagonal(-1).mean()) for layer in range(30) for head in range(9)
    }
    assert {(16, 0), (11, 1)} <= set(sorted(previous, key=previous.__getitem__)[-3:])
    assert previous[16, 0] == pytest.approx(0.89, abs=0.06)
    assert smollm2.shape.n_kv_heads == 3


@pytest.mark.real
def test_every_head_of_minilm_is_rebuilt(minilm: Model) -> None:
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


def tracr(folder: Path) -> tuple[Model, dict[str, Any]]:
    """A compiled program: every matrix has one head, and the stream's directions have names."""
    config, t = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    return mv.from_arrays(
        W_E=t["token_embed"], W_U=t["unembed"] @ torch.eye(4, 6), W_pos=t["pos_embed"], position="learned",
        layers=[tracr_layer(t, f"layer_{n}.") for n in range(config["num_layers"])], causal=config["causal"],
    ), config  # fmt: skip


def tracr_layer(t: dict[str, torch.Tensor], at: str) -> dict[str, torch.Tensor]:
    named = {"Q": "query", "K": "key", "V": "value"}
    read = {f"W_{name}": t[f"{at}attn.{part}.w"][None] for name, part in named.items()}
    read |= {f"b_{name}": t[f"{at}attn.{part}.b"][None] for name, part in named.items()}
    return read | {
        "W_O": t[f"{at}attn.linear.w"][None], "b_O": t[f"{at}attn.linear.b"], "W_in": t[f"{at}mlp.linear_1.w"],
        "b_in": t[f"{at}mlp.linear_1.b"], "W_out": t[f"{at}mlp.linear_2.w"], "b_out": t[f"{at}mlp.linear_2.b"],
    }  # fmt: skip


@pytest.mark.parametrize("program", ["prev_token", "reverse"])
def test_a_compiled_program_computes_what_it_was_compiled_from(program: str, shared: Path) -> None:
    model, config = tracr(shared / "models" / "tracr" / program)
    code = config["input_encoding"]
    letters = ["a", "c", "b", "d", "b"]
    seen = mv.trace(model, [code["BOS"], *(code[letter] for letter in letters)])
    assert mv.parity(model, seen).worst.error < 1e-5
    said = [config["output_decoding"][str(int(row[:4].argmax()))] for row in seen.logits[1:]]
    expected = letters[::-1] if program == "reverse" else [None, *letters[:-1]]
    start = 0 if program == "reverse" else 1
    assert said[start:] == expected[start:]
    if program == "prev_token":
        assert float(seen.patterns[0][0].diagonal(-1)[1:].min()) > 0.99
