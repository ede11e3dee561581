"""Figures of change show the numbers of their frames: aligned prompts, heads by layer, the stream over depth."""

from __future__ import annotations

import numpy as np
import pytest

import mechview as mv
from mechview.errors import CheckError
from mechview.figures import aligned_strip, delta_grid, growth_curves, plain_text

A = "the man and the woman and the man"
B = "the man and the old woman and the king"


@pytest.fixture(scope="module")
def prompts(toy):
    return mv.compare(A, B, model=toy)


@pytest.fixture(scope="module")
def models(toy):
    return mv.compare(mv.load("toy", revision="step-000400"), toy)


def test_the_strip_shows_both_prompts_and_marks_what_was_inserted(prompts, toy):
    figure = prompts.figure()
    strip = figure.data[0]
    shown = [[plain_text(token.shown) for token in mv.trace(toy, text).tokens] for text in (A, B)]
    assert [[cell for cell in row if cell] for row in strip.text] == shown
    marks = [note.text for note in figure.layout.annotations]
    kinds = [pair.kind for pair in prompts.aligned.pairs]
    assert marks.count("+") == kinds.count("inserted") > 0
    assert marks.count("~") == kinds.count("substituted")
    column = marks.index("+")
    assert np.isnan(strip.z[0][column])
    assert not np.isnan(strip.z[1][column])
    same = [n for n, mark in enumerate(marks) if mark == "="]
    assert strip.z[0][same[0]] < 1e-3 * strip.z[0][same[-1]]  # before the first edit only the order of sums differs
    assert strip.z[0][same[-1]] > 0.0


def test_the_strips_colour_is_the_size_of_all_differences_there(prompts):
    frame = prompts.frame()
    strip = aligned_strip(frame, prompts.tokens).data[0]
    pair = prompts.aligned.pairs[-1]
    here = frame[
        (frame["quantity"] == "difference") & (frame["position_a"] == pair.a) & (frame["position_b"] == pair.b)
    ]
    assert strip.z[0][-1] == pytest.approx(np.sqrt((here["delta"] ** 2).sum()))


def test_the_grid_shows_each_head_where_it_stands(models):
    figure = models.figure()
    grid = figure.data[0]
    assert (list(grid.x), list(grid.y)) == (["H0", "H1", "H2", "H3"], ["L0", "L1"])
    for row in models.of("pattern"):
        assert grid.z[row.layer][row.head] == pytest.approx(row.delta)
    rel = delta_grid(models.frame(), "message_cosine", "rel").data[0]
    assert rel.z[1][2] == pytest.approx(next(r.rel for r in models.of("message_cosine") if r.component == "L1H2"))
    with pytest.raises(CheckError, match="no quantity nothing"):
        delta_grid(models.frame(), "nothing")
    with pytest.raises(CheckError, match="no weights of heads"):
        delta_grid(models.frame(), "weights")


def test_the_grid_of_prompts_keeps_position_zero_apart(prompts):
    grid = delta_grid(prompts.frame(), "difference").data[0]
    rows = [
        r.delta for r in prompts.of("difference") if r.component == "L1H1" and 0 not in (r.position_a, r.position_b)
    ]
    assert grid.z[1][1] == pytest.approx(np.sqrt(np.mean(np.square(rows))))


def test_depth_is_that_of_the_stream_and_position_zero_is_a_line_of_its_own(toy):
    seen = mv.trace(toy, A)
    found = mv.depth(seen)
    frame = found.frame()
    assert found.points == ("L0.pre", "L0.mid", "L1.pre", "L1.mid", "final")
    pre, mid = seen.stream(1, "pre").double(), seen.stream(1, "mid").double()
    row = frame[(frame["point"] == "L1.mid") & (frame["pos"] == 3)].iloc[0]
    assert row["norm"] == pytest.approx(float(mid[3].norm()))
    assert row["added"] == pytest.approx(float((mid - pre)[3].norm()))
    assert row["cos_before"] == pytest.approx(float(mid[3] @ pre[3] / mid[3].norm() / pre[3].norm()))
    assert frame[frame["point"] == "final"]["cos_final"].to_numpy() == pytest.approx(1.0)
    assert frame[frame["point"] == "L0.pre"]["added"].isna().all()
    lines = {line.name: line for line in growth_curves(frame).data}
    later = frame[(frame["point"] == "L1.mid") & ~frame["first"]]
    assert lines["norm of the stream"].y[3] == pytest.approx(later["norm"].mean())
    assert lines["norm of the stream, position 0"].y[3] == pytest.approx(float(mid[0].norm()))


def test_a_comparison_says_how_it_was_made(toy, prompts, models):
    told = models.manifest
    assert [side["revision"] for side in told["sides"]] == ["step-000400", "final"]
    digests = [side["weights_sha256"] for side in told["sides"]]
    assert len(set(digests)) == 2
    assert all(digests)
    assert (told["arguments"]["seed"], told["arguments"]["draws"]) == (0, 1000)
    assert prompts.manifest["arguments"]["a"] == A
    assert prompts.manifest["sides"][0]["model"] == "toy"
    table = mv.head_table(toy)
    assert table.manifest["sides"][0]["weights_sha256"] == digests[1]
    assert table.manifest["arguments"]["fold"] is True
