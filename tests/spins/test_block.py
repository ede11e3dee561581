"""The spin block: it is its solver's answer, it trains, and causality is kept or refused."""

from __future__ import annotations

import pytest
import torch

import mechview as mv
from mechview.errors import UsageError

S = mv.spins


def block(**settings):
    return S.SpinBlock(4, generator=torch.Generator().manual_seed(0), **settings).double()


def inputs(sites=5):
    return torch.randn(2, sites, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("settings", [{}, {"theory": "kinetic", "causal": True}, {"theory": "kinetic", "steps": 1}])
def test_output_is_the_magnetisation_and_gradients_reach_every_weight(settings):
    made, x = block(**settings), inputs().requires_grad_()
    fit = made.fit(x)
    torch.testing.assert_close(made(x), fit.magnetisation)
    assert fit.converged
    assert float(fit.magnetisation.detach().norm(dim=-1).max()) < 2
    made(x).square().sum().backward()
    grads = [x.grad, made.field.grad, made.log_beta.grad]
    if settings.get("steps") != 1:
        grads += [made.query.grad, made.key.grad]
    assert all(grad is not None and bool(grad.isfinite().all()) and float(grad.abs().max()) > 0 for grad in grads)


@pytest.mark.parametrize("settings", [{}, {"theory": "kinetic"}])
def test_gradients_are_those_of_finite_differences(settings):
    made = S.SpinBlock(2, generator=torch.Generator().manual_seed(3), **settings).double()
    x = torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(made, (x,), atol=1e-5, rtol=1e-4)


def test_a_causal_block_sees_no_later_token_and_equilibrium_refuses_the_mask():
    made, x = block(theory="kinetic", causal=True), inputs()
    changed = x.clone()
    changed[:, -1] += 1
    torch.testing.assert_close(made(x)[:, :-1], made(changed)[:, :-1], rtol=1e-9, atol=1e-10)
    equilibrium = block()
    assert float((equilibrium(x)[:, 0] - equilibrium(changed)[:, 0]).detach().abs().max()) > 1e-4
    with pytest.raises(UsageError, match="no equilibrium"):
        block(causal=True)
    with pytest.raises(UsageError, match="is not known"):
        block(theory="hot")


def test_one_kinetic_step_is_the_response_to_the_field_alone_and_two_mix_tokens():
    x = inputs()
    one = block(theory="kinetic", steps=1)
    model = one.model(x)
    torch.testing.assert_close(one(x), S.response(model.h, model.beta.detach(), 2.0))
    two = block(theory="kinetic", steps=2)
    torch.testing.assert_close(two(x), S.response(model.h + model.J @ one(x), model.beta.detach(), 2.0))


def test_permuting_tokens_permutes_an_unmasked_blocks_output():
    made, x = block(), inputs()
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(made(x[:, order]), made(x)[:, order], rtol=1e-9, atol=1e-10)
