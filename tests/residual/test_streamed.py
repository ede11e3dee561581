"""Sets of prompts are run one at a time: when a pass begins, no pass of another prompt is alive."""

from __future__ import annotations

import tracemalloc
import weakref

import pytest
from test_memory_of_sets import cases, prompts

import families
import mechview as mv
from conftest import family
from mechview.models import intervene, tracing
from mechview.residual import compare_rows, donors
from mechview.residual import effects as effects_module


@pytest.fixture
def alive(monkeypatch):
    """How many earlier passes are alive as each one begins."""
    counts, passes = [], []

    def watched(original):
        def run(*args, **keywords):
            counts.append(sum(one() is not None for one in passes))
            seen = original(*args, **keywords)
            passes.append(weakref.ref(seen))
            return seen

        return run

    monkeypatch.setattr(compare_rows, "trace", watched(tracing.trace))
    monkeypatch.setattr(donors, "recorded", watched(intervene.recorded))
    monkeypatch.setattr(effects_module, "recorded", watched(intervene.recorded))
    return counts


@pytest.fixture(scope="module")
def model():
    return family("gpt2")[0]


@pytest.mark.parametrize("kind", ["norms", "shares"])
def test_two_sets_keep_no_pass(model, alive, kind):
    sides = (cases(4), cases(3)) if kind == "shares" else (prompts(4), prompts(3, 20))
    mv.compare(*sides, model=model, draws=20)
    assert alive == [0] * 7


def test_two_models_hold_one_prompt(model, alive):
    other = mv.wrap(families.FAMILIES["gpt2"].build(seed=3))
    mv.compare(model, other, prompts=prompts(4), draws=20)
    assert alive == [0, 1] * 4  # both models' passes over one prompt stand side by side


@pytest.mark.parametrize(
    ("method", "more"),
    [("resample", {}), ("mean", {}), ("mean", {"per_position": True})],
    ids=["resample", "mean", "at"],
)
def test_donors_are_run_and_dropped_one_by_one(model, alive, method, more):
    mv.effects(model, prompts(1)[0], 5, 7, ["L0H1"], method=method, prompts=prompts(5, 20), **more)
    assert max(alive) <= 1  # the pass that values are put into
    assert len(alive) >= 6


def test_resampling_from_many_is_the_mean_of_resampling_from_each(model):
    base, others = prompts(1)[0], prompts(4, 20)
    every = mv.effects(model, base, 5, 7, method="resample", prompts=others)
    single = [mv.effects(model, base, 5, 7, method="resample", prompts=[one]) for one in others]
    for n, row in enumerate(every.rows):
        assert row.total == pytest.approx(sum(one.rows[n].total for one in single) / 4, abs=1e-9)
        assert row.direct == pytest.approx(sum(one.rows[n].direct for one in single) / 4, abs=1e-9)


def test_a_prompt_more_costs_three_numbers_a_row_and_no_rows(model):
    """Python's own memory, which tensors are not part of."""
    other = mv.wrap(families.FAMILIES["gpt2"].build(seed=3))

    def most(count: int) -> int:
        tracemalloc.start()
        mv.compare(model, other, prompts=prompts(count), draws=20)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    most(2)
    rows = len(mv.compare(model, other, prompts=prompts(1), draws=20).rows)
    assert (most(18) - most(2)) / 16 < 600 * rows / 4  # a row of a prompt that was kept would be about 600 bytes
