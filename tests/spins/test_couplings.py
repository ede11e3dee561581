"""Couplings that follow the field: equation (8) exactly, in closed form and by autodiff; and every convention trap."""

from __future__ import annotations

import math

import golden_numbers as golden
import pytest
import torch
from golden_numbers import assert_golden, tensor
from test_solvers import random_system

import mechview as mv
from mechview.errors import UsageError
from mechview.spins import conventions, couplings
from mechview.spins.exact import sign_states

S = mv.spins


def article_sums(J, h, beta):
    """Log Z (uniform measure), means and correlations of sign spins from the article's energy, state by state."""
    s = sign_states(len(h), h)
    weight = beta * (torch.einsum("si,ij,sj->s", s, J, s) + s @ h)
    p = torch.softmax(weight, 0)
    return torch.logsumexp(weight, 0) - len(h) * math.log(2), p @ s, (p[:, None] * s).mT @ s


def softmax_of_field(h):
    field = h[:, 0]
    return torch.softmax(1.1 * field[:, None] * field + 0.4 * torch.arange(3, dtype=h.dtype) * field[:, None], -1)


def test_golden_total_response_of_field_dependent_couplings():
    case = golden.group("field_dependent_couplings")
    h = tensor(case["h"])[:, None]
    J = softmax_of_field(h)
    assert_golden(J, case["J"])
    log_z, m, C = article_sums(J, h[:, 0], 0.8)
    assert_golden(-log_z / 0.8, case["F"])
    assert_golden(m, case["spin_mean"])
    assert_golden(C, case["C"])
    made = S.from_article(J, h, 0.8)
    fit = S.solve(S.Exact(made.J, made.h, 0.8))
    assert_golden(fit.free_energy + made.energy_shift, case["F"])
    total = S.total_response(softmax_of_field, h, 0.8)[:, 0]
    assert_golden(total, case["total"])
    assert_golden(total - m, case["coupling_term"])


def heads(seed=0, sites=4, dim=3, d_head=2):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((sites, dim), (dim, d_head), (dim, d_head), (sites, sites))
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


@pytest.mark.parametrize("causal", [False, True])
def test_the_closed_form_of_the_coupling_term_is_its_derivative(causal):
    n, W_Q, W_K, C = heads()
    live = n.clone().requires_grad_()
    weighted = (C * S.softmax_couplings(live, W_Q, W_K, 0.7, causal=causal)).sum()
    expected = torch.autograd.grad(weighted, live)[0]
    torch.testing.assert_close(S.coupling_term(n, W_Q, W_K, C, 0.7, causal=causal), expected, rtol=1e-12, atol=1e-13)


def test_equation_8_is_the_total_derivative_for_vector_spins():
    """(8) = (9) with softmax couplings of the field itself: exact pairs, and steepest descent of more."""
    for sites, model in ((2, S.Exact), (5, S.SteepestDescent)):
        n, W_Q, W_K, _ = heads(1, sites=sites)

        def J(h, W_Q=W_Q, W_K=W_K):
            return S.softmax_couplings(h, W_Q, W_K)

        made = S.from_article(J(n), n, 0.6, 1.2)
        fit = S.solve(model(made.J, made.h, 0.6, 1.2))
        by_parts = fit.magnetisation + S.coupling_term(n, W_Q, W_K, fit.correlation)
        torch.testing.assert_close(S.total_response(J, n, 0.6, 1.2, model=model), by_parts, rtol=1e-9, atol=1e-10)
        assert float((by_parts - fit.magnetisation).abs().max()) > 1e-3


def test_a_causal_token_needs_later_ones_for_the_coupling_term():
    n, W_Q, W_K, C = heads(2)
    changed = n.clone()
    changed[-1] += 1.0
    first, other = (S.coupling_term(x, W_Q, W_K, C, causal=True)[1] for x in (n, changed))
    assert float((first - other).abs().max()) > 1e-4


def test_the_energy_transformers_force_is_minus_the_gradient_of_its_energy():
    n, W_Q, W_K, X = heads(3)
    live = n.clone().requires_grad_()
    force = -torch.autograd.grad(couplings.attention_energy(live, W_Q, W_K, 0.9), live)[0]
    torch.testing.assert_close(couplings.attention_force(n, W_Q, W_K, 0.9), force)
    memory = -torch.autograd.grad(couplings.memory_energy(live, X[:, :3]), live)[0]
    torch.testing.assert_close(torch.relu(n @ X[:, :3].mT) @ X[:, :3], memory)


