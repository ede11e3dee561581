"""The engine of roles on scores made up for it, and the table that a user edits."""

from __future__ import annotations

import math

import pytest
import torch

import mechview as mv
from mechview.errors import UnsupportedError, UsageError
from mechview.heads.roles import role_card, role_table
from mechview.heads.scores import Score
from mechview.tables import check_schema


def card(table=None, **values):
    """The card of a head with these scores, each with a null of 0.05 ± 0.01 from 20 draws."""
    rows = {m: Score("decoder", 0, 0, 0, "L0H0", m, v, 0.05, 0.01, 20) for m, v in values.items()}
    return role_card(table or role_table(), rows)


def test_a_role_needs_all_of_its_tests():
    assert card(induction=0.9, prefix_matching=0.9).roles == ("induction",)
    assert card(induction=0.9, prefix_matching=0.1).roles == ("unknown",)
    assert card(induction=0.9).roles == ("unknown",)  # a test that was not made is not passed
    assert card(induction=0.9, prefix_matching=math.nan).roles == ("unknown",)
    made = card(induction=0.9, prefix_matching=math.nan).evidence
    assert [e.passed for e in made] == [True, None]


def test_several_roles_may_be_held_and_the_line_tells_the_numbers():
    held = card(previous_token=0.9, positional_share=0.95)
    assert held.roles == ("previous_token", "positional")
    assert "previous_token 0.90 ≥ 0.4, null 0.05 ± 0.01" in held.line


def test_a_head_that_half_holds_two_roles_is_mixed():
    assert card(previous_token=0.3, sink_mass=0.3).roles == ("mixed",)
    assert card(previous_token=0.3, sink_mass=0.1).roles == ("unknown",)
    assert card(previous_token=0.5, sink_mass=0.3).roles == ("previous_token",)


def test_a_large_value_inside_the_band_of_its_null_holds_nothing():
    wide = Score("decoder", 0, 0, 0, "L0H0", "sink_mass", 0.6, 0.5, 0.2, 20)
    assert role_card(role_table(), {"sink_mass": wide}).roles == ("unknown",)
    without = Score("decoder", 0, 0, 0, "L0H0", "sink_mass", 0.6)
    assert role_card(role_table(), {"sink_mass": without}).evidence[0].passed is None


def test_a_null_of_one_draw_has_no_spread_and_lets_nothing_pass():
    generator = torch.Generator().manual_seed(0)
    sizes = {"W_Q": (1, 8, 4), "W_K": (1, 8, 4), "W_V": (1, 8, 4), "W_O": (1, 4, 8)}
    drawn = {name: torch.randn(*size, generator=generator) for name, size in sizes.items()}
    model = mv.from_arrays(W_E=torch.randn(200, 8, generator=generator), W_U=None, layers=[drawn])
    table = {"looks_back": {"tests": [{"metric": "previous_token", "at_least": 0.0, "beyond_null": True}]}}
    held = {}
    for copies in (0, 1, 2):
        scores = mv.head_scores(model, ["previous_token"], seeds=1, copies=copies)
        card = mv.roles(model, thresholds=table, scores=scores).card("L0H0")
        made = [one.passed for one in card.evidence if one.role == "looks_back"]
        held[copies] = (scores.rows[0].n, made)
    assert held[0] == held[1] == (0, [None])
    assert held[2][0] == 2
    assert held[2][1] != [None]


