"""The bundled data is what its index says, and the bundled model does what its card says.

Scores are measured here again from their definitions with the original library alone:
nothing of mechview and nothing of `data/make` is imported.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.nn.functional import cross_entropy, pad
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).parents[1] / "data"
TOY = DATA / "toy"
INDEX = tomllib.loads((DATA / "index.toml").read_text(encoding="utf-8"))
CHECKPOINTS = sorted((TOY / "checkpoints").glob("step-*"))
MEGABYTE = 1_000_000
HALF = 50
SEEDS = (11, 12, 13)


def shipped_files() -> list[Path]:
    files = (path for path in DATA.rglob("*") if path.is_file() and path.name != "index.toml")
    return [path for path in files if not any(part.startswith((".", "__")) for part in path.relative_to(DATA).parts)]


def size(paths) -> int:
    return sum(path.stat().st_size for path in paths)


@pytest.mark.parametrize("entry", INDEX["file"], ids=lambda entry: entry["path"])
def test_file_is_what_the_index_says(entry):
    content = (DATA / entry["path"]).read_bytes()
    assert len(content) == entry["bytes"]
    assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    assert all(entry[key] for key in ("licence", "source", "command"))


def test_index_names_every_file_once():
    named = [entry["path"] for entry in INDEX["file"]]
    assert sorted(named) == sorted(path.relative_to(DATA).as_posix() for path in shipped_files())


def test_sizes_are_within_their_budgets():
    assert size(shipped_files()) <= 10 * MEGABYTE
    assert size((DATA / "text").iterdir()) <= 1 * MEGABYTE
    assert (TOY / "model.safetensors").stat().st_size <= 3 * MEGABYTE


def test_corpora_of_the_index_are_those_of_the_scores():
    """The model was trained on exactly the texts whose hashes the index gives."""
    trained_on = {(text["name"], text["sha256"]) for text in json.loads((TOY / "scores.json").read_text())["text"]}
    assert trained_on == {(corpus["name"], corpus["sha256"]) for corpus in INDEX["corpus"]}


@pytest.mark.parametrize("corpus", ["austen", "kjv"])
def test_held_out_text_is_not_in_the_excerpt(corpus):
    excerpt = (DATA / "text" / f"{corpus}-excerpt.txt").read_text(encoding="utf-8")
    held_out = (DATA / "text" / f"{corpus}-heldout.txt").read_text(encoding="utf-8")
    long_lines = [line for line in held_out.splitlines() if len(line) >= 100]
    assert len(long_lines) > 50
    assert not [line for line in long_lines if line in excerpt]


def test_checkpoints_are_at_least_eight_in_half_precision():
    assert len(CHECKPOINTS) >= 8
    assert CHECKPOINTS[0].name == "step-000000"
    for folder in CHECKPOINTS:
        with safe_open(folder / "model.safetensors", framework="pt") as tensors:
            assert {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118 (not a dict) == {"F16"}


def test_last_checkpoint_is_the_model_rounded(toy):
    last = AutoModelForCausalLM.from_pretrained(CHECKPOINTS[-1], dtype=torch.float16).state_dict()
    for name, tensor in toy.state_dict().items():
        assert torch.equal(last[name], tensor.half()), name


def test_checkpoints_show_the_circuit_form():
    drops = [
        loss_drop(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
        for folder in (CHECKPOINTS[0], CHECKPOINTS[-1])
    ]
    assert abs(drops[0]) < 0.2
    assert drops[1] >= 5


@pytest.fixture(scope="module")
def toy():
    return AutoModelForCausalLM.from_pretrained(TOY, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TOY)


def repeated_random(seed: int, vocab: int = 1024) -> torch.Tensor:
    segment = torch.randint(1, vocab, (16, HALF), generator=torch.Generator().manual_seed(seed))
    return pad(torch.cat([segment, segment], dim=1), (1, 0), value=0)


def token_losses(model, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits = model(ids).logits[:, :-1]
    return cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


def loss_drop(model) -> float:
    losses = torch.cat([token_losses(model, repeated_random(seed)) for seed in SEEDS])
    return float(losses[:, :HALF].mean() - losses[:, HALF:].mean())


def head_scores(model, offset: int, first: int) -> torch.Tensor:
    """Mean of A[i, i - offset] over i >= first: [layer, head]."""
    ids = torch.cat([repeated_random(seed) for seed in SEEDS])
    with torch.no_grad():
        patterns = torch.stack(model(ids, output_attentions=True).attentions)
    queries = torch.arange(first, ids.shape[1])
    return patterns[..., queries, queries - offset].mean(dim=(1, 3))


def test_toy_has_the_shape_of_its_card(toy):
    config = toy.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("llama", 2, 64)
    assert (config.num_attention_heads, config.head_dim, config.vocab_size) == (4, 16, 1024)
    assert config.max_position_embeddings >= 256


def test_toy_has_a_previous_token_head_in_its_first_layer(toy):
    assert head_scores(toy, offset=1, first=2)[0].max() >= 0.8


def test_toy_has_two_induction_heads_in_its_second_layer(toy):
    scores = head_scores(toy, offset=HALF - 1, first=HALF + 1)
    assert (scores[1] >= 0.8).sum() >= 2
    assert scores[0].max() < 0.1


def test_toy_loses_five_nats_on_the_second_copy(toy):
    assert loss_drop(toy) >= 5


@pytest.mark.parametrize("corpus", ["austen", "kjv"])
def test_toy_reads_held_out_text(toy, tokenizer, corpus):
    text = (DATA / "text" / f"{corpus}-heldout.txt").read_text(encoding="utf-8")
    ids = torch.tensor(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
    windows = pad(ids[: len(ids) // 255 * 255].view(-1, 255), (1, 0), value=tokenizer.bos_token_id)
    assert token_losses(toy, windows).mean() <= 3.8


def test_scores_file_agrees_with_the_model(toy):
    final = json.loads((TOY / "scores.json").read_text(encoding="utf-8"))["final"]
    previous, induction = head_scores(toy, 1, 2), head_scores(toy, HALF - 1, HALF + 1)
    for label in final["induction"]:
        layer, head = int(label[1]), int(label[3])
        assert final["previous_token"][label] == pytest.approx(float(previous[layer, head]), abs=0.03)
        assert final["induction"][label] == pytest.approx(float(induction[layer, head]), abs=0.03)
    assert final["loss_drop"] == pytest.approx(loss_drop(toy), abs=0.3)


@pytest.mark.parametrize(
    "text", ["Mr. Darcy said to her,", "  two  spaces\n", "café — 日本 \U0001f642", "", "<b>&\t\\"]
)
def test_tokenizer_puts_bos_first_and_gives_the_text_back(tokenizer, text):
    ids = tokenizer(text).input_ids
    assert ids[0] == tokenizer.bos_token_id == 0
    assert ids.count(0) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_card_tells_how_the_model_was_made():
    card = (TOY / "CARD.md").read_text(encoding="utf-8")
    for needed in (
        "python data/make/toy.py",
        "## What it scores",
        "## Limits",
        "## Licence",
        *(c["sha256"] for c in INDEX["corpus"]),
    ):
        assert needed in card
