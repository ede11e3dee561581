"""Accuracy against the original library is asserted; the ratio of times is recorded and never fails a run."""

from __future__ import annotations

import pytest

from tests.benchmarks.factors import compare, conditions, tasks

pytestmark = pytest.mark.bench

# Float32 rounding of the answer itself is 6e-8; reconstruction sums 64 rounded terms of random sign, hence 3 times that.
# The Frobenius norm comes from float32 Grams: 768 products each, rounding like a random walk and averaged over r^2.
LIMITS = {
    "message SVD": 2e-7,
    "pattern SVD": 2e-7,
    "singular values": 6e-8,
    "Frobenius norm": 5e-7,
    "eigenvalues": 6e-8,
}


@pytest.mark.parametrize("name", list(LIMITS))
def test_more_accurate_than_the_original_library(name, record_property):
    row = compare(name, tasks()[name], repeats=2)
    record_property("time_ratio", round(row.ratio, 2))
    record_property("conditions", conditions())
    print(f"{name}: {row.ratio:.1f} times faster; error {row.their_error:.1e} -> {row.our_error:.1e}; {conditions()}")
    assert row.our_error < LIMITS[name]
    assert row.our_error < row.their_error
