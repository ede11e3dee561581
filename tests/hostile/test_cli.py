"""Bad input at the command line: one sentence, the right exit code, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mechview.cli import run
from mechview.models.bundled import data_folder

USAGE, MODEL = 2, 3


@pytest.fixture
def refused(capsys, tmp_path):
    """Run a command that must fail: its one sentence. Nothing may appear beside what was there."""

    def call(code: int, *arguments: object) -> str:
        before = sorted(str(path) for path in tmp_path.rglob("*"))
        capsys.readouterr()
        assert run([str(argument) for argument in arguments]) == code
        said = capsys.readouterr()
        assert said.out == ""
        lines = said.err.splitlines()
        assert len(lines) == 1, said.err
        assert lines[0].startswith("mechview: ")
        assert "Traceback" not in lines[0]
        assert lines[0].isprintable()
        assert sorted(str(path) for path in tmp_path.rglob("*")) == before
        return lines[0].removeprefix("mechview: ")

    return call


@pytest.fixture
def broken(tmp_path):
    """A copy of the toy to damage."""
    folder = tmp_path / "model"
    shutil.copytree(data_folder() / "toy", folder, ignore=shutil.ignore_patterns("checkpoints"))
    return folder


def reconfigure(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def reweigh(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


VERBS = (["heads"], ["head", "L1H0"], ["pattern", "L1H0"], ["message", "L1H0"], ["attend"], ["doctor"], ["report"])


def of(verb: list[str], model: object, *options: object) -> list[object]:
    return [verb[0], model, *verb[1:], *options]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_unknown_model_offline(refused, verb, tmp_path):
    said = refused(
        MODEL, *of(verb, "acme/none", "--offline", "--out", tmp_path / f"x.{'html' if verb == ['report'] else 'json'}")
    )
    assert (
        said
        == "acme/none (revision main) is not bundled, is not in the local cache, and offline mode is on (--offline or HF_HUB_OFFLINE)"
    )


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_truncated_weights(refused, verb, broken, tmp_path):
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    out = tmp_path / ("x.html" if verb == ["report"] else "x.csv")
    assert "safetensors" in refused(MODEL, *of(verb, broken, "--out", out))


@pytest.mark.parametrize("size", [0, 5, 100])
def test_weights_cut_inside_their_header(refused, broken, size):
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert "model.safetensors is not a readable safetensors file" in refused(MODEL, "head", broken, "L0H0")


def test_missing_weights(refused, broken):
    (broken / "model.safetensors").unlink()
    assert "holds no .safetensors and no pytorch_model.bin" in refused(MODEL, "heads", broken)


def test_a_missing_tensor_is_named(refused, broken):
    reweigh(broken, lambda tensors: tensors.pop("model.layers.1.self_attn.o_proj.weight"))
    assert "model.layers.1.self_attn.o_proj.weight" in refused(MODEL, "head", broken, "L1H0")
    assert "model.layers.1.self_attn.o_proj.weight" in refused(MODEL, "attend", broken)


class Malicious:
    def __init__(self, proof: Path):
        self.proof = proof

    def __reduce__(self):
        return (os.mkdir, (str(self.proof),))


@pytest.mark.parametrize("verb", [["heads"], ["attend"], ["doctor"]], ids=lambda verb: verb[0])
@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_code_in_a_pickle_is_refused_and_not_run(refused, broken, tmp_path, verb, writer):
    (broken / "model.safetensors").unlink()
    proof, target = tmp_path / "proof", broken / "pytorch_model.bin"
    if writer == "torch":
        torch.save({"model.embed_tokens.weight": Malicious(proof)}, target)
    else:
        target.write_bytes(pickle.dumps({"model.embed_tokens.weight": Malicious(proof)}))
    assert "pytorch_model.bin" in refused(MODEL, *of(verb, broken))
    assert not proof.exists()


def test_the_pickle_would_have_run_elsewhere(tmp_path):
    pickle.loads(pickle.dumps(Malicious(tmp_path / "proof")))
    assert (tmp_path / "proof").is_dir()


@pytest.mark.parametrize("verb", [["heads"], ["doctor"]], ids=lambda verb: verb[0])
def test_quantised_weights(refused, broken, verb):
    reconfigure(broken, quantization_config={"quant_method": "gptq", "bits": 4})
    assert "the weights are quantised (gptq)" in refused(MODEL, *of(verb, broken))


def test_integer_weights_are_not_numbers(refused, broken):
    name = "model.layers.1.self_attn.q_proj.weight"
    reweigh(broken, lambda tensors: tensors.update({name: torch.ones_like(tensors[name], dtype=torch.int8)}))
    assert f"{name} is stored as int8" in refused(MODEL, "head", broken, "L1H0")


def test_nan_names_tensor_layer_and_head(refused, broken):
    def poison(tensors):
        tensors["model.layers.1.self_attn.q_proj.weight"][40, 3] = float("nan")  # row 40 of heads of 16: head 2

    reweigh(broken, poison)
    said = refused(MODEL, "heads", broken)
    assert "layer 1" in said
    assert "W_Q" in said
    assert "head 2" in said
    assert "model.layers.1.self_attn.q_proj.weight" in refused(MODEL, "attend", broken)
    assert run(["head", str(broken), "L0H0"]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["head", "L2H0"], "layer 2 does not exist: this model has layers 0 to 1"),
        (["head", "L1H4"], "head 4 does not exist: "),
        (["head", "--layer", "7", "--head", "0"], "layer 7 does not exist"),
        (["heads", "--layers", "0:9"], "layer 8 does not exist"),
        (["heads", "--heads", "L0H0,L5H1"], "layer 5 does not exist"),
        (["attend", "--heads", "L0H9"], "head 9 does not exist: "),
        (["attend", "L9H0"], "layer 9 does not exist"),
        (["message", "L0H4"], "head 4 does not exist: "),
        (["report", "--layers", "3"], "layer 3 does not exist"),
        (["report", "--heads", "L0H7"], "head 7 does not exist"),
    ],
)
def test_layers_and_heads_that_are_not_there(refused, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(USAGE, *arguments)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-p", ""], "the prompt is empty"),
        (["-p", "word " * 2000], "tokens; toy reads at most"),
        (["--ids", "1,2,99999"], "token id 99999 does not exist: the vocabulary has ids 0 to"),
        (["--ids", "1,-2"], "token id -2 does not exist"),
        (["--ids", "1,x"], "is not a list of token ids"),
        (["-p", "a\udc80b"], "the prompt holds a lone surrogate at character 1"),
        (["-p", "hello", "--chat"], "toy has no chat template"),
        (["--prompts", "no-such-file.txt"], "no-such-file.txt cannot be read"),
    ],
)
@pytest.mark.parametrize("verb", ["attend", "doctor", "report"])
def test_prompts_that_cannot_be_read(refused, tmp_path, monkeypatch, verb, options, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(USAGE, verb, *options)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.txt", b"\n \n", "holds no prompt"),
        ("a.txt", b"ok\n\xff\xfe", "is not UTF-8 text"),
        ("a.jsonl", b'{"prompt": "ok"}\n{"prompt"', "a.jsonl, line 2 is not JSON"),
        ("a.jsonl", b'{"words": "ok"}\n', "a.jsonl, line 1 has neither"),
    ],
)
def test_files_that_hold_no_prompts(refused, tmp_path, name, data, sentence):
    (tmp_path / name).write_bytes(data)
    assert sentence in refused(USAGE, "attend", "--prompts", tmp_path / name)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", '"text"', '{"model_type": 5}', '{"model_type": "no_such_family"}', "\xff", "[" * 100_000],
)
def test_malformed_configurations(refused, broken, text):
    (broken / "config.json").write_bytes(text.encode("latin-1"))
    assert "config" in refused(MODEL, "heads", broken)


def test_a_configuration_that_contradicts_itself(refused, broken):
    reconfigure(broken, num_attention_heads=5)
    refused(MODEL, "heads", broken)


@pytest.mark.parametrize(("family", "reason"), [("mamba", "no attention heads"), ("deepseek_v3", "latent attention")])
def test_families_out_of_reach_are_refused_with_the_reason(refused, broken, family, reason):
    reconfigure(broken, model_type=family)
    said = refused(MODEL, "doctor", broken)
    assert said.startswith(f"{family} is not supported: ")
    assert reason in said


def test_a_family_mechview_does_not_know(refused, broken):
    reconfigure(broken, model_type="ctrl")
    assert "not in mechview's table of families" in refused(MODEL, "heads", broken)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/model.safetensors", 5])
def test_an_index_cannot_point_out_of_its_folder(refused, broken, name):
    (broken / "model.safetensors").rename(broken.parent / "secret.safetensors")
    (broken / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "which is not a file of its folder" in refused(MODEL, "heads", broken)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": []}', '{"weight_map": {"a": "gone.safetensors"}}'])
def test_a_damaged_index(refused, broken, text):
    (broken / "model.safetensors").unlink()
    (broken / "model.safetensors.index.json").write_text(text)
    assert "index" in refused(MODEL, "heads", broken)


@pytest.mark.parametrize(
    "spec", ["", "../..", "..", "/no/such/folder", "./none", "a/b/c", "toy\n", "-", "package:", "package:no_such", "package:../x", "none.gguf", "toy\x1b[31m"]
)  # fmt: skip
def test_texts_that_are_no_models(refused, tmp_path, monkeypatch, spec):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    arguments = ["heads", "--offline", "--", spec]
    assert refused(run_code(spec), *arguments)


def run_code(spec: str) -> int:
    return MODEL if spec in ("../..", "..", "/no/such/folder", "./none", "package:no_such", "none.gguf") else USAGE


def test_a_gguf_that_is_none(refused, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + b"\0" * 50)
    assert "x.gguf cannot be read" in refused(MODEL, "heads", tmp_path / "x.gguf")
    (tmp_path / "y.gguf").write_bytes(b"no")
    assert "y.gguf is not a GGUF file" in refused(MODEL, "heads", tmp_path / "y.gguf")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["explode"], "explode"),
        (["heads", "--explode"], "--explode"),
        (["heads", "--offset", "x"], "--offset"),
        (["heads", "--dtype", "int4"], "--dtype"),
        (["heads", "--format", "xlsx"], "--format"),
        (["attend", "--bos", "perhaps"], "--bos"),
        (["attend", "--threshold", "2"], "--threshold"),
        (["heads", "toy", "gpt2", "bert"], "bert"),
        (["head"], "say which head"),
        (["head", "toy"], "say which head"),
        (["head", "toy", "L1"], "not the name of a head"),
        (["head", "--layer", "1"], "belong together"),
        (["head", "L1H0", "--layer", "1", "--head", "0"], "twice"),
        (["heads", "--layers", "a"], "'a' is not a layer"),
        (["heads", "--layers", "0", "--heads", "L1H0"], "L1H0 is not in --layers"),
        (["attend", "L1H0", "--heads", "L0H0"], "twice"),
        (["heads", "--device", "toaster"], "'toaster' is not a device"),
        (["heads", "--device", "cuda:99"], "no device cuda:99"),
        (["heads", "--revision", "step-7"], "toy has no checkpoint step-7"),
        (["heads", "--format", "parquet"], "not for a terminal"),
        (["heads", "--json", "--format", "csv"], "contradict"),
        (["heads", "--out", "a.txt"], "does not fit here"),
        (["heads", "--out", "a.npz"], "does not fit here"),
        (["heads", "--out", "a.csv", "--json"], "is named as csv"),
        (["pattern", "--out", "a.npz"], "one head"),
        (["pattern", "L1H0", "--dense"], "--dense needs"),
        (["report", "--out", "a.pdf"], "a report is an .html file"),
    ],
)
def test_usage(refused, tmp_path, monkeypatch, arguments, part):
    monkeypatch.chdir(tmp_path)
    code = MODEL if "step-7" in arguments else USAGE
    assert part in refused(code, *arguments)


def test_places_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "old.csv").write_text("old")
    (tmp_path / "folder.csv").mkdir()
    assert "exists already; --force replaces it" in refused(USAGE, "heads", "--out", tmp_path / "old.csv")
    assert (tmp_path / "old.csv").read_text() == "old"
    assert "is a folder" in refused(USAGE, "heads", "--out", tmp_path / "folder.csv")
    assert "there is no folder" in refused(USAGE, "report", "--out", tmp_path / "none" / "x.html")


def test_places_are_checked_before_the_model_is_opened(refused, tmp_path):
    assert "there is no folder" in refused(
        USAGE, "doctor", "acme/none", "--offline", "--out", tmp_path / "none" / "x.csv"
    )


@pytest.mark.parametrize("arguments", [["heads", "--out", "x.csv"], ["message", "L1H0", "--out", "x.npz"]])
def test_a_disk_that_fills_up_leaves_nothing(refused, tmp_path, monkeypatch, arguments):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(USAGE, *arguments)


def test_an_interrupted_run_says_so_and_leaves_nothing(refused, tmp_path, monkeypatch):
    from mechview.heads import table

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "head_table", interrupt)
    assert refused(130, "heads", "--out", tmp_path / "x.csv") == "interrupted"


def process(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mechview", *arguments], text=True, timeout=600, check=False, stderr=subprocess.PIPE, **settings
    )  # fmt: skip


def test_a_process_ends_with_the_same_sentence_and_code():
    done = process("head", "/no/such/folder", "L0H0", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (MODEL, "", "mechview: there is no folder /no/such/folder\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_stdout():
    with open("/dev/full", "w") as full:
        done = process("models", stdout=full)
    assert (done.returncode, done.stderr) == (USAGE, "mechview: stdout cannot be written: no space left\n")


def test_a_reader_that_goes_away_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = process("models", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_ascii_terminal_still_gets_its_table():
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = process("schema", "--format", "csv", stdout=subprocess.PIPE, env=plain)
    assert done.returncode == 0
    assert "\\xb1" in done.stdout or done.stdout.isascii()
    assert done.stderr == ""
