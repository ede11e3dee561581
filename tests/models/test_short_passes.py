"""A pass that stops early: up to its last block it is the whole pass, number for number, in every family."""

from __future__ import annotations

import pytest
import torch

import families
import mechview as mv
from mechview.errors import ModelError
from mechview.models.intervene import recorded

NAMES = [name for name in families.FAMILIES if name != "falcon_alibi"]


@pytest.mark.parametrize("name", NAMES)
def test_a_short_pass_is_the_beginning_of_the_whole_one(name):
    module = families.FAMILIES[name].build()
    model = mv.wrap(module)
    if len(model.shape.stacks) > 1:
        pytest.skip("two stacks run whole")
    ids = families.tokens(7)
    first = recorded(model, ids, last=0)  # may be whole, but must not cut what later passes see
    whole, short, again = recorded(model, ids), recorded(model, ids, last=0), recorded(model, ids)
    assert torch.equal(first.attention(0).pattern, whole.attention(0).pattern)
    assert len(whole.patterns) == model.shape.n_layers
    if model.shape.placement == "post" or model.shape.stacks != ("decoder",):
        assert len(short.patterns) == model.shape.n_layers
        return
    assert short.logits is None
    assert {layer for _, layer in short.capture.attention} == {0}
    for field in ("stream", "reads", "pattern", "z", "written"):
        assert torch.equal(getattr(short.attention(0), field), getattr(whole.attention(0), field)), field
    assert torch.equal(short.stream(0), whole.stream(0))
    assert torch.equal(again.stream_final, whole.stream_final)
    assert len(again.patterns) == model.shape.n_layers


def test_a_pass_that_fails_leaves_the_module_whole():
    model = mv.wrap(families.FAMILIES["llama"].build())

    def fail(*_):
        raise ModelError("on purpose")

    handle = model.module.get_submodule("model.layers.0.mlp").register_forward_hook(fail)
    with pytest.raises(ModelError, match="on purpose"):
        recorded(model, families.tokens(5), last=0)
    handle.remove()
    assert len(recorded(model, families.tokens(5)).patterns) == model.shape.n_layers
