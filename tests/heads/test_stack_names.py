"""A head's name says its stack: E. and X. mean those heads and no others, in every function and verb that takes names."""

from __future__ import annotations

import json
import re

import pytest

import families
import mechview as mv
from conftest import family
from mechview.errors import HeadError, UsageError
from mechview.heads.table import head_table

pytest_plugins = ["commands"]
NAMES = {"E.L0H1": "encoder", "X.L1H2": "cross", "L1H0": "decoder"}


@pytest.fixture(scope="module")
def t5():
    return family("t5")[0]


@pytest.mark.parametrize("names", [["E.L0H1"], ["X.L1H2"], ["L1H0"], list(NAMES), ["E.L0H1", "X.L0H1"]])
def test_names_keep_those_heads_and_no_others(t5, names):
    trace = mv.trace(t5, families.tokens(8), decoder=[0, 5, 7])
    assert {row.label for row in head_table(t5, heads=names).rows} == set(names)
    assert {head.label for head in mv.attend(trace, heads=names).heads} == set(names)
    scores = mv.head_scores(t5, ["entropy"], seeds=1, copies=0, heads=names)
    assert {row.label for row in scores.rows} == set(names)


def test_a_pair_means_every_stack_and_a_stack_chooses(t5):
    trace = mv.trace(t5, families.tokens(8), decoder=[0, 5, 7])
    every = {"E.L1H2", "X.L1H2", "L1H2"}
    assert {row.label for row in head_table(t5, heads=[(1, 2)]).rows} == every
    assert {head.label for head in mv.attend(trace, heads=[(1, 2)]).heads} == every
    assert [head.label for head in mv.attend(trace, heads=["L1H2"], stack="encoder").heads] == ["E.L1H2"]
    with pytest.raises(HeadError, match=r"E\.L0H1 is a head of the encoder, and heads of the cross are asked for"):
        mv.attend(trace, heads=["E.L0H1"], stack="cross")


def test_a_stack_the_model_lacks_is_refused(toy, minilm):
    for model, name in ((toy, "E.L0H1"), (toy, "X.L0H1"), (minilm, "X.L0H1")):
        with pytest.raises(HeadError, match="does not exist"):
            head_table(model, heads=[name])
        with pytest.raises(HeadError, match="does not exist"):
            mv.attend(mv.trace(model, "the man"), heads=[name])
    with pytest.raises((HeadError, UsageError)):
        mv.causal_check(toy, ["E.L0H0"], task="repeats")


def test_a_report_shows_the_heads_that_were_named(cli, t5_folder, tmp_path):
    for name in NAMES:
        out = tmp_path / f"{name}.html"
        done = cli("report", t5_folder, "--heads", name, "--ids", "5,9,14,20", "--no-roles", "--out", out)
        assert done.code == 0, done.err
        [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', out.read_text(), re.S)
        assert [head["label"] for head in json.loads(data)["heads"]] == [name]
    mv.report(mv.load(str(t5_folder)), [[5, 9]], heads=["X.L0H3"], out=tmp_path / "python.html", roles=False)
    assert "X.L0H3" in (tmp_path / "python.html").read_text()


@pytest.mark.parametrize("verb", ["heads", "attend"])
def test_verbs_with_a_list_of_heads_keep_those(cli, t5_folder, verb):
    ids = ("--ids", "5,9,14,20") if verb == "attend" else ()
    rows = cli(verb, t5_folder, "--heads", "E.L0H1,X.L1H2", *ids, "--json").json["rows"]
    assert {row["label"] for row in rows} == {"E.L0H1", "X.L1H2"}
