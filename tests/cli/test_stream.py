"""Verbs of the residual stream and of change: what they print adds up, and what they refuse."""

from __future__ import annotations

import pytest

import mechview as mv

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
        (("resid", "-p", PROMPT, "-t", "#²"), "tokens, not one"),
        (("resid", "-p", PROMPT, "--point", "L².pre"), "is not a place"),
        (("resid", "-p", PROMPT, "--point", "L1"), "is not a place"),
        (("resid", "-p", PROMPT, "--point", "L1.top"), "is not a place"),
        (("resid", "-p", ""), "the prompt is empty"),
        (("resid", "-p", PROMPT, "--direction", ""), "is no direction"),
        (("lens", "-p", ""), "the prompt is empty"),
        (("why", "L1H1", "-p", ""), "the prompt is empty"),
        (("compare", PROMPT, "", "--model", "toy"), "the prompt is empty"),
        (("compare", "", PROMPT, "--model", "toy"), "the prompt is empty"),
        (("compare", "", "--model", "toy", "--positions", "0,1"), "the prompt is empty"),
        (("patch", "-p", PROMPT, "--corrupted", "", "-t", " man"), "the prompt is empty"),
        (("patch", "-p", "", "--corrupted", OTHER, "-t", " man"), "the prompt is empty"),
        (("ablate", "-p", "", "-t", " man"), "the prompt is empty"),
        (("ablate", "-p", PROMPT), "say which token's logit"),
        (("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " man", "--sender", "L0H0"), "needs a --receiver"),
        (("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " man", "--receiver", "L1H0"), "is no input of a head"),
        (("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " man", "--receiver", "L1H0.o"), "is no input of a head"),
        (("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " man", "--receiver", "L9H0.q"), "does not exist"),
        (("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " man", "--receiver", "L0H0.q"), "no head comes before"),
        (
            ("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " man", "--receiver", "L1H0.q", "--what", "mlp"),
            "--what",
        ),
        (("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " man", "--positions", "two"), "are no positions"),
        (
            ("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " man", "--positions", "99"),
            "position 99 does not exist",
        ),
        (("patch", "--prompts", "ioi", "--receiver", "L1H0.q"), "leave out"),
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


def test_a_path_is_patched_from_head_to_head_and_its_null_is_zero(cli, toy):
    pair = ("-p", PROMPT, "--corrupted", OTHER, "-t", " woman")
    done = cli("patch", *pair, "--receiver", "L1H1.k", "--json")
    found = mv.path_patch(toy, PROMPT, OTHER, " woman", receiver=(1, 1, "k"))
    assert [row["change"] for row in done.json["rows"]] == pytest.approx([row.change for row in found.rows], abs=1e-9)
    assert {row["receiver"] for row in done.json["rows"]} == {"L1H1.k"}
    one = cli("patch", *pair, "--receiver", "1.1.K", "--sender", "L0H2", "--sender", "0.3")
    assert "L1H1.k" in one.out
    assert "L0H3" in one.out
    assert "L0H0" not in one.out
    null = cli("patch", "-p", PROMPT, "--corrupted", PROMPT, "-t", " woman", "--receiver", "L1H1.k", "--json").json[
        "rows"
    ]
    assert {row["change"] for row in null} == {0.0}
    assert {row["normalised"] for row in null} == {None}


def test_patched_positions_are_those_asked_for(cli):
    rows = cli("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " woman", "--positions", "4,-1", "--json").json[
        "rows"
    ]
    assert {row["patched_position"] for row in rows} == {4, len(rows) and max(row["patched_position"] for row in rows)}
    every = cli("patch", "-p", PROMPT, "--corrupted", OTHER, "-t", " woman", "--positions", "each", "--json").json[
        "rows"
    ]
    assert len({row["patched_position"] for row in every}) > 5


ALONE = {
    "rows": (),
    "target": ("-t", " man"),
    "direction": ("--direction", "L1H2.message.v0"),
    "writes": ("-t", " man", "--writes"),
    "growth": ("--growth",),
}
GIVEN = {
    "position": ("--position", "3"), "freeze": ("--freeze", "own"), "fold": ("--raw",), "point": ("--point", "L1.mid"),
    "read": ("--read", "stream"), "by": ("--by", "layer"), "neurons": ("--neurons", "3"), "against": ("--against", " king"),
    "target": ("-t", " man"), "direction": ("--direction", "L1H2.message.v0"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ALONE)
@pytest.mark.parametrize("option", GIVEN)
def test_an_option_of_resid_acts_or_is_refused(cli, mode, option):
    """Never silently ignored: the answer differs from the one without it, its manifest does, or there is none."""
    if option in mode or (option, mode) in {("target", "writes"), ("target", "rows"), ("direction", "rows")}:
        return
    plain = cli("resid", "-p", PROMPT, *ALONE[mode], "--json").json
    done = cli("resid", "-p", PROMPT, *ALONE[mode], *GIVEN[option], "--json")
    if done.code:
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    elif option in ("freeze", "read"):  # given as they are anyway: allowed where they mean something
        assert mode in ("target", "direction")
    else:
        assert done.json["rows"] != plain["rows"]
    refused = {
        "rows": {"position", "freeze", "fold", "read", "against"},
        "growth": set(GIVEN),
        "target": {"point", "read"},
    }
    if option in refused.get(mode, set()):
        assert done.code == 2


def test_an_option_of_lens_acts_or_is_refused(cli):
    for given in (("--by", "layer"), ("--neurons", "3"), ("--against", " king")):
        done = cli("lens", "-p", PROMPT, "-t", " man", *given)
        assert (done.code, "needs --changes" in done.err) == (2, True)
