"""Verbs of the residual stream and of change: what they print adds up, and what they refuse."""

from __future__ import annotations

import pytest

pytest_plugins = ["commands"]

PROMPT = "the man and the woman and the man and the"
OTHER = "the man and the king and the man and the"


def test_resid_prints_shares_that_sum_to_the_models_logit(cli):
    done = cli("resid", "-p", PROMPT, "-t", " man", "--json")
    rows = done.json["rows"]
    assert done.code == 0
    assert sum(row["value"] for row in rows) == pytest.approx(rows[0]["total"], abs=1e-4)
    assert done.json["manifest"]["arguments"]["freeze"] == "own"
    said = cli("resid", "-p", PROMPT, "-t", " man").out
    assert "(the model's own); rows sum to it within" in said


def test_resid_without_a_target_shows_every_row_and_position_zero_apart(cli):
    said = cli("resid", "-p", PROMPT, "--by", "layer").out
    assert "norm at position 0" in said
    assert "rows sum to the model's own stream within" in said
    at = cli("resid", "-p", PROMPT, "--by", "layer", "--point", "L1.mid", "--json").json
    assert {row["component"] for row in at["rows"]} == {"embed", "L0.attn", "L0.mlp", "L1.attn"}


def test_lens_ends_at_the_models_output(cli):
    rows = cli("lens", "-p", PROMPT, "-t", " man", "--json").json["rows"]
    assert {row["point"] for row in rows} == {"L0.pre", "L0.mid", "L1.pre", "L1.mid", "final"}
    assert max(row["kl_final"] for row in rows if row["point"] == "final") < 1e-8
    assert "logit lens at position 4" in cli("lens", "-p", PROMPT, "--position", "4").out


def test_compare_says_identical_and_ranks_what_differs(cli):
    same = cli("compare", "toy", "toy")
    assert "toy@final against toy@final: identical" in same.out
    prompts = cli("compare", PROMPT, OTHER, "--model", "toy", "-t", " woman", "--json")
    assert prompts.code == 0
    assert {"share", "norm"} <= {row["quantity"] for row in prompts.json["rows"]}


def test_ablate_shows_direct_beside_total(cli):
    rows = cli("ablate", "-p", PROMPT, "-t", " man", "--json").json["rows"]
    assert {"L1H1", "L0.mlp"} <= {row["component"] for row in rows}
    for row in rows:
        assert row["difference"] == pytest.approx(row["direct"] - row["total"], abs=1e-6)
        assert row["error"] < 1e-5


def test_patch_restores_what_the_clean_prompt_had(cli):
    done = cli("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " woman", "--what", "stream", "--json")
    rows = done.json["rows"]
    before = [row["normalised"] for row in rows if row["component"].startswith("L0.pre")]
    assert max(before) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("resid", "-p", PROMPT, "-t", " incomprehensible"), "tokens, not one"),
        (("resid", "-p", PROMPT, "--by", "heads"), "is not a grain"),
        (("resid", "-p", PROMPT, "--point", "middle"), "is not a place"),
        (("resid", "-p", PROMPT, "--against", " man"), "--against needs a --target"),
        (("resid", "-p", PROMPT, "-t", " man", "--freeze", "all"), "is not a choice"),
        (("resid", "-p", "one", "-p", "two"), "reads one prompt"),
        (("ablate", "-p", PROMPT), "say which token's logit"),
        (("lens", "-p", PROMPT, "--position", "99"), "position 99 does not exist"),
        (("patch", "-p", PROMPT, "--corrupted", "the man", "-t", " man"), "tokens"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_bad_usage(cli, arguments, sentence):
    done = cli(*arguments)
    assert done.code == 2
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
