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


@pytest.mark.parametrize("name", [name for name in TRACED if name.startswith("t5")])
@pytest.mark.parametrize("by", ["layer", "head", "bias", "source"])
def test_a_cross_attention_score_is_split_over_writers_of_both_stacks(name, by):
    trace = traced(name)
    found = mv.score_ledger(trace, layer=1, head=2, query=4, key=5, by=by, stack="cross")
    assert found.label == "X.L1H2"
    assert found.total == pytest.approx(float(trace.layer_scores(1, "cross")[2, 4, 5]), rel=1e-9)
    assert found.error < 1e-5
    part = ".attn" if by == "layer" else "H0<-3" if by == "source" else "H0"
    assert {f"L1{part}", f"X.L0{part}", "L0.mlp"} <= set(found.components)  # up to its own block's self-attention
    assert f"X.L1{part}" not in found.components
    assert {f"E.L1{part}", "E.L1.mlp"} <= set(found.key_components)
    assert len(found.frame()) == len(found.components) * len(found.key_components) + 1


def test_a_writer_that_is_silenced_takes_its_rows_of_a_cross_score_with_it():
    """An encoder head whose output weights are 0 has a column of zeros, and the split stays exact."""
    import copy

    from conftest import family

    _, module = family("t5")
    quiet = copy.deepcopy(module)
    width = quiet.config.d_kv
    with torch.no_grad():
        quiet.encoder.block[1].layer[0].SelfAttention.o.weight[:, width : 2 * width] = 0
    found = mv.score_ledger(mv.trace(mv.wrap(quiet), [5, 9, 14, 20]), layer=1, head=0, query=-1, key=2, stack="cross")
    assert found.error < 1e-5
    assert float(found.values[:, found.key_components.index("E.L1H1")].abs().max()) == 0
    assert float(found.values[:, found.key_components.index("E.L1H2")].abs().max()) > 0


def test_a_cross_score_counts_positions_of_both_streams():
    trace = traced("t5")
    sources, targets = len(trace.source_tokens), len(trace.tokens)
    with pytest.raises(UsageError, match=f"key position {sources} does not exist"):
        mv.score_ledger(trace, layer=1, head=0, key=sources, stack="cross")
    with pytest.raises(UsageError, match=f"query position {targets} does not exist"):
        mv.score_ledger(trace, layer=1, head=0, query=targets, stack="cross")


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
