"""Differences of two maps against dense matrices: inequalities, digits, gauge, angles, silent heads."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechview.lowrank import LowRank
from mechview.residual.compare_maps import largest_angle, map_differences, stack_maps, subtract


def maps(seed: int, count: int = 2, rank: int = 3) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(count, 7, rank, generator=generator, dtype=torch.float64) for _ in range(2))
    return LowRank(left, right.mT)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_map_differences_obey_the_inequalities(seed, rank_a, rank_b):
    a, b = maps(seed, rank=rank_a), maps(seed + 1, rank=rank_b)
    there, back = map_differences(a, b), map_differences(b, a)
    for x, y, A, B in zip(there, back, a.dense(), b.dense(), strict=True):
        assert x.apart == pytest.approx(float((B - A).norm()), rel=1e-9)
        assert x.apart == pytest.approx(y.apart, rel=1e-12)
        assert x.spectrum_apart <= x.apart * (1 + 1e-9)  # Mirsky
        assert 1 - x.one_minus_cosine == pytest.approx(float((A * B).sum() / A.norm() / B.norm()), abs=1e-12)
        assert 0 <= x.left_angle <= 90 + 1e-9
        assert x.left_angle == pytest.approx(y.left_angle, abs=1e-9)


def test_a_tiny_edit_keeps_its_digits():
    """|A|^2 - 2<A, B> + |B|^2 would be pure rounding here."""
    a = maps(0)
    b = LowRank(a.left, a.right * (1 + 1e-11))
    for found in map_differences(a, b):
        assert found.apart / found.norm_a == pytest.approx(1e-11, rel=1e-3)
        assert found.one_minus_cosine < 1e-24
    assert torch.equal(subtract(a, a).left[..., :3], torch.zeros(2, 7, 3, dtype=torch.float64))


def test_the_same_map_by_other_factors_differs_by_rounding_only():
    a = maps(0)
    M = torch.randn(3, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    b = LowRank(a.left @ M, torch.linalg.solve(M, a.right))
    for found in map_differences(a, b):
        assert found.apart / found.norm_a < 1e-13
        assert found.left_angle < 1e-5


def test_angles_are_scipys_down_to_tiny_ones():
    generator = np.random.default_rng(0)
    for size in (1.0, 1e-3, 1e-9):
        for ranks in ((4, 4), (2, 5), (6, 1)):
            x = generator.normal(size=(9, ranks[0]))
            y = generator.normal(size=(9, ranks[1]))
            y[:, :1] = x[:, :1] + size * y[:, :1]
            expected = math.degrees(scipy.linalg.subspace_angles(x, y)[0])
            Q = [torch.from_numpy(np.linalg.qr(m)[0]) for m in (x, y)]
            assert largest_angle(*Q) == pytest.approx(expected, rel=1e-6)


def test_a_silent_head_has_no_direction_and_no_angle():
    a, zero = maps(0), LowRank(torch.zeros(2, 7, 3, dtype=torch.float64), maps(0).right)
    for found in map_differences(a, zero):
        assert found.apart == pytest.approx(found.norm_a)
        assert math.isnan(found.one_minus_cosine)
        assert math.isnan(found.left_angle)
    assert (
        {f.apart for f in map_differences(zero, zero)} == {f.left_angle for f in map_differences(zero, zero)} == {0.0}
    )


def test_stacked_maps_are_float64():
    assert stack_maps([LowRank(torch.ones(3, 1), torch.ones(1, 3))]).left.dtype == torch.float64
