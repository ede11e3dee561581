"""Effects over prompts: means of the single effects, intervals that hold the truth, one planted component found."""

from __future__ import annotations

import numpy as np
import pytest

import mechview as mv
from mechview.errors import UsageError
from mechview.residual.donors import donors_of

CASES = (
    mv.Case("the man and the woman and the man and the", " woman", " man", "the man and the king and the man and the"),
    mv.Case(
        "the king and the man and the king and the", " man", " king", "the king and the woman and the king and the"
    ),
    mv.Case(
        "the woman and the son and the woman and the", " son", " man", "the woman and the man and the woman and the"
    ),
)


@pytest.mark.parametrize("method", ["zero", "mean", "resample"])
def test_means_are_those_of_the_effects_on_each_prompt(toy, method):
    found = mv.effects_over(toy, CASES, method=method, draws=100)
    assert found.n == 3
    for n, case in enumerate(CASES):
        prompts = {"zero": None, "mean": [c.prompt for c in CASES], "resample": [case.corrupted]}[method]
        one = mv.effects(toy, case.prompt, case.target, case.against, method=method, prompts=prompts)
        for quantity in ("direct", "total", "difference"):
            own = [getattr(row, quantity) for row in one.rows]
            assert found.values[quantity][:, n] == pytest.approx(own, abs=1e-4)
    for row in found.rows:
        values = found.values[row.quantity][[r.component for r in one.rows].index(row.component)]
        assert row.mean == pytest.approx(values.mean(), abs=1e-9)
        assert row.lo <= row.mean <= row.hi
        assert values.min() - 1e-9 <= row.lo
        assert row.hi <= values.max() + 1e-9


def test_patching_over_pairs_is_the_mean_of_the_patches(toy):
    found = mv.patch_over(toy, CASES, draws=100)
    single = [mv.patch(toy, c.prompt, c.corrupted, c.target, c.against) for c in CASES]
    for name in ("L0H1", "L1H2"):
        assert found.row(name).mean == pytest.approx(np.mean([one.row(name).change for one in single]), abs=1e-6)
    assert found.baseline == pytest.approx(np.mean([one.clean - one.corrupted for one in single]), abs=1e-6)
    assert found.row("L1H2").rel == pytest.approx(found.row("L1H2").mean / found.baseline)


def test_donors_prepared_once_give_what_prompts_give(toy):
    prompts = [case.prompt for case in CASES]
    shared = donors_of(toy, "mean", prompts)
    one, other = (mv.effects(toy, CASES[0].prompt, " woman", method="mean", prompts=p) for p in (prompts, shared))
    assert [row.total for row in one.rows] == pytest.approx([row.total for row in other.rows], abs=1e-9)


def test_a_common_target_replaces_those_of_the_prompts(toy):
    own, common = mv.effects_over(toy, CASES, draws=20), mv.effects_over(toy, CASES, " man", draws=20)
    assert own.baseline != pytest.approx(common.baseline)


def test_seed_changes_the_interval_and_not_the_mean(toy):
    one, other = (mv.effects_over(toy, CASES, draws=40, seed=seed) for seed in (0, 1))
    assert [row.mean for row in one.rows] == [row.mean for row in other.rows]
    assert [row.lo for row in one.rows] != [row.lo for row in other.rows]


def test_what_a_set_cannot_say_is_refused(toy):
    with pytest.raises(UsageError, match="no target"):
        mv.effects_over(toy, [mv.Case("the man")])
    with pytest.raises(UsageError, match="a set of prompts is empty"):
        mv.effects_over(toy, [])
    with pytest.raises(UsageError, match="no corrupted one"):
        mv.patch_over(toy, [mv.Case("the man", " and")])
    with pytest.raises(UsageError, match="do not share their positions"):
        mv.patch_over(toy, CASES, what="stream")


def test_frame_and_figure_hold_the_same_numbers(toy):
    found = mv.effects_over(toy, CASES, draws=50)
    frame = found.frame()
    assert len(frame) == len(found.rows)
    assert set(frame["quantity"]) == {"direct", "total", "difference"}
    bars = {trace.name: trace for trace in found.figure().data}
    top = found.top(1)[0]
    assert bars["total"].x[0] == top.component
    assert bars["total"].y[0] == pytest.approx(top.mean)
    assert bars["total"].error_y.array[0] == pytest.approx(top.hi - top.mean)