def test_an_edited_table_changes_the_roles(tmp_path, toy):
    scores = mv.head_scores(toy, ["previous_token", "induction", "prefix_matching"], seeds=1, copies=2)
    assert mv.roles(toy, scores=scores).holding("previous_token") == ["L0H3"]
    file = tmp_path / "strict.toml"
    file.write_text('[previous_token]\ntests = [{metric = "previous_token", at_least = 0.999}]\n', encoding="utf-8")
    strict = mv.roles(toy, scores=scores, thresholds=file)
    assert strict.holding("previous_token") == []
    assert strict.holding("induction") == ["L1H1", "L1H2", "L1H3"]
    frame = check_schema(strict.frame(), "roles")
    assert set(frame[frame["role"] == "previous_token"]["threshold"]) == {0.999}
    assert len(strict.figure().data) >= 2
    assert any("copying_eigenvalue was not among the scores" in note for note in strict.notes)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"mine": {"title": "mine"}}, "needs tests"),
        ({"mine": {"tests": [{"metric": "induction"}]}}, "one of at_least and at_most"),
        ({"mine": {"tests": [{"metric": "induction", "at_least": "much"}]}}, "not a finite number"),
        ({"mine": {"tests": [{"metric": "induction", "at_least": 1}], "colour": "red"}}, "nothing else"),
        ({"mine": {"tests": [{"metric": "induction", "at_least": 1}], "task": "chess"}}, "the task is one of"),
        *(
            ({"mine": {"tests": [{"metric": "induction", side: value}]}}, "not a finite number")
            for side in ("at_least", "at_most")
            for value in (math.nan, math.inf, -math.inf, True, [1.0], None)
        ),
        *(
            ({"mixed": row}, "needs a share")
            for row in (
                {"least": 2},
                {"share": 0.4},
                {"share": -1, "least": 2},
                {"share": 1.1, "least": 2},
                {"share": math.nan, "least": 2},
                {"share": 0.4, "least": 0},
                {"share": 0.4, "least": math.inf},
                {"share": "much", "least": 2},
            )
        ),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(table, sentence):
    with pytest.raises(UsageError, match=sentence):
        role_table(table)


def test_a_table_that_is_no_file_or_asks_for_an_unknown_metric_is_refused(tmp_path, toy):
    with pytest.raises(UsageError, match="cannot be read"):
        role_table(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[[[", encoding="utf-8")
    with pytest.raises(UsageError, match="is not TOML"):
        role_table(tmp_path / "bad.toml")
    with pytest.raises(UsageError, match="'telepathy', which is not registered"):
        mv.roles(toy, thresholds={"mine": {"tests": [{"metric": "telepathy", "at_least": 1}]}})


def test_the_causal_check_shows_which_heads_repeats_rest_on(toy):
    check = mv.causal_check(toy, ["L0H3", "L1H1", "L1H0"], task="repeats", others=5)
    assert check.error < 1e-6
    assert check.row("L0H3", "repeats").value > 1
    assert check.row("L1H1", "repeats").value > 1
    assert abs(check.row("L1H0", "repeats").value) < 0.5
    assert set(check_schema(check.frame(), "heads")["unit"]) == {"nat"}
    zero = mv.causal_check(toy, ["L1H1"], task="repeats", method="zero", others=3)
    assert zero.row("L1H1", "repeats").value != check.row("L1H1", "repeats").value
    assert zero.row("L1H1", "repeats").n == 3
    text = mv.causal_check(toy, ["L1H1"], task="text", others=0)
    assert text.clean["text"] > 1
    assert text.row("L1H1", "text").n == 0


def test_the_causal_check_does_not_depend_on_the_size_of_batches(toy):
    one, other = (mv.causal_check(toy, ["L1H1"], task="repeats", others=4, batch_size=n) for n in (1, 7))
    assert one.row("L1H1", "repeats").value == pytest.approx(other.row("L1H1", "repeats").value, abs=1e-5)
    assert one.row("L1H1", "repeats").null_mean == pytest.approx(other.row("L1H1", "repeats").null_mean, abs=1e-5)


def test_what_the_causal_check_cannot_do_it_says(toy, minilm):
    with pytest.raises(UsageError, match="say which task"):
        mv.causal_check(toy, ["L1H1"])
    with pytest.raises(UsageError, match="no head holds a role"):
        mv.causal_check(toy)
    with pytest.raises(UsageError, match="method is one of"):
        mv.causal_check(toy, ["L1H1"], task="repeats", method="mean field")
    with pytest.raises(UnsupportedError, match="decoder-only"):
        mv.causal_check(minilm, ["L1H1"], task="text")
