"""A metric of a user's is one decorator away, and then stands in scores, tables, roles and notes."""

from __future__ import annotations

import pytest

import mechview as mv
from mechview.errors import UsageError
from mechview.heads.notes import NOTES
from mechview.heads.registry import METRICS, load_metrics

ABOUT = dict(source="this test", definition="The largest weight of each query.", cannot="Anything else.")
FILE = """
import mechview as mv

@mv.metric("from_a_file", "text", source="a file", definition="Largest weight.", cannot="Anything else.")
def from_a_file(seen):
    return seen.pattern.amax(-1).mean(-1)
"""


@pytest.fixture
def registry(monkeypatch):
    """The registry as it was, afterwards."""
    load_metrics()
    before = dict(METRICS)
    yield METRICS
    METRICS.clear()
    METRICS.update(before)


def test_a_users_metric_is_measured_with_a_null_and_named_everywhere(registry, toy):
    @mv.metric("largest_weight", "random", **ABOUT)
    def largest_weight(seen):
        return seen.pattern.amax(-1).mean(-1)

    scores = mv.head_scores(toy, ["largest_weight"], seeds=2, copies=2)
    row = scores.row("L0H3", "largest_weight")
    assert 0 < row.null_mean < row.value <= 1
    assert row.n == 8
    frame = scores.frame()
    assert set(frame["metric"]) == {"largest_weight"}
    assert set(frame["source"]) == {"this test"}
    assert NOTES["largest_weight"].definition == ABOUT["definition"]
    table = {"sharp": {"tests": [{"metric": "largest_weight", "at_least": 0.9, "beyond_null": True}]}}
    cards = mv.roles(toy, thresholds=table, scores=scores)
    assert "sharp" in cards.card("L0H3").roles


def test_a_metric_over_a_seeds_prompts_and_one_of_weights(registry, toy):
    @mv.metric("prompts_of_a_seed", "random", "none", per="seed", **ABOUT)
    def prompts_of_a_seed(seen):
        return seen[0].pattern.new_full((len(seen[0].pattern),), float(len(seen)))

    @mv.metric("norm_of_queries", "weights", **ABOUT)
    def norm_of_queries(layer):
        return layer.attention.W_Q.flatten(1).norm(dim=1)

    scores = mv.head_scores(toy, ["prompts_of_a_seed", "norm_of_queries"], seeds=2, copies=1)
    assert scores.row("L1H0", "prompts_of_a_seed").value == 4
    assert scores.row("L1H0", "prompts_of_a_seed").n == 0
    expected = float(toy.weights.attention(1).W_Q[0].norm())
    assert scores.row("L1H0", "norm_of_queries").value == pytest.approx(expected, rel=1e-5)
    assert scores.row("L1H0", "norm_of_queries").n == 4


def test_a_file_of_metrics_is_run_when_it_is_named(registry, tmp_path, toy):
    file = tmp_path / "mine.py"
    file.write_text(FILE, encoding="utf-8")
    assert "from_a_file" in load_metrics([file])
    assert mv.head_scores(toy, ["from_a_file"], seeds=1, copies=0).row("L0H3", "from_a_file").value > 0.5
    file.write_text("1 / 0", encoding="utf-8")
    with pytest.raises(UsageError, match="fails: ZeroDivisionError"):
        load_metrics([file])
    with pytest.raises(UsageError, match="is not there"):
        load_metrics([tmp_path / "absent.py"])


@pytest.mark.parametrize("text", ["1 / 0", "raise SystemExit(3)", "def x(:", "import absent_package", "\x00"])
def test_a_file_that_fails_in_any_way_is_one_sentence(registry, tmp_path, text):
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine.py fails: "):
        load_metrics([file])


@pytest.mark.parametrize(
    ("give", "sentence"),
    [
        (lambda seen: 1 / 0, "fails: ZeroDivisionError"),
        (lambda seen: ["a"] * len(seen.pattern), "fails: "),
        (lambda seen: None, "fails: "),
        (lambda seen: seen.pattern[:, 0, 0] * 1j, "complex or infinite"),
        (lambda seen: seen.pattern[:, 0, 0] / 0, "complex or infinite"),
        (lambda seen: seen.pattern, "one value for each of 4 heads"),
    ],
)
def test_a_metric_that_fails_or_gives_no_number_is_one_sentence_with_its_name(registry, toy, give, sentence):
    mv.metric("mine", "random", **ABOUT)(give)
    with pytest.raises(UsageError, match=f"metric mine .*{sentence}|metric mine {sentence}"):
        mv.head_scores(toy, ["mine"], seeds=1, copies=0)


def test_names_and_choices_are_checked_when_a_metric_is_registered(registry):
    with pytest.raises(UsageError, match="'sentences' is not one of repeats"):
        mv.metric("mine", "sentences", **ABOUT)
    with pytest.raises(UsageError, match="there is already a metric induction"):
        mv.metric("induction", "repeats", **ABOUT)(lambda seen: seen.pattern.mean((1, 2)))
    with pytest.raises(UsageError, match="belong together"):
        mv.metric("mine", "model", **ABOUT)


def test_a_metric_that_gives_no_value_a_head_is_refused(registry, toy):
    mv.metric("wrong_shape", "random", "none", **ABOUT)(lambda seen: seen.pattern)
    with pytest.raises(UsageError, match="one value for each of 4 heads"):
        mv.head_scores(toy, ["wrong_shape"], seeds=1)


def test_every_metric_says_what_it_is_and_what_it_cannot_show():
    for name, found in load_metrics().items():
        for part in ("title", "definition", "unit", "source", "cannot", "needs"):
            assert getattr(found, part).strip(), f"{name} has no {part}"
