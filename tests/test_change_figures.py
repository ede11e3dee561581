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


def test_patching_at_each_position_is_a_map_and_the_null_draws_its_zeros(toy):
    clean, other = "the man and the woman and the", "the man and the king and the"
    found = mv.patch(toy, clean, other, " woman", what="stream")
    [heat] = found.figure().data
    at = {(row.component, row.patched_position): row.normalised for row in found.rows}
    for y, name in enumerate(heat.y):
        assert list(heat.z[y]) == pytest.approx([at[name, x] for x in heat.x], abs=1e-9)
    path = mv.path_patch(toy, clean, other, " woman", receiver=(1, 1, "k")).figure()
    assert "L1H1.k" in path.layout.xaxis.title.text
    null = mv.patch(toy, clean, clean, " woman").figure()
    assert set(null.data[0].y) == {0.0}
    assert "identical" in null.layout.yaxis.title.text


def test_signs_have_the_same_colours_in_bars_as_in_maps(toy):
    """Orange is for the token and blue against it, in every figure of signed shares."""
    from mechview.figures.style import AGAINST, DIVERGING, FOR

    red = lambda colour: int(colour[1:3], 16) > int(colour[5:7], 16)  # noqa: E731
    assert (red(FOR), red(AGAINST)) == (red(DIVERGING[-1]), red(DIVERGING[0])) == (True, False)
    trace = mv.trace(toy, "the man and the woman and the")
    fall = mv.shares(trace, " man").figure().data[0]
    assert (fall.increasing.marker.color, fall.decreasing.marker.color) == (FOR, AGAINST)
    steps = mv.lens_changes(trace, " man").figure().data
    assert [bars.marker.color for bars in steps[:2]] == [FOR, AGAINST]


def test_a_waterfall_has_no_bars_of_nothing_and_says_how_many_others(toy):
    from mechview.figures import waterfall

    shares = mv.shares(mv.trace(toy, "the man and the woman and the"), " man")
    bars = shares.figure().data[0]
    assert "L0.attn_bias" not in bars.x  # the toy has no attention bias: its row is 0
    assert sum(bars.y[:-1]) == pytest.approx(shares.total, abs=1e-4)
    few = waterfall(shares.frame(), most=3).data[0]
    assert few.x[3].endswith(" others")
    assert sum(few.y[:-1]) == pytest.approx(shares.total, abs=1e-4)


def test_rows_of_zeros_have_no_cosine_and_are_not_counted_as_wrong(toy):
    from mechview.figures import rows_by_position

    parts = mv.ledger(mv.trace(toy, "the man and the"), target=" man")
    figure = rows_by_position(parts.frame(), "cos_direction")
    assert "NaN" not in figure.layout.title.text
    assert "rows of zeros are grey" in figure.layout.title.text


def test_the_strip_keeps_its_words_and_marks_where_matplotlib_draws_it(toy):
    """The picture made without a browser holds what the interactive one does."""
    from matplotlib.figure import Figure

    from mechview.figures.redrawn import redraw

    found = mv.compare("the man and the king", "the man and the old king", model=toy)
    canvas = Figure()
    redraw(found.figure(), canvas)
    drawn = [text.get_text() for text in canvas.axes[0].texts]
    for side in found.tokens:
        assert set(side) <= set(drawn)
    assert {"=", "+"} <= set(drawn)


def test_stacked_bars_stay_stacked_and_both_lines_of_a_lens_have_names(toy):
    from matplotlib.figure import Figure

    from mechview.figures.redrawn import redraw

    trace = mv.trace(toy, "the man and the woman and the")
    figure, canvas = mv.lens_changes(trace, " man").figure(), Figure()
    redraw(figure, canvas)
    bars = [bar for group in canvas.axes[0].containers for bar in group]
    for n in range(len(figure.data[0].x)):
        mine = [bar for bar in bars if abs(bar.get_x() + bar.get_width() / 2 - n) < 1e-9]
        assert sum(bar.get_height() for bar in mine) == pytest.approx(
            sum(data.y[n] for data in figure.data[:3]), abs=1e-9
        )
        rising = max(bar.get_y() + bar.get_height() for bar in mine if bar.get_height() >= 0)
        assert rising == pytest.approx(sum(max(data.y[n], 0) for data in figure.data[:3]), abs=1e-9)
    canvas = Figure()
    redraw(mv.lens(trace, " man").figure(), canvas)
    [legend] = [axes.get_legend() for axes in canvas.axes if axes.get_legend()]
    assert len(legend.get_texts()) == 2
