"""Copies with permuted weights: the same numbers, at other places, and the model as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import families
import mechview as mv
from mechview.errors import UnsupportedError
from mechview.models.permuted import permuted_copy

NAMES = [name for name in families.FAMILIES if name != "falcon_alibi"]


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_inside_the_blocks_is_permuted_and_nothing_else(name):
    """Queries, keys and values keep to themselves, also where the checkpoint has them in one matrix."""
    module = families.FAMILIES[name].build()
    model = mv.wrap(module, name=name)
    before = {path: value.clone() for path, value in module.state_dict().items()}
    copy = permuted_copy(model, draws())
    for stack in model.shape.stacks:
        one, two = model.weights.attention(0, stack), copy.weights.attention(0, stack)
        for matrix in ("W_Q", "W_K", "W_V", "W_O"):
            here, there = getattr(one, matrix), getattr(two, matrix)
            assert not torch.equal(here, there), f"{stack} {matrix}"
            assert torch.equal(here.flatten().sort().values, there.flatten().sort().values), f"{stack} {matrix}"
        assert one.norm.gain is None or torch.equal(one.norm.gain, two.norm.gain)
    assert not torch.equal(model.weights.mlp(0).W_out, copy.weights.mlp(0).W_out)
    assert torch.equal(model.weights.ends().W_E, copy.weights.ends().W_E)
    after = module.state_dict()
    assert all(torch.equal(before[path], after[path]) for path in before)


@pytest.mark.parametrize("name", NAMES)
def test_with_the_ends_every_matrix_of_a_model_is_permuted(name):
    """Norms and biases stay, tied matrices stay tied, and the model itself is as it was."""
    module = families.FAMILIES[name].build()
    model = mv.wrap(module, name=name)
    before = {path: value.clone() for path, value in module.state_dict().items()}
    copy = permuted_copy(model, draws(), ends=True).module.state_dict()
    matrices = {path for path, value in module.named_parameters(remove_duplicate=False) if value.ndim > 1}
    for path, value in before.items():
        assert torch.equal(module.state_dict()[path], value)
        assert torch.equal(copy[path].flatten().sort().values, value.flatten().sort().values), path
        assert torch.equal(copy[path], value) != (path in matrices and value.unique().numel() > 1), path
    first: dict[int, str] = {}
    for path, value in module.state_dict().items():
        twin = first.setdefault(value.data_ptr(), path)
        assert value.numel() == 0 or torch.equal(copy[path], copy[twin]), path


def test_the_generator_decides_and_layers_differ():
    model = mv.wrap(families.FAMILIES["llama"].build())
    one, same, other = (permuted_copy(model, draws(seed)).weights.attention(0).W_Q for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_copy_of_plain_arrays_runs_and_differs():
    W = torch.arange(2 * 6 * 3, dtype=torch.float32).reshape(2, 6, 3)
    layer = {"W_Q": W, "W_K": W, "W_V": W, "W_O": W.transpose(1, 2)}
    model = mv.from_arrays(W_E=torch.eye(6), layers=[layer])
    copy = permuted_copy(model, draws())
    there = copy.weights.attention(0).W_Q
    assert not torch.equal(there, W)
    assert torch.equal(copy.weights.ends().W_E, torch.eye(6))
    outside = permuted_copy(model, draws(), ends=True).weights.ends()
    assert not torch.equal(outside.W_E, torch.eye(6))
    assert torch.equal(outside.W_U, outside.W_E.mT)
    assert torch.equal(there.flatten().sort().values, W.flatten().sort().values)
    assert torch.equal(model.weights.attention(0).W_Q, W)
    assert copy.capture(torch.tensor([1, 2, 3])).logits.shape == (3, 6)


def test_a_module_that_has_shown_its_attention_can_be_copied_and_shows_it_again():
    """The library marks modules that it has hooked; a copy has no hooks, so it must not have the mark."""
    module = families.FAMILIES["llama"].build()
    module(torch.tensor([[3, 4, 5]]), output_attentions=True)
    model = mv.wrap(module)
    scores = mv.head_scores(model, ["previous_token"], seeds=1, copies=1)
    assert all(0 <= row.value <= 1 for row in scores.rows)


def test_a_bridge_is_not_copied():
    model = mv.wrap(families.FAMILIES["gpt2"].build())
    with pytest.raises(UnsupportedError, match="a bridge has rewritten the module"):
        permuted_copy(replace(model, source=replace(model.source, kind="bridge")), draws())