def test_ordered_pairs_become_half_of_both_and_the_diagonal_a_shift():
    """A-e2: the article's double sum, its diagonal included."""
    J = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    h = tensor([0.2, -0.4, 0.1])
    log_z, m, _ = article_sums(J, h, 0.7)
    made = S.from_article(J, h[:, None], 0.7)
    fit = S.solve(S.Exact(made.J, made.h, 0.7))
    torch.testing.assert_close(fit.free_energy + made.energy_shift, -log_z / 0.7)
    torch.testing.assert_close(fit.magnetisation[:, 0], m)
    again = S.from_article(conventions.to_article(made.J), made.h)
    torch.testing.assert_close(again.J, made.J)
    assert float(again.energy_shift) == 0


def test_deep_implicit_attention_has_plus_signs_and_beta_inside():
    """A-e3: weights exp(+E) of E = 1/2 s J s + x s."""
    J, x = random_system(3, 1, 5)
    s = sign_states(3, x)
    p = torch.softmax((s @ J * s).sum(-1) / 2 + s @ x[:, 0], 0)
    made = S.from_dia(J, x)
    torch.testing.assert_close(S.solve(S.Exact(made.J, made.h, made.beta)).magnetisation[:, 0], p @ s)


def test_afem_prints_beta_times_the_mean_and_half_the_multiplier():
    """A-e4, and AFEM's own formula for -beta f in its own symbols."""
    J, h = random_system(3, 4, 6)
    beta, D = 0.6, 4
    made = S.from_afem(J / 2, h, beta)
    torch.testing.assert_close(made.J, J)
    fit = S.solve(S.SteepestDescent(made.J, made.h, beta, made.radius))
    t = conventions.afem_multiplier(fit.multiplier)
    V = torch.diag(t) - J / 2
    phi = beta * t.sum() - torch.logdet(V) / 2 + beta / (4 * D) * torch.trace(h.mT @ torch.linalg.inv(V) @ h)
    minus_beta_f = -1.5 - 1.5 * math.log(2 * beta) + phi
    torch.testing.assert_close(D * minus_beta_f, fit.log_partition)
    live = h.clone().requires_grad_()
    printed = torch.autograd.grad(S.solve(S.SteepestDescent(J, live, beta, made.radius)).log_partition, live)[0]
    torch.testing.assert_close(conventions.afem_magnetisation(fit.magnetisation, beta), printed, rtol=1e-8, atol=1e-9)


def test_neq_spins_have_their_own_length_and_any_couplings():
    """A-e5."""
    case = golden.group("kinetic_largeD")
    made = S.from_neq(tensor(case["J"]), tensor(case["x"]))
    assert made.radius**2 == pytest.approx(3.0)
    fit = S.solve(S.KineticMeanField(made.J, made.h, made.beta, made.radius, form="large_d"))
    assert_golden(fit.magnetisation, case["fixed"])
    with pytest.raises(UsageError, match="not positive for spins of dimension 2"):
        S.from_neq(torch.zeros(2, 2), torch.zeros(2, 2))


def test_counting_adds_n_log_two():
    """A-e6: log Z is 0 at beta = 0 with the uniform measure; counting states adds N log 2."""
    J, h = random_system(3, 1, 7)
    s = sign_states(3, h)
    counted = torch.logsumexp((s @ J * s).sum(-1) / 2 + s @ h[:, 0], 0)
    fit = S.solve(S.Exact(J, h))
    torch.testing.assert_close(S.counting_log_partition(fit.log_partition, 3), counted)
    assert float(S.solve(S.Exact(J, h, 1e-12)).log_partition) == pytest.approx(0, abs=1e-10)
    assert float(fit.entropy) < 0


def test_golden_causal_spectrum_is_the_diagonal_and_powers_reach_the_first_token():
    case = golden.group("causal_spectrum")
    A = tensor(case["A"])
    values = torch.linalg.eigvals(A).real.sort(descending=True).values
    torch.testing.assert_close(values, tensor(case["eigenvalues"]), rtol=0, atol=1e-7)
    torch.testing.assert_close(A.diagonal().sort(descending=True).values, tensor(case["eigenvalues"]))
    assert_golden(torch.linalg.svdvals(A), case["singular_values"])
    torch.testing.assert_close(torch.linalg.matrix_power(A, 200), tensor(case["Ainf"]))
