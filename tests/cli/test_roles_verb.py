"""Scores and roles on the command line: what they print stands beside its null, and is what Python gives."""

from __future__ import annotations

import re

import pytest

import mechview as mv
from mechview.heads.registry import METRICS, load_metrics

pytest_plugins = ["commands"]

FEW = ("--seeds", "1", "--copies", "1")


def test_heads_with_scores_prints_each_metric_beside_its_null(cli):
    done = cli("heads", "--scores", "induction,previous_token", *FEW)
    assert done.code == 0
    assert "induction (stripe) (weight)" in done.out
    assert "95 % band" in done.out
    rows = cli("heads", "--scores", "induction", *FEW, "--json").json["rows"]
    own = mv.head_scores(mv.load("toy"), ["induction"], seeds=1, copies=1)
    assert len(rows) == 8
    for row in rows:
        assert row["value"] == pytest.approx(own.row(row["label"], "induction").value, abs=1e-9)
        assert row["n"] == 4


def test_heads_with_scores_keeps_to_the_heads_asked_for(cli):
    rows = cli("heads", "--scores", "sink_mass", "--heads", "L1H1", *FEW, "--json").json["rows"]
    assert [row["label"] for row in rows] == ["L1H1"]


def test_roles_prints_the_heads_that_hold_one_and_counts_the_others(cli):
    done = cli("roles", *FEW)
    assert done.code == 0
    assert re.search(r"L0H3 .* previous_token \(previous_token 0\.9\d ≥ 0\.4, null", done.out)
    assert "of them unknown" in done.out


def test_heads_that_hold_no_role_are_counted_and_not_listed(cli, tmp_path):
    table = tmp_path / "roles.toml"
    table.write_text('[copier]\ntests = [{metric = "copying_eigenvalue", at_least = 0.99}]\n', encoding="utf-8")
    done = cli("roles", "--thresholds", table, *FEW)
    assert "roles of 8 heads, 4 of them unknown" in done.out
    assert not re.search(r"L0H0|L0H1|L0H2|L1H0", done.out)
    document = cli("roles", "--thresholds", table, *FEW, "--json").json
    assert {row["label"] for row in document["rows"] if row["roles"] == "unknown"} == {"L0H0", "L0H1", "L0H2", "L1H0"}
    assert document["manifest"]["arguments"]["thresholds"] == str(table)


def test_roles_of_one_head_is_its_card_with_every_test_and_the_causal_check(cli):
    done = cli("roles", "toy", "L1H1", "--causal", *FEW)
    assert "role of L1H1: induction" in done.out
    assert "prefix_matching" in done.out
    assert "not made" in done.out  # the toy's vocabulary has too few names
    assert "loss without the head" in done.out
    document = cli("roles", "toy", "L1H1", "--causal", *FEW, "--json").json
    assert "induction" in document["rows"][0]["roles"].split("+")
    assert document["causal"][0]["value"] > 1


def test_the_card_of_a_head_has_its_role_or_says_why_not(cli):
    with_role = cli("head", "L1H1")
    assert "role of L1H1: induction" in with_role.out
    without = cli("head", "L1H1", "--no-roles")
    assert "role: not looked for (--roles" in without.out
    assert "role of" not in without.out


def test_a_model_that_cannot_be_run_still_has_a_card(cli, falcon_alibi_folder):
    done = cli("head", str(falcon_alibi_folder), "L1H1")
    assert done.code == 0
    assert "role: not looked for: transformers adds Falcon's ALiBi twice" in done.out


def test_a_table_of_thresholds_and_a_file_of_metrics_are_taken(cli, tmp_path):
    load_metrics()
    before = dict(METRICS)
    metrics = tmp_path / "mine.py"
    metrics.write_text(
        "import mechview as mv\n"
        '@mv.metric("sharpness", "random", source="mine", definition="Largest weight.", cannot="Else.")\n'
        "def sharpness(seen):\n    return seen.pattern.amax(-1).mean(-1)\n",
        encoding="utf-8",
    )
    table = tmp_path / "roles.toml"
    table.write_text('[sharp]\ntests = [{metric = "sharpness", at_least = 0.9}]\n', encoding="utf-8")
    try:
        done = cli("roles", "--metrics-file", metrics, "--thresholds", table, *FEW)
        scored = cli("heads", "--scores", "sharpness", "--metrics-file", metrics, *FEW)
    finally:
        METRICS.clear()
        METRICS.update(before)
    assert "sharp (sharpness 0.9" in done.out
    assert "sharpness (weight): Largest weight." in scored.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("heads", "--scores", "inductions"), "there is no metric 'inductions'"),
        (("roles", "--task", "text"), "--task belongs to --causal"),
        (("roles", "--thresholds", "absent.toml"), "cannot be read"),
        (("roles", "L1H1", "--heads", "L1H2"), "name heads twice"),
        (("roles", "--metrics-file", "absent.py"), "is not there"),
        (("report", "--no-roles", "--thresholds", "absent.toml"), "ask for roles, which --no-roles leaves out"),
        (("report", "--metrics-file", "absent.py"), "is not there"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_bad_usage(cli, arguments, sentence):
    done = cli(*arguments)
    assert done.code == 2
    assert sentence in done.err
    assert done.out == ""
