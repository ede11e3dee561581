"""The synchronous chain: golden steps, orders in the couplings, its steady state, irreversibility, its phase transition."""

from __future__ import annotations

import golden_numbers as golden
import pytest
import torch
from golden_numbers import assert_golden, tensor
from test_solvers import random_system

import mechview as mv
from mechview.spins import chain, exact, kinetic
from mechview.spins.exact import sign_states
from mechview.spins.system import system

S = mv.spins


def test_golden_kinetic_step_and_its_orders():
    case = golden.group("kinetic_ising_step")
    errors = {1: [], 2: []}
    for row in case["rows"]:
        J = row["eps"] * tensor(case["Ja"])
        exact = chain.one_step_means(J, case["x"], case["m0"])
        assert_golden(exact, row["exact"])
        for order, key in ((1, "nmf"), (2, "tap")):
            fit = S.solve(S.KineticMeanField(J, case["x"], order=order, steps=1, start=case["m0"]))
            assert_golden(fit.magnetisation[:, 0], row[key])
            assert_golden((fit.magnetisation[:, 0] - exact).abs().max(), row[f"err_{key}"])
            errors[order].append(float((fit.magnetisation[:, 0] - exact).abs().max()) / row["eps"] ** (order + 1))
    for scaled in errors.values():
        assert max(scaled) < 4 * min(scaled)


def test_golden_kinetic_large_dimension():
    case = golden.group("kinetic_largeD")
    given = {"J": case["J"], "h": case["x"], "radius": 3**0.5}
    assert_golden(S.solve(S.KineticMeanField(**given, form="large_d", steps=1)).magnetisation, case["first"])
    assert_golden(S.solve(S.KineticMeanField(**given, form="large_d")).magnetisation, case["fixed"])
    fit = S.solve(S.KineticMeanField(**given))
    assert_golden(fit.magnetisation, case["fixed_exact_bessel"])
    assert float(fit.gain) < case["contraction_bound"]


def test_symmetric_second_order_chain_rests_at_the_tap_solution():
    J, h = random_system(3, 3, 3, scale=0.2)
    tap, steady = S.solve(S.TAP(J, h, 0.8)), S.solve(S.KineticMeanField(J, h, 0.8, order=2))
    torch.testing.assert_close(tap.magnetisation, steady.magnetisation, rtol=1e-10, atol=1e-11)
    walked = S.solve(S.KineticMeanField(J, h, 0.8, order=2, steps=15))
    torch.testing.assert_close(walked.magnetisation, steady.magnetisation, rtol=1e-9, atol=1e-10)


