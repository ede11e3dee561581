"""Encoders are compared like any stream: exact zeros, exact differences, and the edited head first."""

from __future__ import annotations

import copy

import pytest
import torch

import mechview as mv
from conftest import family
from mechview.errors import UsageError

A, B = [5, 9, 14, 20, 3, 7], [5, 9, 31, 20, 3, 8, 7]
STARTS = {"bert": "", "t5": "E."}


@pytest.fixture(params=STARTS)
def encoder(request):
    return request.param, *family(request.param)


def test_the_same_prompt_twice_gives_exact_zeros_and_says_identical(encoder):
    name, model, _ = encoder
    for by in ("layer", "head", "source"):
        found = mv.compare(A, A, model=model, by=by, stack="encoder")
        assert found.identical
        assert "identical" in found.notes
        assert all(row.delta == 0.0 for row in found.rows)
    components = {row.component for row in found.rows}
    assert f"{STARTS[name]}L1H2<-4" in components


def test_differences_are_those_of_the_two_ledgers(encoder):
    name, model, _ = encoder
    found = mv.compare(A, B, model=model, stack="encoder")
    parts = [mv.ledger(mv.trace(model, prompt), stack="encoder") for prompt in (A, B)]
    assert found.error < 1e-5
    for label in (f"{STARTS[name]}L1H2", f"{STARTS[name]}L0.mlp"):
        rows = [r for r in found.of("difference") if r.component == label]
        assert len(rows) == len(A)
        for row in rows:
            apart = parts[1].row(label)[row.position_b] - parts[0].row(label)[row.position_a]
            assert row.delta == pytest.approx(float(apart.double().norm()), rel=1e-4)


def test_shares_along_a_direction_sum_to_the_encoders_own_stream(encoder):
    _, model, _ = encoder
    direction = torch.randn(model.shape.d_model, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = mv.compare(A, B, model=model, stack="encoder", direction=direction, position=2)
    traces = [mv.trace(model, prompt) for prompt in (A, B)]
    own = [
        float(t.stream(model.shape.layers("encoder") - 1, "post", "encoder")[2].double() @ direction) for t in traces
    ]
    assert found.totals == pytest.approx(own, rel=1e-6)
    asked = [row for row in found.of("share") if (row.position_a, row.position_b) == (2, 2)]
    assert sum(row.side_b for row in asked) == pytest.approx(own[1], rel=1e-5, abs=1e-5)
    assert sum(row.side_a for row in asked) == pytest.approx(own[0], rel=1e-5, abs=1e-5)


def test_one_edited_encoder_head_is_ranked_first_by_weights_and_by_what_it_adds(encoder):
    name, model, module = encoder
    edited, width = copy.deepcopy(module), model.shape.d_head
    path = {"bert": "bert.encoder.layer.1.attention.output.dense", "t5": "encoder.block.1.layer.0.SelfAttention.o"}[
        name
    ]
    with torch.no_grad():
        edited.get_submodule(path).weight[:, 2 * width : 3 * width] *= 1.5
    found = mv.compare(model, mv.wrap(edited), prompts=[A, B], stack="encoder")
    label = f"{STARTS[name]}L1H2"
    assert found.ranked()[0].component == label
    added = [row for row in found.of("difference") if row.component.startswith(STARTS[name] + "L1H")]
    assert max(added, key=lambda row: row.delta).component == label


def test_sets_of_prompts_are_compared_in_the_encoder(encoder):
    name, model, _ = encoder
    same = mv.compare([A, B], [A, B], model=model, stack="encoder", paired=True, draws=50)
    assert same.identical
    other = mv.compare([A, B, A[:4]], [B, A, B[:4]], model=model, stack="encoder", paired=True, draws=50)
    assert not other.identical
    assert f"{STARTS[name]}L1H2" in {row.component for row in other.rows}


def test_positions_of_an_encoder_are_compared(encoder):
    _, model, _ = encoder
    seen = mv.trace(model, A)
    assert mv.compare_positions(seen, 2, 2, stack="encoder").identical
    assert not mv.compare_positions(seen, 2, 4, stack="encoder").identical


def test_the_decoders_own_input_reaches_its_comparison():
    model, _ = family("t5")
    found = mv.compare(A, A, model=model, decoder=[0, 4, 9])
    assert found.identical
    assert {row.position_a for row in found.rows} == {0, 1, 2}


def test_a_stack_that_has_no_stream_is_refused():
    model, _ = family("gpt2")
    with pytest.raises(UsageError, match="has no encoder"):
        mv.compare(A, B, model=model, stack="encoder")
    with pytest.raises(UsageError, match="cross-attention writes into the decoder's stream"):
        mv.compare(A, B, model=model, stack="cross")
