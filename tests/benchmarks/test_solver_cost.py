"""Solvers grow as the theory says: counts of operations are asserted, seconds are only recorded."""

from __future__ import annotations

import pytest

from tests.benchmarks.solvers import steepest, tap_map

pytestmark = pytest.mark.bench
SIZES = [(16, 16), (32, 16), (64, 16), (64, 64), (64, 256)]


@pytest.mark.parametrize("task", [steepest, tap_map])
def test_counted_operations_are_the_theorys_times_a_constant(task, record_property):
    costs = [task(*size) for size in SIZES]
    record_property("seconds", [round(cost.seconds, 4) for cost in costs])
    ratios = [cost.ratio for cost in costs]
    print(task.__name__, [(cost.sites, cost.dim, cost.steps, round(cost.ratio, 2)) for cost in costs])
    assert max(ratios) < 2.5 * min(ratios)
    assert max(ratios) < 16


def test_newtons_steps_do_not_grow_with_the_system():
    steps = [steepest(*size).steps for size in SIZES]
    assert max(steps) <= 10
