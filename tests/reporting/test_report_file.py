"""Writing reports: whole or not at all, within a budget, and what each argument changes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from functools import partial
from pathlib import Path

import pytest
from reports import PROMPT, gathered

from conftest import family
from mechview.errors import HeadError, OutputError, PromptError
from mechview.heads.registry import METRICS, load_metrics, metric
from mechview.models.tracing import DEFAULT_PROMPT, default_prompt
from mechview.reporting import build
from mechview.reporting.build import fitted

report = partial(build.report, roles=False)  # roles take more time than all the rest; they have tests of their own


def data_of(path: Path) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)[1])


def manifest_of(path: Path) -> dict:
    import html

    return json.loads(
        html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", path.read_text(encoding="utf-8"), re.DOTALL)[1])
    )


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "report.html"


def test_a_report_is_written_and_its_path_returned(toy, path):
    assert report(toy, [PROMPT], out=path) == path
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    assert len(data_of(path)["heads"]) == 8


def test_the_default_prompt_repeats_itself(toy, path):
    report(toy, out=path)
    shown = [token[0] for token in data_of(path)["prompts"][0]["tokens"]["decoder"]]
    assert "".join(shown).endswith(DEFAULT_PROMPT.replace(" ", "·"))
    metrics = {metric["name"]: metric["values"] for metric in data_of(path)["metrics"]}
    assert None not in metrics["induction_mass"]
    assert manifest_of(path)["arguments"]["prompts"] == "default"


def test_a_model_without_a_tokenizer_reads_repeated_ids(path):
    model, _ = family("gpt2")
    ids = default_prompt(model)
    assert ids[: len(ids) // 2] == ids[len(ids) // 2 :]
    report(model, out=path)
    assert [token[0] for token in data_of(path)["prompts"][0]["tokens"]["decoder"]] == [f"#{i}" for i in ids]


def test_encoder_decoder_heads_have_sections_of_their_own(path):
    model, _ = family("t5")
    report(model, [[3, 4, 5, 3, 4]], out=path)
    data = data_of(path)
    assert {head["stack"] for head in data["heads"]} == {"encoder", "decoder", "cross"}
    assert len(data["prompts"][0]["tokens"]["encoder"]) == 5
    assert 'id="X.L1H0"' in path.read_text(encoding="utf-8")


def test_no_prompts_means_weights_alone(toy, path):
    report(toy, [], out=path)
    assert data_of(path)["prompts"] == []
    assert "No prompt was asked for." in path.read_text(encoding="utf-8")
    assert all(metric["group"] == "from weights" for metric in data_of(path)["metrics"])


def test_layers_and_heads_choose(toy, path, tmp_path):
    report(toy, [PROMPT], out=path, layers=[1])
    assert [head["label"] for head in data_of(path)["heads"]] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert "4 of 8 heads were asked for." in path.read_text(encoding="utf-8")
    other = report(toy, [PROMPT], out=tmp_path / "b.html", heads=["L0H3", (1, 2)])
    assert [head["label"] for head in data_of(other)["heads"]] == ["L0H3", "L1H2"]
    assert set(data_of(other)["prompts"][0]["views"]) == {"L0H3", "L1H2"}


def test_settings_change_the_numbers_and_are_stated(toy, path, tmp_path):
    report(toy, [PROMPT], out=path)
    raw = report(toy, [PROMPT], out=tmp_path / "raw.html", fold=False)
    moved = report(toy, [PROMPT], out=tmp_path / "moved.html", offset=3)
    bare = report(toy, [PROMPT], out=tmp_path / "bare.html", bos="no")
    assert data_of(raw)["spectra"]["message"] != data_of(path)["spectra"]["message"]
    assert data_of(moved)["spectra"]["pattern"] != data_of(path)["spectra"]["pattern"]
    assert data_of(moved)["heads"][0]["offset"] == 3
    assert len(data_of(bare)["prompts"][0]["tokens"]["decoder"]) + 1 == len(
        data_of(path)["prompts"][0]["tokens"]["decoder"]
    )
    assert manifest_of(raw)["norms"] == "raw"
    assert manifest_of(path)["norms"] == "folded"
    assert "prompt 0: none was added" in bare.read_text(encoding="utf-8")


def test_text_is_left_out_when_asked(toy, path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mechview", "report", "-p", "a secret plan"])
    report(toy, ["a secret plan"], out=path, keep_text=False)
    text = path.read_text(encoding="utf-8")
    assert "secret" not in text
    assert "plan" not in re.sub(r"plane|planted|explan", "", text)
    assert {token[0] for token in data_of(path)["prompts"][0]["tokens"]["decoder"]} == {"•"}
    assert "[prompt not kept]" in manifest_of(path)["command"]


def test_an_existing_file_is_kept_without_force(toy, path):
    path.write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        report(toy, [], out=path)
    assert path.read_text() == "mine"
    report(toy, [], out=path, force=True)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_folder_that_is_missing_is_one_sentence(toy, tmp_path):
    with pytest.raises(OutputError, match="there is no folder"):
        report(toy, [], out=tmp_path / "nowhere" / "report.html")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(toy, path, monkeypatch):
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        report(toy, [], out=path, force=True)
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(("arguments", "error"), [
    ({"prompts": [""]}, PromptError), ({"layers": [7]}, HeadError), ({"heads": ["L0H9"]}, HeadError),
])  # fmt: skip
def test_bad_requests_write_nothing(toy, path, arguments, error):
    with pytest.raises(error):
        report(toy, out=path, **arguments)
    assert not list(path.parent.iterdir())


def test_the_budget_takes_scores_first_then_steps_then_prompts_then_refuses():
    found = gathered()
    two = dataclasses.replace(found, prompts=found.prompts * 2)
    full = len(fitted(two, 10**9).encode())
    without = fitted(two, full - 1)
    assert "Scores before softmax were left out" in without
    assert "Attention maps are kept to steps" not in without
    coarse = fitted(two, len(without.encode()) - 1)
    assert "Attention maps are kept to steps of 0.004" in coarse
    assert "prompts were left out" not in coarse
    one = fitted(two, len(coarse.encode()) - 1)
    assert "1 of 2 prompts were left out as well." in one
    assert len(one.encode()) < len(coarse.encode()) < len(without.encode())
    with pytest.raises(OutputError, match=r"the report would be 0\.\d MB, more than 0\.01"):
        fitted(two, 10_000)


def test_the_budget_is_in_megabytes(toy, path):
    with pytest.raises(OutputError, match=r"more than 0\.02"):
        report(toy, [PROMPT], out=path, max_mb=0.02)
    assert not path.exists()


def test_a_run_that_is_given_is_the_one_stated(toy, path):
    from mechview.manifest import recorded

    with recorded() as run:
        run.warnings.append("something to know")
        build.report(toy, [], out=path, run=run)
    assert "something to know" in path.read_text(encoding="utf-8")
    assert manifest_of(path)["date"].startswith("20")


def test_a_users_metric_and_roles_are_columns_notes_and_role_lines(toy, path):
    load_metrics()
    before = dict(METRICS)
    about = {"definition": "The largest weight of a row.", "cannot": "Where it is.", "source": "this test"}
    metric("sharpness", "random", **about)(lambda seen: seen.pattern.amax(-1).mean(-1))
    table = path.with_name("roles.toml")
    table.write_text('[sharp]\ntests = [{metric = "sharpness", at_least = 0.9}]\n', encoding="utf-8")
    try:
        build.report(toy, [PROMPT], out=path, thresholds=table)
    finally:
        METRICS.clear()
        METRICS.update(before)
    data, page = data_of(path), path.read_text(encoding="utf-8")
    assert "sharp (sharpness 0.9" in next(head["role"] for head in data["heads"] if head["label"] == "L0H3")
    assert "sharpness" in {one["name"] for one in data["metrics"]}
    assert page.count("The largest weight of a row.") >= 2
    assert manifest_of(path)["arguments"]["thresholds"] == str(table)


def test_warnings_of_the_run_reach_the_page(toy, path):
    bos = toy.tokenizer.bos_token
    report(toy, [f"{bos}And the evening"], out=path)
    assert "the prompt starts with two BOS tokens" in path.read_text(encoding="utf-8")


@pytest.mark.real
def test_smollm2_gets_a_full_report_that_passes_and_stays_small(smollm2, path):
    report(smollm2, [list(range(1000, 1032))], out=path)
    data = data_of(path)
    assert len(data["heads"]) == len(data["prompts"][0]["views"]) == 270
    assert "Parity passed" in path.read_text(encoding="utf-8")
    errors = [value for metric in data["metrics"] if metric["kind"] == "log" for value in metric["values"]]
    assert len(errors) == 540
    assert max(errors) < 1e-4
    assert path.stat().st_size < 3e6
