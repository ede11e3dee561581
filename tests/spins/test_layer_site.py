"""A block in the terms of a spin system: closed forms against autograd, parts against the model's own numbers."""

from __future__ import annotations

import pytest
import torch

import families
from conftest import family
from mechview.models.intervene import recorded
from mechview.models.scores import finished, pattern_of
from mechview.spins.layers import controls, ladder, ladder_mlp, maxwell, relaxation
from mechview.spins.layers.site import heads_of, layer_of, site_of, turned
from mechview.spins.layers.work import seeded

NAMES = ["gpt2", "llama", "qwen3", "gemma2", "gptj", "gpt_neox", "cohere_qk_norm", "bloom", "mistral", "falcon"]


def site(name: str, layer: int = 1):
    model, _ = family(name)
    seen = recorded(model, families.tokens(14))
    return model, site_of(seen, layer_of(model.weights, layer, torch.float64))


def assert_near(ours, expected, rtol=1e-5):
    torch.testing.assert_close(ours, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_the_block_is_rebuilt_from_its_weights(name):
    model, here = site(name)
    parallel = model.shape.placement == "parallel"
    assert_near(here.stream + relaxation.update(here, here.stream, parallel), here.after, 1e-4)
    assert_near(here.stream + here.attention_write + here.mlp_write, here.after, 1e-4)
    assert_near(here.mlp_from(here.hidden), here.mlp_write, 1e-4)
    assert_near(here.pattern_of(here.content), here.pattern, 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_energy_gradient_is_that_of_autograd(name):
    _, here = site(name)
    w, x = here.layer.attention, here.stream.clone().requires_grad_()
    scores = finished(turned(heads_of(x, w)[0], here.turns) @ here.key.mT, w)
    closed = ladder.energy_gradient(here, scores.softmax(-1).detach(), here.key)
    for head in range(len(closed)):
        [slope] = torch.autograd.grad(torch.logsumexp(scores[head], -1).sum(), x, retain_graph=True)
        assert_near(closed[head], slope)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "gemma2", "gptj"])
def test_coupling_term_of_eq_8_is_that_of_autograd(name):
    _, here = site(name)
    w, x = here.layer.attention, here.stream.clone().requires_grad_()
    overlaps = ladder_mlp.overlaps_of(here)
    q, k = heads_of(x, w)
    q, k = turned(q, here.turns), turned(k[w.kv_head], here.turns)
    A = pattern_of(finished(q @ k.mT, w), w.sinks)
    own = ladder_mlp.coupling_term(here, overlaps, causal=False)
    row = ladder_mlp.coupling_term(here, overlaps, causal=True)
    for head in range(len(own)):
        [slope] = torch.autograd.grad((overlaps * A[head]).sum(), x, retain_graph=True)
        assert_near(own[head], slope)
        for i in (0, 5, 13):
            [slope] = torch.autograd.grad((overlaps[i] * A[head, i]).sum(), x, retain_graph=True)
            assert_near(row[head, i], slope[i])


def test_a_pullback_of_one_head_is_refused_where_heads_share_a_scale():
    _, here = site("olmo2")
    assert not here.layer.closed_pullback
    names = {design.quantity for design in ladder.real_designs(here)}
    assert ladder.H5 not in names
    assert ladder.H3 in names


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_halves_of_ov_add_up_to_the_write_without_its_biases(name):
    _, here = site(name)
    even, odd = ladder.halves(here)
    bare = here.lift(here.pattern @ (here.field @ here.layer.reads))
    assert_near(even + odd, bare)
    if here.layer.attention.b_V is None and here.layer.attention.norm.bias is None:
        assert_near(bare, here.writes)


def test_jacobian_of_a_token_is_the_diagonal_block_of_the_whole():
    _, here = site("llama")
    short = maxwell.prefix(here, 6)
    function = maxwell.own_attention(short)

    def whole(x):
        return relaxation.update(short, x, parallel=False) - maxwell.mlp_map(short.layer)(x + function(x))

    dense = torch.autograd.functional.jacobian(function, short.stream)
    for i in range(6):
        for j in range(6):
            assert i == j or float(dense[i, :, j].abs().max()) < 1e-12
    full = torch.autograd.functional.jacobian(lambda x: _attention(short, x), short.stream)
    for i in range(6):
        assert_near(dense[i, :, i], full[i, :, i])


def _attention(here, x):
    w = here.layer.attention
    q, k = heads_of(x, w)
    A = pattern_of(finished(turned(q, here.turns) @ turned(k[w.kv_head], here.turns).mT, w), w.sinks)
    from mechview.spins.layers.site import values_of

    return (A @ values_of(x, w) @ w.W_O).sum(0)


def test_a_shuffle_keeps_rows_sinks_and_masks_and_moves_the_rest():
    _, here = site("mistral", 0)
    found = controls.shuffled(here.pattern, here.visible, seeded(1))
    assert_near(found.sort(-1).values, here.pattern.sort(-1).values)
    assert_near(found[:, :, 0], here.pattern[:, :, 0])
    assert float(found.masked_fill(here.visible, 0.0).abs().max()) == 0.0
    assert float((found - here.pattern).abs().max()) > 1e-3


def test_destroyed_structure_keeps_its_statistics():
    _, here = site("llama")
    [draw] = controls.destroyed(here.layer, 1, seeded(2))
    null = controls.Null(here, draw, seeded(3), 0)
    assert_near(null.key.norm(dim=-1), here.key.norm(dim=-1))
    assert float((null.pattern - here.pattern).abs().max()) > 1e-3
    for W, turn in ((here.layer.reads, draw.values), (here.layer.key_read, draw.keys)):
        assert_near(torch.linalg.svdvals(W @ turn), torch.linalg.svdvals(W))
    assert_near(null.mlp_write.mean(), here.mlp_from(here.hidden[:, draw.units]).mean())
    assert float((null.mlp_write - here.mlp_write).abs().max()) > 1e-3
    assert_near(draw.key_entries.sort().values.sum(), here.layer.key_read.sum())
    groups = here.layer.attention.kv_head
    assert torch.equal(draw.keys[0], draw.keys[1]) == bool(groups[0] == groups[1])
