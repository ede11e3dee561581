"""A head's score, split over who wrote each side, sums to the model's own score."""

from __future__ import annotations

import pytest
import torch
from test_ledger import TRACED, traced

import mechview as mv
from mechview.errors import UsageError


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.parametrize("layer", [0, 1])
def test_pairs_sum_to_the_score(name, layer):
    trace = traced(name)
    found = mv.score_ledger(trace, layer=layer, head=2, query=6, key=3)
    cap = trace.weights.attention(layer, trace.stack).softcap
    own = trace.scores[layer][2, 6, 3].double()
    own = own if cap is None else cap * torch.atanh(own / cap)
    assert found.total == pytest.approx(float(own), rel=1e-9)
    size = max(float(found.values.abs().max()), abs(found.total))
    assert float(found.values.sum()) + found.position_bias == pytest.approx(found.total, abs=1e-5 * size)
    assert found.error < 1e-5


def test_the_remainder_completes_the_top(toy):
    trace = mv.trace(toy, "the man and the man")
    found = mv.score_ledger(trace, layer=1, head=0, query=-1, key=1)
    assert sum(value for *_, value in found.top(4)) == pytest.approx(found.total, abs=1e-4)
    assert len(found.top(4)) == 5


def test_a_pair_the_mask_hides_has_no_score():
    with pytest.raises(UsageError, match="cannot look at"):
        mv.score_ledger(traced("llama"), layer=1, head=0, query=2, key=5)
    with pytest.raises(UsageError, match="cannot look at"):
        mv.score_ledger(traced("mistral"), layer=1, head=0, query=12, key=1)
    with pytest.raises(UsageError, match="key position 99 does not exist"):
        mv.score_ledger(traced("llama"), layer=1, head=0, query=2, key=99)
