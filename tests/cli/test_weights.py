"""Verbs on weights alone: the right numbers, one layer's read, and each option changing what it should."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

from mechview.models.bundled import data_folder
from mechview.models.checkpoint import FolderTensors

pytest_plugins = ["commands"]


@pytest.fixture(scope="module")
def raw():
    """The toy's tensors straight from its file, in float64."""
    return {name: W.double() for name, W in load_file(data_folder() / "toy" / "model.safetensors").items()}


def message_by_hand(raw, layer: int, head: int, d_head: int = 16) -> torch.Tensor:
    block = f"model.layers.{layer}."
    gain = raw[block + "input_layernorm.weight"]
    rows = slice(head * d_head, (head + 1) * d_head)
    W_V = raw[block + "self_attn.v_proj.weight"][rows].mT
    return (gain[:, None] * W_V) @ raw[block + "self_attn.o_proj.weight"][:, rows].mT


def values(done, metric: str) -> dict[str, float]:
    return {row["label"]: row["value"] for row in done.json["rows"] if row["metric"] == metric}


def test_norms_are_those_of_the_files_own_matrices(cli, raw):
    done = cli("heads", "--json")
    assert done.code == 0
    norms = values(done, "message_norm")
    assert list(norms) == [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    for label, norm in norms.items():
        by_hand = message_by_hand(raw, int(label[1]), int(label[3])).norm()
        assert norm == pytest.approx(float(by_hand), rel=1e-5)


def test_json_says_what_was_asked_and_of_what(cli):
    found = cli("heads", "--json", "--layers", "1", "--raw", "--offset", "2").json
    assert found["schema_version"] == found["manifest"]["schema_version"]
    assert found["manifest"]["model"] == "toy"
    assert len(found["manifest"]["weights_sha256"]) == 64
    asked = found["manifest"]["arguments"]
    assert (asked["verb"], asked["layers"], asked["fold"], asked["offset"]) == ("heads", "1", False, 2)
    assert {row["layer"] for row in found["rows"]} == {1}


def test_unmeasured_parity_is_said_and_not_shown_as_a_number(cli):
    done = cli("heads")
    assert "parity was not measured" in done.out
    assert "pattern parity" not in done.out
    found = cli("heads", "--json")
    assert set(values(found, "pattern_parity_error").values()) == {None}
    assert found.json["not_finite"]["value"]["nan"] == 16


def test_a_prompt_measures_parity_and_no_parity_does_not(cli):
    done = cli("heads", "-p", "And God said, Let there be light.", "--json")
    errors = values(done, "pattern_parity_error") | values(done, "message_parity_error")
    assert done.code == 0
    assert all(0 <= error < 1e-4 for error in errors.values())
    assert "parity passed on" in cli("heads", "--parity").out
    assert "parity was not measured" in cli("heads", "-p", "And God said", "--no-parity").out


def test_parity_of_several_prompts_is_the_worst_of_them(cli):
    def errors(*prompts: str) -> dict[str, float]:
        return values(
            cli("heads", "--json", *(part for prompt in prompts for part in ("-p", prompt))), "pattern_parity_error"
        )

    one, other, both = (
        errors("And God said"),
        errors("Emma Woodhouse, handsome"),
        errors("And God said", "Emma Woodhouse, handsome"),
    )
    assert both == {label: max(one[label], other[label]) for label in one}
    assert both not in (one, other)


def test_a_failed_parity_is_exit_code_1(cli, monkeypatch):
    from mechview import checks

    honest = checks.writes_of
    monkeypatch.setattr(checks, "writes_of", lambda *parts: honest(*parts) * 1.001)
    done = cli("heads", "--parity")
    assert done.code == 1
    assert "parity FAILED" in done.out


@pytest.mark.parametrize("option", [["--offset", "3"], ["--raw"], ["--seed", "1"], ["--revision", "step-000100"]])
def test_options_change_the_table(cli, option):
    plain, changed = cli("heads", "--json").json["rows"], cli("heads", "--json", *option).json["rows"]
    measured = [
        row["null_mean" if option[0] == "--seed" else "value"]
        for row in plain
        if row["metric"] == "pattern_stable_rank"
    ]
    again = [
        row["null_mean" if option[0] == "--seed" else "value"]
        for row in changed
        if row["metric"] == "pattern_stable_rank"
    ]
    assert len(measured) == len(again) == 8
    assert measured != again


def test_heads_keeps_the_heads_asked_for(cli):
    rows = cli("heads", "--json", "--heads", "L1H3,(0, 2)").json["rows"]
    assert {row["label"] for row in rows} == {"L1H3", "L0H2"}


def test_a_pipe_gets_whole_lines_and_no_colours(cli):
    lines = cli("heads").out.splitlines()
    assert "\x1b" not in "".join(lines)
    row = next(line for line in lines if "L1H3" in line)
    assert len(row.split()) == 10


@pytest.mark.parametrize(
    "arguments", [["L1H0"], ["toy", "L1H0"], ["toy", "1.0"], ["(1, 0)"], ["--layer", "1", "--head", "0"]]
)
def test_one_head_however_it_is_named(cli, arguments):
    done = cli("head", *arguments)
    assert done.code == 0
    assert done.out.startswith("L1H0\n")
    assert "toy (final)" in done.out


def test_one_head_reads_one_layers_attention_and_nothing_else(cli, monkeypatch):
    read: list[str] = []
    honest = FolderTensors.read

    def counted(self, name):
        read.append(name)
        return honest(self, name)

    monkeypatch.setattr(FolderTensors, "read", counted)
    for verb, *options in (("head", "--no-roles"), ("pattern",), ("message",)):
        read.clear()
        assert cli(verb, "L1H2", *options).code == 0
        parts = {name.removeprefix("model.layers.1.").removesuffix(".weight") for name in read}
        assert parts == {"input_layernorm", *(f"self_attn.{part}_proj" for part in "qkvo")}


@pytest.mark.parametrize("side", ["pattern", "message"])
def test_spectrum_of_one_side(cli, side):
    rows = cli(side, "L1H0", "--json").json["rows"]
    assert {row["side"] for row in rows} == {side}
    assert [row["index"] for row in rows] == list(range(16))
    sigma = [row["sigma"] for row in rows]
    assert sigma == sorted(sigma, reverse=True)


def test_message_spectrum_is_the_dense_matrixs(cli, raw):
    sigma = [row["sigma"] for row in cli("message", "L1H2", "--json").json["rows"]]
    dense = torch.linalg.svdvals(message_by_hand(raw, 1, 2))[:16]
    assert_close(torch.tensor(sigma, dtype=torch.float64), dense, rtol=1e-4, atol=1e-5)


def test_without_a_head_every_head_has_its_spectrum(cli):
    rows = cli("pattern", "--json").json["rows"]
    assert len(rows) == 8 * 16
    assert cli("pattern").out.count("L1H") == 4


def test_thin_factors_go_to_safetensors(cli, raw, tmp_path):
    path = tmp_path / "m.safetensors"
    done = cli("message", "L1H2", "--out", path)
    assert (done.code, done.out) == (0, "")
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name).double() for name in ("left", "right", "affine_left", "affine_right")}
        names, about = set(file.keys()), file.metadata()
    assert names == set(found)
    assert found["left"].shape == (64, 16)
    assert_close(found["left"] @ found["right"], message_by_hand(raw, 1, 2), rtol=1e-5, atol=1e-6)
    assert_close((found["affine_left"] @ found["affine_right"])[-1, -1], torch.tensor(1.0, dtype=torch.float64))
    assert (about["model"], about["label"], about["side"], about["revision"]) == ("toy", "L1H2", "message", "final")
    assert (json.loads(about["folded"]), json.loads(about["offset"]), json.loads(about["scale"])) == (True, None, 0.25)


