"""Verbs that run the model: their numbers are the original library's, their verdicts can be negative."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

pytest_plugins = ["commands"]

PROMPT = "And God said, Let there be light: and there was light."


def test_doctor_passes_the_toy_and_says_what_it_compared(cli):
    done = cli("doctor", "--thorough", "--json")
    found = done.json
    assert done.code == 0
    assert found["passed"] is True
    assert {row["quantity"] for row in found["rows"]} == {"pattern", "message", "attention", "stream", "logits"}
    assert max(row["error"] for row in found["rows"]) < found["tolerance"] == 1e-4
    assert set(found["agreement"]) == {"pattern", "z", "stream", "written", "mlp", "post", "logits"}
    assert max(found["agreement"].values()) < 1e-4
    assert found["backend"]["name"] == "TransformerLens bridge"
    assert any("offset" in limit for limit in found["limits"])
    assert found["manifest"]["model"] == "toy"


def test_doctor_reads_like_a_page(cli):
    said = cli("doctor", "-p", PROMPT, "-p", "In the beginning").out
    for heading in ("ENVIRONMENT", "MODEL", "BACKEND", "PARITY", "BRIDGE AGAINST FORWARD HOOKS", "LIMITS"):
        assert f"\n{heading}\n" in f"\n{said}"
    assert "not asked for; --thorough runs it" in said
    assert said.splitlines()[-1].startswith("PASSED: worst parity")


def test_doctor_fails_a_model_whose_message_is_a_thousandth_off(cli, monkeypatch):
    from mechview import checks

    honest = checks.writes_of
    monkeypatch.setattr(checks, "writes_of", lambda *parts: honest(*parts) * 1.001)
    done = cli("doctor")
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("FAILED: worst parity 0.001 (message")


def test_doctor_fails_when_the_backends_disagree(cli, monkeypatch):
    from dataclasses import replace

    from mechview.models import native

    honest = native.capture_native

    def off(*arguments):
        seen = honest(*arguments)
        return replace(seen, logits=seen.logits * 1.01)

    monkeypatch.setattr(native, "capture_native", off)
    assert cli("doctor").code == 0
    done = cli("doctor", "--thorough", "--json")
    assert done.code == 1
    assert done.json["agreement"]["logits"] == pytest.approx(0.01, rel=0.02)


def test_doctor_on_a_refused_pass_is_partial_and_says_why(cli, falcon_alibi_folder):
    done = cli("doctor", falcon_alibi_folder)
    assert done.code == 4
    assert "not measured: transformers adds Falcon's ALiBi twice" in done.out
    assert done.out.splitlines()[-1].startswith("PARTIAL")
    assert cli("doctor", falcon_alibi_folder, "--json").json["rows"] == []
    assert cli("heads", falcon_alibi_folder).code == 0


def test_doctor_runs_a_model_without_a_tokenizer_on_ids(cli, gpt2_folder):
    done = cli("doctor", gpt2_folder)
    assert done.code == 0
    assert "no tokenizer: prompts are token ids" in done.out


def test_attention_is_the_original_librarys(cli, toy):
    done = cli("attend", "-p", PROMPT, "--threshold", "0", "--json")
    rows, tokens = pd.DataFrame(done.json["rows"]), done.json["tokens"]
    ids = torch.tensor([[token["id"] for token in tokens]])
    with torch.no_grad():
        own = toy.module(ids, output_attentions=True).attentions
    seen = torch.zeros(2, 4, len(tokens), len(tokens))
    seen[rows["layer"], rows["head"], rows["q_pos"], rows["k_pos"]] = torch.tensor(rows["weight"]).float()
    torch.testing.assert_close(seen, torch.cat(own), rtol=1e-4, atol=1e-5)


def test_threshold_drops_pairs_and_states_their_mass(cli):
    kept = [
        pd.DataFrame(cli("attend", "L1H0", "-p", PROMPT, "--threshold", t, "--json").json["rows"]) for t in ("0", "0.2")
    ]
    assert len(kept[1]) < len(kept[0])
    assert kept[1]["weight"].min() >= 0.2
    sums = kept[1].groupby("q_pos")["weight"].sum() + kept[1].groupby("q_pos")["dropped_mass"].first()
    assert sums.to_numpy() == pytest.approx(1.0, abs=1e-5)


def test_top_pairs_are_the_largest_weights(cli):
    rows = cli("attend", "L1H0", "-p", PROMPT, "--threshold", "0", "--json").json["rows"]
    best = sorted((row["weight"] for row in rows if row["q_pos"] > 0), reverse=True)
    for top in (1, 4):
        lines = [
            line for line in cli("attend", "L1H0", "-p", PROMPT, "--top", top).out.splitlines() if " L1H0 " in line
        ]
        assert [line.split()[5] for line in lines] == [f"{weight:.4g}" for weight in best[:top]]


@pytest.mark.parametrize(
    ("choice", "labels"),
    [
        (["L1H0"], {"L1H0"}),
        (["--layers", "0"], {f"L0H{h}" for h in range(4)}),
        (["--heads", "L0H1,1.3"], {"L0H1", "L1H3"}),
    ],
)
def test_attention_of_the_heads_asked_for(cli, choice, labels):
    rows = cli("attend", *choice, "-p", PROMPT, "--json").json["rows"]
    assert {row["label"] for row in rows} == labels


def test_bos_is_a_choice_and_ids_are_taken_as_they_are(cli):
    def ids(*options: str) -> list[int]:
        return [token["id"] for token in cli("attend", "L0H0", "--json", *options).json["tokens"]]

    with_bos, without = ids("-p", PROMPT, "--bos", "yes"), ids("-p", PROMPT, "--bos", "no")
    assert with_bos[1:] == without
    assert ids("--ids", "5,6,7") == ids("--ids", "[5, 6, 7]") == [5, 6, 7]


def test_prompts_come_from_options_and_files(cli, tmp_path):
    lines, rows = tmp_path / "a.txt", tmp_path / "a.jsonl"
    lines.write_text("In the beginning\n\n  And God said\r\n")
    rows.write_text('{"prompt": "In the beginning"}\n{"text": "  And God said"}\n"And"\n')
    from_lines = cli("attend", "L0H0", "-p", "Emma", "--prompts", lines, "--keep-text", "--json").json["tokens"]
    from_rows = cli("attend", "L0H0", "--prompts", rows, "--keep-text", "--json").json["tokens"]
    assert {token["prompt_id"] for token in from_lines} == {0, 1, 2}
    second = [
        [token["id"] for token in found if token["prompt_id"] == n] for found, n in ((from_lines, 2), (from_rows, 1))
    ]
    assert second[0] == second[1]


def test_text_of_files_is_kept_only_when_asked(cli, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("In the beginning\n")
    assert "tokens" not in cli("attend", "L0H0", "--prompts", file, "--json").json
    assert "tokens" in cli("attend", "L0H0", "--prompts", file, "--keep-text", "--json").json
    assert "tokens" in cli("attend", "L0H0", "-p", "In the beginning", "--json").json
    assert "tokens" not in cli("attend", "L0H0", "-p", "In the beginning", "--drop-text", "--json").json


def test_dtype_of_the_pass(cli):
    done = {dtype: cli("doctor", "--json", "--dtype", dtype) for dtype in ("float32", "bfloat16")}
    worst = {
        dtype: max(row["error"] for row in seen.json["rows"] if row["quantity"] == "pattern")
        for dtype, seen in done.items()
    }
    assert worst["float32"] < 1e-4 < worst["bfloat16"] < 0.5
    assert {dtype: seen.code for dtype, seen in done.items()} == {"float32": 0, "bfloat16": 1}


def test_stacks_of_an_encoder_decoder(cli, t5_folder):
    rows = cli("attend", t5_folder, "--ids", "5,6,7,8", "--heads", "E.L0H1,X.L1H2", "--json").json["rows"]
    assert {row["label"] for row in rows} == {"E.L0H1", "X.L1H2"}
    assert cli("doctor", t5_folder).code == 0


def test_report_writes_one_page_and_prints_where(cli, tmp_path):
    path = tmp_path / "report.html"
    done = cli("report", "-p", PROMPT, "--layers", "1", "--out", path)
    page = path.read_text()
    assert (done.code, done.out) == (0, f"{path}\n")
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    assert 'id="L1H3"' in page
    assert 'id="L0H3"' not in page, "only layer 1 has cards; the stream names who wrote it"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    again = cli("report", "-p", PROMPT, "--out", path)
    assert (again.code, again.out) == (2, "")
    forced = cli("report", "-p", PROMPT, "--out", path, "--force", "--json")
    assert forced.json["report"] == str(path)
    assert forced.json["bytes"] == path.stat().st_size


def test_chat_wraps_the_prompt_in_the_template(cli, tmp_path, toy_copy):
    settings = toy_copy / "tokenizer_config.json"
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": template}))
    tokens = cli("attend", toy_copy, "L0H0", "-p", "light", "--chat", "--json").json["tokens"]
    assert "".join(token["text"] for token in tokens) == "<user>light<a>"


def test_report_on_a_model_whose_parity_fails_is_written_and_fails(cli, tmp_path, monkeypatch):
    from mechview import checks

    true = checks.relative
    monkeypatch.setattr(checks, "relative", lambda ours, reference: max(0.5, true(ours, reference)))
    out = tmp_path / "r.html"
    done = cli("report", "--out", str(out), "-p", PROMPT)
    assert done.code == 1
    assert "parity failed" in done.err
    assert "Parity failed" in out.read_text(encoding="utf-8")
