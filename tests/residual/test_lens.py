"""The lens ends at the model's own output, for every family that has one."""

from __future__ import annotations

import pytest
import torch
from test_ledger import TRACED, traced

import mechview as mv
from mechview.errors import UnsupportedError


@pytest.mark.parametrize("name", TRACED)
def test_the_last_row_is_the_models_output(name):
    trace = traced(name)
    found = mv.lens(trace, 5)
    assert found.error < 5e-6
    final = trace.logits.double().log_softmax(-1)
    assert found.points[-1] == "final"
    assert torch.equal(found.top[-1], trace.logits.argmax(-1))
    torch.testing.assert_close(found.target_prob[-1], final[:, 5].exp(), rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(found.entropy[-1], -(final.exp() * final).sum(-1), rtol=1e-4, atol=1e-6)
    assert float(found.kl[-1].max()) < 1e-8
    rank = (trace.logits > trace.logits[:, 5:6]).sum(-1)
    assert torch.equal(found.target_rank[-1], rank)


@pytest.mark.parametrize("name", ["llama", "phi", "bert", "t5"])
def test_every_point_of_the_stream_is_read_once(name):
    trace = traced(name)
    found = mv.lens(trace)
    parallel = trace.weights.shape.placement == "parallel"
    assert len(found.points) == len(set(found.points)) == (2 if parallel else 4) + 1
    assert found.top.shape == (len(found.points), len(trace.tokens))
    assert found.target_rank is None
    assert float(found.kl[0].max()) > 1e-3


def test_a_model_without_a_head_has_no_lens(minilm):
    with pytest.raises(UnsupportedError, match="no unembedding"):
        mv.lens(mv.trace(minilm, "a short sentence"))
