"""Wrong things handed to Python functions, and records that show themselves: one sentence, one line."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from test_ledger import traced

import families
import mechview as mv
from conftest import family
from mechview.errors import ModelError, PromptError, UsageError
from mechview.manifest import command_line
from mechview.models.bundled import data_folder
from mechview.models.weights import EndWeights

pytest_plugins = ["commands"]

NOT_A_TRACE = {
    "ledger": lambda x: mv.ledger(x),
    "shares": lambda x: mv.shares(x, 5),
    "lens": lambda x: mv.lens(x),
    "score_ledger": lambda x: mv.score_ledger(x, layer=0, head=0),
    "attend": lambda x: mv.attend(x),
    "direct_attribution": lambda x: mv.direct_attribution(x, 5),
    "ledger_blocks": lambda x: list(mv.ledger_blocks(x)),
}


@pytest.mark.parametrize("name", list(NOT_A_TRACE))
@pytest.mark.parametrize("given", ["a model", "a prompt", None, torch.ones(3)], ids=str)
def test_what_is_no_trace_is_said(name, given):
    thing = family("gpt2")[0] if given == "a model" else given
    with pytest.raises(UsageError, match=rf"a trace of a pass is needed.*this is a {type(thing).__name__}"):
        NOT_A_TRACE[name](thing)


@pytest.mark.parametrize("call", [mv.trace, mv.parity, mv.write_trace], ids=["trace", "parity", "write_trace"])
@pytest.mark.parametrize("given", ["gpt2", "a trace", None], ids=str)
def test_what_is_no_model_is_said(call, given):
    thing = traced("gpt2") if given == "a trace" else given
    with pytest.raises(UsageError, match=rf"a model is needed.*this is a {type(thing).__name__}"):
        call(thing, families.tokens(4))


def test_parity_of_two_models_points_to_compare():
    model, _ = family("gpt2")
    with pytest.raises(UsageError, match="two models are compared by mv.compare"):
        mv.parity(model, model)


@pytest.mark.parametrize("device", ["evil", "", "cuda:999", "meta", 5.5, None, "cpu:x"])
def test_devices_that_are_not_here(device):
    with pytest.raises(UsageError, match="is not a device|this machine has no device"):
        mv.load("toy", device=device)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_devices_that_are_here(device):
    assert mv.load("toy", device=device).device == "cpu"


@pytest.mark.parametrize("target", [1.5, True, [5, 1.5], {"a": 1}, b"x", torch.tensor(1.5), [[5]]], ids=str)
@pytest.mark.parametrize("call", [mv.shares, mv.lens, mv.direct_attribution], ids=["shares", "lens", "direct"])
def test_what_is_no_token(call, target):
    with pytest.raises(UsageError, match="is not a token: give its text, or its id as a whole number"):
        call(traced("gpt2"), target)


@pytest.mark.parametrize("target", [np.int64(5), torch.tensor(5), [5], (5,), np.array([5]), torch.tensor([5])], ids=str)
def test_whole_numbers_of_any_kind_are_tokens(target):
    expected = mv.shares(traced("gpt2"), 5)
    torch.testing.assert_close(mv.shares(traced("gpt2"), target).values, expected.values, rtol=0, atol=0)


@pytest.mark.parametrize("position", [1.0, "last", None, True])
def test_what_is_no_position(position):
    with pytest.raises(UsageError, match="is not a whole number"):
        mv.shares(traced("gpt2"), 5, position=position)


@pytest.mark.parametrize("k", [-1, 0, 2.5, True, None, "3"])
def test_how_many_rows_is_a_positive_number(k):
    model, trace = family("gpt2")[0], traced("gpt2")
    effects = mv.effects(model, families.tokens(4), 5, components=["L0H1"])
    for found in (mv.shares(trace, 5), mv.score_ledger(trace, layer=1, head=0), effects):
        with pytest.raises(UsageError, match="is not a number of rows"):
            found.top(k)
        assert len(found.top(1)) >= 1


def _records():
    trace, model = traced("gemma2"), family("gemma2")[0]
    low = mv.head_factors(model, layer=0, head=0).message
    light = mv.write_trace(model, families.tokens(5))
    direct = mv.direct_attribution(trace, 5)
    attention, mlp = model.weights.attention(0), model.weights.mlp(0)
    return [
        trace, model, low, light, direct, mv.mean_attribution([direct]), mv.lens(trace, 5), mv.ledger(trace),
        mv.shares(trace, 5), mv.score_ledger(trace, layer=0, head=0, key=19), mv.attend(trace), mv.attend(trace).heads[0],
        mv.parity(model, trace), mv.head_table(model), mv.head_table(model).rows[0], mv.compare(trace, trace),
        mv.estimate(model, [[5]]), mv.head_factors(model, layer=0, head=0), attention, mlp, attention.norm,
        model.weights.ends(), trace.capture, trace.attention(0), trace.capture.mlp["decoder", 0],
        traced("bloom").weights.attention(0).position_bias, traced("t5").weights.attention(0).position_bias,
        traced("qwen3").weights.attention(0).q_norm,
    ]  # fmt: skip


def test_no_record_prints_its_numbers():
    for record in _records():
        said = repr(record)
        assert said.startswith(type(record).__name__), said
        assert "tensor(" not in said, said
        assert "\n" not in said, type(record)
        assert len(said) < 1000, said


def test_a_record_shows_words_numbers_and_shapes():
    said = repr(mv.shares(traced("gpt2"), 5, 7))
    assert "direction='logit of 5 - 7'" in said
    assert "values=<float64 15>" in said
    lens = mv.lens(traced("gpt2"))
    assert "kl=<float64 5 x 20>" in repr(lens)
    assert "target_prob" not in repr(lens)  # none was asked for
    assert repr(mv.shares(traced("gpt2"), 5)) == repr(mv.shares(traced("gpt2"), 5))
    assert dataclasses.is_dataclass(EndWeights)


@pytest.fixture
def toy_with(tmp_path):
    def build(**files: str):
        folder = tmp_path / "model"
        shutil.copytree(data_folder() / "toy", folder, ignore=shutil.ignore_patterns("checkpoints"))
        for name, text in files.items():
            (folder / name.replace("_json", ".json")).write_text(text)
        return folder

    return build


@pytest.mark.parametrize("text", ["{", "[]", "garbage", '{"model": {"type": "none"}}'])
def test_a_broken_tokenizer_is_called_broken(toy_with, cli, text):
    folder = toy_with(tokenizer_json=text)
    with pytest.warns(UserWarning, match="the tokenizer cannot be read"):
        model = mv.load(folder)
    with pytest.raises(PromptError, match="the tokenizer of .* is broken"):
        mv.trace(model, "the man")
    assert len(mv.trace(model, [5, 6, 7]).tokens) == 3
    done = cli("attend", str(folder), "-q", "-p", "the man")
    assert done.code == 2
    assert "is broken" in done.err
    assert "has no tokenizer" not in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["heads", "resid", "lens", "ablate", "patch", "report", "doctor"])
@pytest.mark.parametrize("name", ["L1H1", "1.1", "(1, 1)", "E.L0H1"])
def test_the_name_of_a_head_is_never_a_model(cli, verb, name):
    extra = {"ablate": ["-p", "a b", "-t", " man"], "patch": ["-p", "a", "--corrupted", "b", "-t", " man"]}.get(
        verb, []
    )
    done = cli(verb, name, *extra, "--offline")
    assert done.code == 2
    assert f"{name} is a head, not a model" in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("package:os", "os is a module without a folder"),
        ("package:sys", "sys is a module without a folder"),
        ("package:llm_smolllm2", "no installed package is called llm_smolllm2"),
        ("package:__main__", "no installed package|a module without a folder"),
    ],
)
def test_a_mistyped_package_is_not_advice_to_install_it(spec, sentence):
    with pytest.raises(ModelError, match=sentence) as caught:
        mv.load(spec)
    assert "install --" not in str(caught.value)
    assert "pip" not in str(caught.value)


GARBAGE = (b"", b"\0" * 8, b"\0" * 60, b"\xff" * 200, b"\3\0\0\0" + b"\xff" * 60, b"\3\0\0\0" + bytes(range(200)))


@pytest.mark.parametrize("tail", [*GARBAGE, b"\3\0\0\0" + (1).to_bytes(8, "little") * 2 + b"\x07" * 400], ids=range(7))
def test_garbage_after_the_magic_is_a_plain_sentence(tmp_path, tail):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + tail)
    with pytest.raises(ModelError) as caught:
        mv.load(path)
    said = str(caught.value)
    assert said in (
        "x.gguf cannot be read: what follows its first four letters is not GGUF",
        "x.gguf cannot be read: its table of contents is damaged or cut off",
    )


SECRET = "the queen and the secret"
SPELLINGS = (
    ["-p", SECRET], [f"--prompt={SECRET}"], ["--prompt", SECRET], [f"-p{SECRET}"], ["-qp", SECRET], [f"-qfp{SECRET}"],
)  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda s: s[0].split("the")[0])
def test_dropped_text_is_not_in_the_command_line_either(cli, monkeypatch, spelling):
    arguments = ["attend", "toy", *spelling, "--json", "--drop-text"]
    monkeypatch.setattr("sys.argv", ["mechview", *arguments])
    done = cli(*arguments)
    assert done.code == 0
    assert SECRET not in done.out
    assert "secret" not in done.json["manifest"]["command"]
    assert "[prompt not kept]" in done.json["manifest"]["command"]
    assert "--drop-text" in done.json["manifest"]["command"]


def test_ids_are_the_text_in_another_spelling():
    dropped = command_line(["attend", "--ids", "1,2,3", "--ids=4,5", "--prompts", "file", "--top", "3"], False)
    assert dropped == [
        "attend",
        "--ids",
        "[prompt not kept]",
        "--ids=[prompt not kept]",
        "--prompts",
        "file",
        "--top",
        "3",
    ]
    assert command_line(["-p", "kept"], True) == ["-p", "kept"]
