"""Accuracy of all composition scores against float64 is asserted; ratios of time and memory are recorded."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks.composing import error, exact, gpt2, ours
from tests.benchmarks.factors import conditions

pytestmark = pytest.mark.bench


def test_composition_is_right_to_a_millionth_at_gpt2_widths(record_property):
    """Three layers of GPT-2 small's width: 144 heads differ from these only in number."""
    model = gpt2(layers=3)
    found, true = ours(model), exact(model)
    record_property("conditions", conditions())
    assert error(found, true) < 1e-6
    assert all(int((~values.isnan()).sum()) == 3 * 144 for values in found.values())


def test_composition_equals_the_original_librarys_scores():
    from transformer_lens import FactoredMatrix
    from transformer_lens.utilities.matrix import composition_scores

    model = gpt2(layers=2, heads=4, width=64)
    layers = [model.weights.attention(n) for n in range(2)]
    M, P = (FactoredMatrix(torch.stack([getattr(a, x) for a in layers]), torch.stack([getattr(a, y).mT if y == "W_K" else getattr(a, y) for a in layers])) for x, y in (("W_V", "W_O"), ("W_Q", "W_K")))  # fmt: skip
    found = ours(model)
    for kind, right in (("Q", P), ("K", P.T), ("V", M)):
        reference = composition_scores(M, right, broadcast_dims=True)[0, :, 1]
        torch.testing.assert_close(found[kind][0, :, 1].float(), reference, rtol=1e-5, atol=1e-6)
