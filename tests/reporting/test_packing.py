"""Packing: what a browser unpacks is what was packed, to half a step, with masked and NaN cells apart."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mechview.reporting.packing import COARSE, STEPS, coded, decoded, number, script_json


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.floats(-50, 50)),
    st.integers(0, 999),
    st.sampled_from([STEPS, COARSE]),
)
def test_round_trip(values, seed, steps):
    generator = np.random.default_rng(seed)
    seen = generator.random(values.shape) < 0.8
    nan = generator.random(values.shape) < 0.1
    holed = np.where(nan, np.nan, values)
    back = decoded(coded(holed, seen, -50.0, 50.0, steps), values.shape, -50.0, 50.0, steps)
    assert (np.isneginf(back) == ~seen).all()
    assert (np.isnan(back) == (nan & seen)).all()
    kept = seen & ~nan
    assert np.abs(back - values)[kept].max(initial=0.0) <= 0.5 * 100 / steps + 1e-12


def test_a_constant_matrix_survives():
    back = decoded(coded(np.full((2, 2), 3.0), np.ones((2, 2), bool), 3.0, 3.0), (2, 2), 3.0, 3.0)
    assert (back == 3.0).all()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.23456789, 1.2346),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (-float("inf"), "-Infinity"),
        (None, None),
    ],
)
def test_numbers_are_json_and_keep_what_they_are(value, expected):
    assert number(value) == expected


def test_script_json_refuses_bare_nan_and_hides_markup():
    text = script_json({"a": "</script>&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script>&\u2028"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json(float("nan"))
