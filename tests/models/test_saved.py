"""Traces go to disk and come back number by number; other models' files and other caches are refused."""

from __future__ import annotations

import json
import struct

import pytest
import torch

import mechview as mv
from conftest import family
from mechview.errors import CheckError, OutputError, UsageError
from mechview.models.saved import _tensors

IDS = [5, 9, 14, 20, 3, 7]


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bert", "t5", "bloom"])
def test_a_trace_comes_back_number_by_number(name, tmp_path):
    model, _ = family(name)
    seen = mv.trace(model, IDS)
    again = mv.Trace.load(seen.save(tmp_path / "seen.safetensors"), model)
    before, after = _tensors(seen.capture), _tensors(again.capture)
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert (again.tokens, again.source_tokens, again.model, again.bos) == (
        seen.tokens, seen.source_tokens, seen.model, seen.bos,
    )  # fmt: skip
    assert torch.equal(mv.ledger(again).values, mv.ledger(seen).values)
    assert mv.compare(seen, again).identical


def test_a_file_is_not_overwritten_and_holds_no_code(tmp_path, toy):
    seen = mv.trace(toy, "the man and the woman")
    path = seen.save(tmp_path / "seen.safetensors")
    with pytest.raises(OutputError, match="exists"):
        seen.save(path)
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    about = json.loads(header["__metadata__"]["mechview"])
    assert about["weights_sha256"]
    assert [token["text"] for token in about["tokens"]] == [token.text for token in seen.tokens]
    assert seen.save(path, force=True) == path


def test_other_models_and_other_files_are_refused(tmp_path, toy):
    path = mv.trace(toy, "the man").save(tmp_path / "seen.safetensors")
    with pytest.raises(CheckError, match="whose shape is not that of"):
        mv.Trace.load(path, family("gpt2")[0])
    with pytest.raises(CheckError, match="other weights of toy"):
        mv.Trace.load(path, mv.load("toy", revision="step-004000"))
    (tmp_path / "text").write_text("no tensors")
    for name, said in (("none", "there is no file"), ("text", "is no trace")):
        with pytest.raises(UsageError, match=said):
            mv.Trace.load(tmp_path / name, toy)


def test_a_transformer_lens_cache_is_the_trace_of_the_same_pass():
    model, _ = family("gpt2")
    logits, cache = model.bridge.run_with_cache(torch.tensor([IDS]))
    found, own = mv.from_cache(cache, model, IDS, logits), mv.trace(model, IDS)
    for key, value in _tensors(own.capture).items():
        assert torch.allclose(_tensors(found.capture)[key], value, atol=1e-6, equal_nan=True), key
    assert mv.ledger(found).error < 1e-5
    with pytest.raises(CheckError, match="6 positions; 5 tokens"):
        mv.from_cache(cache, model, IDS[:5])
    wrong = {name: value * 2 if name.endswith("hook_z") else value for name, value in cache.items()}
    with pytest.raises(CheckError, match="do not add up to the cached attention output"):
        mv.from_cache(wrong, model, IDS)