def test_correlations_of_a_step_have_their_orders():
    """One step from independent spins, state by state: the lagged correlation is right to second order in J."""
    x, before = tensor([0.2, -0.4, 0.1, 0.3]), tensor([0.3, -0.6, 0.5, 0.1])
    J = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    s = sign_states(4, x)
    p = ((1 + s * before) / 2).prod(-1)
    errors = []
    for eps in (0.005, 0.01):
        answer = torch.tanh(x + eps * s @ J.mT)
        m = p @ answer
        lagged = (p[:, None] * answer).mT @ s - m[:, None] * before
        equal = (p[:, None] * answer).mT @ answer - m[:, None] * m
        errors.append([float((kinetic.lagged_correlation(eps * J, m, before, n) - lagged).abs().max()) for n in (1, 2)])
        off = (kinetic.equal_time_correlation(eps * J, m, before) - equal).fill_diagonal_(0)
        assert float(off.abs().max()) < 10 * eps**3
    assert errors[1][0] / errors[0][0] == pytest.approx(4, rel=0.2)
    assert errors[1][1] / errors[0][1] == pytest.approx(8, rel=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_entropy_production_is_the_irreversibility_of_the_chain(seed):
    J = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = tensor([0.2, -0.4, 0.1])
    made = chain.sign_chain(J, x, 0.7)
    found = float(S.entropy_production(J, made.lagged_correlation, 0.7))
    assert found == pytest.approx(made.entropy_production, rel=1e-10)
    assert found > 1e-3
    symmetric = chain.sign_chain(J + J.mT, x, 0.7)
    assert abs(symmetric.entropy_production) < 1e-12
    assert abs(float(S.entropy_production(J + J.mT, symmetric.lagged_correlation))) < 1e-12
    theta = torch.atanh(made.magnetisation)[:, None]
    assert float(S.entropy_production_proxy(J + J.mT, theta)) == 0
    small = chain.sign_chain(J / 20, x)
    proxy = S.entropy_production_proxy(J / 20, torch.atanh(small.magnetisation)[:, None])
    assert float(proxy) == pytest.approx(small.entropy_production, rel=0.1)


def test_with_symmetric_couplings_the_synchronous_chain_has_perettos_law():
    J, h = random_system(4, 1, 5)
    made = chain.sign_chain(J, h, 0.9)
    field = 0.9 * (h[:, 0] + made.states @ J.mT)
    law = torch.softmax(torch.logaddexp(field, -field).sum(-1) + 0.9 * made.states @ h[:, 0], 0)
    torch.testing.assert_close(made.stationary, law, rtol=1e-10, atol=1e-13)
    boltzmann = torch.softmax(0.9 * ((made.states @ J * made.states).sum(-1) / 2 + made.states @ h[:, 0]), 0)
    assert float((made.stationary - boltzmann).abs().max()) > 1e-3


def test_golden_kinetic_fixed_point():
    """The file states couplings and fields by name: they and the start are those of its one-step case."""
    case, given = golden.group("kinetic_ising_fixed_point"), golden.group("kinetic_ising_step")
    for steps, key in ((1, "m1"), (2, "m2"), (5, "m5"), (None, "fixed")):
        fit = S.solve(S.KineticMeanField(given["Ja"], given["x"], start=given["m0"], steps=steps))
        assert_golden(fit.magnetisation[:, 0], case[key])
    assert float(fit.residual) < 1e-12


@pytest.mark.parametrize(
    ("scale", "production", "proxy"),
    [(1.0, 2.661835953300502, 3.078296434914596), (0.3, 0.264223972896412, 0.268522756870704)],
)
def test_entropy_production_of_the_specification(scale, production, proxy):
    """Inputs are those of the kinetic golden case; the proxy is taken at the naive mean-field steady state."""
    given = golden.group("kinetic_ising_step")
    J, x = scale * tensor(given["Ja"]), tensor(given["x"])
    made = chain.sign_chain(J, x)
    assert_golden(S.entropy_production(J, made.lagged_correlation), production)
    assert made.entropy_production == pytest.approx(production, rel=1e-9)
    assert_golden(S.entropy_production_proxy(J, S.solve(S.KineticMeanField(J, x)).field), proxy)


def _vector_step(J, x, before, nodes=14):
    """Exact mean of spin 0 one step after two independent spins in the fields `before` (D = 3), over both spheres."""
    points, log_weights = exact._sphere(system(J, x, 1.0, 1.0, symmetric=False), nodes)
    law = torch.softmax(log_weights[:, None] + points @ before.mT, 0)
    fields = x[0] + J[0, 0] * points[:, None] + J[0, 1] * points[None, :]
    return torch.einsum("a,b,abd->d", law[:, 0], law[:, 1], S.response(fields))


def test_a_step_of_vector_spins_is_right_to_its_order():
    """Errors of the means fall as J^2 for first order and J^3 for second, against the sphere integral."""
    x, before = tensor([[0.7, 0.2, -0.3], [-0.3, 0.9, 0.1]]), tensor([[0.4, -0.8, 0.5], [1.1, 0.3, 0.2]])
    coupling, start, errors = tensor([[0.5, 0.9], [0.2, -0.4]]), S.response(before), []
    for eps in (0.1, 0.2):
        m = _vector_step(eps * coupling, x, before)
        models = (S.KineticMeanField(eps * coupling, x, order=n, steps=1, start=start) for n in (1, 2))
        errors.append([float((S.solve(model).magnetisation[0] - m).abs().max()) for model in models])
    assert errors[1][0] / errors[0][0] == pytest.approx(4, rel=0.1)
    assert errors[1][1] / errors[0][1] == pytest.approx(8, rel=0.15)


def test_lagged_correlation_of_vector_spins_is_that_of_sign_spins_in_one_dimension():
    J, theta = random_system(3, 1, 8)
    before = theta.flip(0)
    m, m_before = torch.tanh(theta[:, 0]), torch.tanh(before[:, 0])
    found = kinetic.lagged_vector_correlation(J, theta, before)
    torch.testing.assert_close(found, kinetic.lagged_correlation(J, m, m_before, order=1))


def _mirrored(half, generator):
    """`J_ij ~ N(1/N, 0.01/N)` and fields even over [-1/2, 1/2], symmetric under s_i <-> -s_i'; rows and columns have exact means."""
    sites = 2 * half
    A, B = torch.randn(2, half, half, dtype=torch.float64, generator=generator)
    A, B = (part - part.mean(0) - part.mean(1, keepdim=True) + part.mean() for part in (A, B))
    A, B = (1 / sites + 0.1 * sites**-0.5 * part for part in (A, B))
    x = (torch.arange(half, dtype=torch.float64) + 0.5) / (2 * half)
    return torch.cat([torch.cat([A, B], 1), torch.cat([B, A], 1)]), torch.cat([x, -x])


def test_order_appears_at_the_known_temperature_and_the_onsager_field_is_needed_for_it():
    """Aguilera et al. 2021: X0 = 0.5, J_mu = 1, J_sigma = 0.1 order at beta = 1.1108; naive mean field says 1.099 (both at N -> inf, from two sizes)."""
    critical = {}
    for order in (1, 2):
        small, large = (_critical(*_mirrored(half, torch.Generator().manual_seed(0)), order) for half in (40, 80))
        critical[order] = 2 * large - small
    assert critical[2] == pytest.approx(1.1108, abs=0.003)
    assert critical[1] == pytest.approx(1.0986, abs=0.003)
    J, x = _mirrored(40, torch.Generator().manual_seed(0))
    for beta, low, high in ((1.0, -1e-6, 1e-6), (1.2, 0.2, 0.9)):
        start = torch.full_like(x, 0.5)
        m = S.solve(S.KineticMeanField(J, x, beta, order=2, start=start)).magnetisation.mean()
        assert low < float(m) < high


def _critical(J, x, order):
    """Where the gain of the state without order passes 1, by interpolation."""
    models = (S.KineticMeanField(J, x, beta, order=order, start=0 * x) for beta in (1.06, 1.15))
    cold, warm = (float(S.solve(model).gain) for model in models)
    return 1.06 + 0.09 * (1 - cold) / (warm - cold)