def test_pattern_factors_are_at_the_offset_asked_for(cli, tmp_path):
    import mechview as mv

    factors = mv.head_factors(mv.open_weights("toy"), layer=1, head=0)
    for offset in (0, 3):
        path = tmp_path / f"{offset}.npz"
        cli("pattern", "toy", "L1H0", "--offset", offset, "--dense", "-o", path)
        with np.load(path) as file:
            assert_close(torch.from_numpy(file["dense"]), factors.pattern(offset).dense())
            assert_close(torch.from_numpy(file["left"] @ file["right"]), factors.pattern(offset).dense())
            assert json.loads(str(file["metadata"]))["offset"] == offset
    assert not torch.allclose(factors.pattern(0).dense(), factors.pattern(3).dense())


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json", "md"])
def test_tables_go_to_files(cli, tmp_path, suffix):
    path = tmp_path / f"heads.{suffix}"
    done = cli("heads", "-o", path)
    assert (done.code, done.out) == (0, "")
    assert done.err == f"wrote {path}\n"
    expected = cli("heads", "--json").json["rows"]
    if suffix == "json":
        assert json.loads(path.read_text())["rows"] == expected
    elif suffix == "md":
        assert len(path.read_text().splitlines()) == 2 + len(expected)
    else:
        frame = pd.read_csv(path) if suffix == "csv" else pd.read_parquet(path)
        assert frame["label"].tolist() == [row["label"] for row in expected]
        assert frame["value"].dropna().tolist() == [row["value"] for row in expected if row["value"] is not None]


def test_formats_on_stdout(cli):
    assert cli("heads", "--format", "csv").out.startswith("model,revision,stack,layer,head,")
    assert cli("heads", "--format", "md").out.startswith("| model | revision |")
    assert cli("heads", "--format", "json").json["rows"] == cli("heads", "--json").json["rows"]


def test_quiet_is_quiet_and_a_useless_offset_is_said(cli, gpt2_folder, tmp_path):
    loud = cli("pattern", gpt2_folder, "L0H0", "--offset", "2")
    assert "--offset has no effect" in loud.err
    assert cli("pattern", gpt2_folder, "L0H0", "--offset", "2", "-q").err == ""
    assert cli("heads", "-q", "-o", tmp_path / "a.csv").err == ""


def test_stacks_are_named_apart(cli, t5_folder):
    rows = cli("heads", t5_folder, "--heads", "E.L0H1,X.L1H2,L1H0", "--json").json["rows"]
    assert list(dict.fromkeys(row["label"] for row in rows)) == ["E.L0H1", "L1H0", "X.L1H2"]
    assert cli("head", t5_folder, "X.L1H2").out.startswith("X.L1H2\n")
    assert cli("head", t5_folder, "L1H2").out.startswith("L1H2\n")
