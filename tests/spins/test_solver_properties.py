"""What must hold for any system: symmetries, limits, stationarity, gradients; and refusals in one sentence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_solvers import random_system

import mechview as mv
from mechview.errors import UsageError
from mechview.spins import equations, fixed_points
from mechview.spins.system import system

S = mv.spins
EQUILIBRIUM = (S.MeanField, S.TAP, S.AdaptiveTAP, S.SteepestDescent)


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 4), st.integers(2, 5), st.integers(0, 10**6), st.sampled_from(EQUILIBRIUM))
def test_rotating_all_fields_rotates_all_spins(sites, dim, seed, kind):
    J, h = random_system(sites, dim, seed)
    Q, _ = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    plain, turned = S.solve(kind(J, h, 0.7)), S.solve(kind(J, h @ Q, 0.7))
    torch.testing.assert_close(turned.magnetisation, plain.magnetisation @ Q, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(turned.free_energy, plain.free_energy, rtol=1e-10, atol=1e-11)


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6))
def test_without_couplings_every_theory_is_the_single_spin(sites, dim, seed):
    _, h = random_system(sites, dim, seed)
    J = torch.zeros(sites, sites, dtype=torch.float64)
    alone = S.response(h, 1.3, 1.7)
    for model in (S.MeanField, S.TAP, S.AdaptiveTAP, S.KineticMeanField):
        torch.testing.assert_close(S.solve(model(J, h, 1.3, 1.7)).magnetisation, alone, rtol=1e-10, atol=1e-11)
    found = S.solve(S.SteepestDescent(J, h, 1.3, 1.7))
    torch.testing.assert_close(found.magnetisation, S.response(h, 1.3, 1.7, "saddle"), rtol=1e-10, atol=1e-12)
    expected = S.log_partition(h, 1.3, 1.7, "saddle").sum()
    torch.testing.assert_close(found.log_partition, expected, rtol=1e-9, atol=1e-11)


def test_one_spin_is_exact_in_every_exact_theory():
    h = torch.tensor([[0.4, -1.2, 0.3, 0.9]], dtype=torch.float64)
    exact = S.solve(S.Exact([[0.0]], h, 1.1, 2.0))
    torch.testing.assert_close(exact.magnetisation, S.response(h, 1.1, 2.0))
    for kind in (S.MeanField, S.TAP, S.AdaptiveTAP):
        fit = S.solve(kind([[0.0]], h, 1.1, 2.0))
        torch.testing.assert_close(fit.magnetisation, exact.magnetisation, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(fit.free_energy, exact.free_energy, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", EQUILIBRIUM)
def test_magnetisation_is_minus_the_slope_of_the_free_energy(kind):
    """m = -dF/dh holds only where F is stationary: by finite differences, and by autograd through the solver."""
    J, h = random_system(3, 3, 11)
    live = h.clone().requires_grad_()
    fit = S.solve(kind(J, live, 0.9, 1.2))
    torch.testing.assert_close(-torch.autograd.grad(fit.free_energy, live)[0], fit.magnetisation, rtol=1e-8, atol=1e-9)
    step = torch.zeros_like(h)
    step[1, 2] = 1e-5
    up, down = (S.solve(kind(J, h + sign * step, 0.9, 1.2)).free_energy for sign in (1, -1))
    assert float(-(up - down) / 2e-5) == pytest.approx(float(fit.magnetisation[1, 2].detach()), abs=1e-8)


@pytest.mark.parametrize(
    ("kind", "equation", "free"),
    [(S.MeanField, equations.naive, equations.naive_free_energy), (S.TAP, equations.tap, equations.tap_free_energy)],
)
def test_free_energies_are_stationary_at_the_solution_and_nowhere_near(kind, equation, free):
    J, h = random_system(3, 3, 12)
    checked, theta = system(J, h, 0.8, 1.1), S.solve(kind(J, h, 0.8, 1.1)).field
    torch.testing.assert_close(equation(checked, theta), theta, rtol=1e-10, atol=1e-11)
    for scale, limit in ((0.0, 1e-8), (0.1, None)):
        at = (theta + scale).requires_grad_()
        slope = float(torch.autograd.grad(free(checked, at), at)[0].abs().max())
        assert slope < limit if limit else slope > 1e-4


def gaussian(*given):
    return S.AdaptiveTAP(*given, prior="gaussian")


@pytest.mark.parametrize(
    "model",
    [
        S.Exact, S.MeanField, S.TAP, S.AdaptiveTAP, S.SteepestDescent, S.KineticMeanField,
        lambda *given: S.KineticMeanField(*given, order=2, steps=2),
        lambda *given: S.SteepestDescent(*given, shared=True),
        gaussian,
    ],
)  # fmt: skip
def test_gradients_through_every_solver(model):
    coupling = torch.tensor(0.3, dtype=torch.float64).requires_grad_()
    h = torch.tensor([[0.7, 0.2], [-0.3, 0.9]], dtype=torch.float64).requires_grad_()
    beta, radius = (torch.tensor(x, dtype=torch.float64).requires_grad_() for x in (0.9, 1.2))

    inputs = (coupling, h, beta, radius)
    if model is gaussian:  # its spins have no length
        inputs = inputs[:3]

    def answers(coupling, h, beta, *radius):
        J = coupling * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        fit = S.solve(model(J, h, beta, *radius))
        return fit.magnetisation if fit.free_energy is None else (fit.magnetisation, fit.free_energy)

    assert torch.autograd.gradcheck(answers, inputs, atol=1e-6, rtol=1e-5, fast_mode=True)


@pytest.mark.parametrize("kind", [S.MeanField, S.TAP, S.SteepestDescent])
def test_second_derivatives_through_solvers(kind):
    h = torch.tensor([[0.7, 0.2], [-0.3, 0.9]], dtype=torch.float64).requires_grad_()
    J = torch.tensor([[0.0, 0.3], [0.3, 0.0]], dtype=torch.float64)
    assert torch.autograd.gradgradcheck(
        lambda h: S.solve(kind(J, h)).magnetisation.sum(0), (h,), atol=1e-5, fast_mode=True
    )


def test_gradients_through_retrieval():
    X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    beta = torch.tensor(1.3, dtype=torch.float64).requires_grad_()
    start = torch.tensor([[0.2, 0.1, -0.4]], dtype=torch.float64)
    for steps in (2, None):
        assert torch.autograd.gradcheck(
            lambda X, beta, steps=steps: S.solve(S.Hopfield(X, start, beta, steps=steps)).magnetisation,
            (X, beta),
            atol=1e-6,
            fast_mode=True,
        )


@pytest.mark.parametrize("kind", EQUILIBRIUM)
def test_a_batch_is_its_members(kind):
    systems = [random_system(4, 3, seed) for seed in (1, 2)]
    betas = torch.tensor([0.5, 0.9], dtype=torch.float64)
    together = S.solve(kind(torch.stack([J for J, _ in systems]), torch.stack([h for _, h in systems]), betas))
    for n, (J, h) in enumerate(systems):
        alone = S.solve(kind(J, h, float(betas[n])))
        torch.testing.assert_close(together.magnetisation[n], alone.magnetisation, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(together.free_energy[n], alone.free_energy, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [*EQUILIBRIUM, S.KineticMeanField])
def test_single_precision_stays_single(kind):
    J, h = random_system(4, 3, 1)
    fit, exact = S.solve(kind(J.float(), h.float())), S.solve(kind(J, h))
    assert fit.magnetisation.dtype == torch.float32
    torch.testing.assert_close(fit.magnetisation.double(), exact.magnetisation, rtol=1e-4, atol=1e-5)


def test_large_systems_go_without_a_dense_jacobian(monkeypatch):
    J, h = random_system(4, 3, 3)
    dense = {kind: S.solve(kind(J, h, 0.8)) for kind in (S.MeanField, S.TAP)}
    from mechview.spins import stability

    monkeypatch.setattr(fixed_points, "DENSE", 0)
    monkeypatch.setattr(stability, "DENSE", 0)
    for kind, fit in dense.items():
        live = h.clone().requires_grad_()
        found = S.solve(kind(J, live, 0.8))
        torch.testing.assert_close(found.magnetisation.detach(), fit.magnetisation, rtol=1e-9, atol=1e-10)
        assert float(found.gain) == pytest.approx(float(fit.gain), rel=1e-4)
        slope = torch.autograd.grad(found.free_energy, live)[0]
        torch.testing.assert_close(-slope, fit.magnetisation, rtol=1e-8, atol=1e-9)


def test_the_gain_says_where_order_appears():
    """At h = 0 order appears at (beta R^2 / D) lambda_max(J) = 1."""
    J = torch.ones(4, 4, dtype=torch.float64).fill_diagonal_(0) / 3
    zero = torch.zeros(4, 3, dtype=torch.float64)
    for beta in (1.0, 2.5):
        assert float(S.solve(S.MeanField(J, zero, beta)).gain) == pytest.approx(beta / 3, rel=1e-10)
    cold = S.solve(S.MeanField(J, zero, 4.0), strict=False)
    assert cold.status is S.Status.UNSTABLE
    start = torch.full((4, 3), 0.3, dtype=torch.float64)
    ordered = S.solve(S.MeanField(J, zero, 4.0, start=start))
    assert float(ordered.magnetisation.norm(dim=-1).min()) > 0.3
    assert float(ordered.free_energy) < float(cold.free_energy)


def test_tap_in_a_spin_glass_does_not_claim_to_have_converged():
    generator = torch.Generator().manual_seed(1)
    J = torch.randn(40, 40, generator=generator, dtype=torch.float64) / 40**0.5
    J = ((J + J.mT) / 2**0.5).fill_diagonal_(0)
    h = 0.01 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    assert S.solve(S.TAP(J, h, 0.4), strict=False).converged
    fit = S.solve(S.TAP(J, h, 2.0), strict=False, max_steps=40)
    assert not fit.converged
    with pytest.raises(S.SolverError, match=r"^TAP: .*\(\d+ steps, residual"):
        S.solve(S.TAP(J, h, 2.0), max_steps=40)


def test_a_spherical_model_has_one_multiplier_and_meets_the_mean_constraint():
    J, h = random_system(5, 4, 6)
    fit = S.solve(S.SteepestDescent(J, h, 0.8, 1.5, shared=True))
    assert fit.multiplier.shape == (1,)
    assert float(fit.correlation.diagonal().mean()) == pytest.approx(1.5**2, rel=1e-10)
    assert float(fit.free_energy) <= float(S.solve(S.SteepestDescent(J, h, 0.8, 1.5)).free_energy)


GOOD = {"J": [[0.0, 0.2], [0.2, 0.0]], "h": [[0.1, 0.2], [0.3, 0.4]]}


@pytest.mark.parametrize("kind", [*EQUILIBRIUM, S.Exact, S.MonteCarlo])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"J": [[0.0, float("nan")], [0.2, 0.0]]}, "J has 1 values that are NaN or infinite"),
        ({"h": [[0.1, float("inf")], [0.3, 0.4]]}, "h has 1 values that are NaN or infinite"),
        ({"J": [[0.0, 0.2], [0.1, 0.0]]}, "J is not symmetric"),
        ({"J": [[0.0, 0.2, 0.1], [0.2, 0.0, 0.1]]}, "couplings are square"),
        ({"J": [[1.0, 0.2], [0.2, 0.0]]}, "couples a spin to itself"),
        ({"h": [[0.1, 0.2]]}, r"with 2 spins it is \[2, components\]"),
        ({"beta": 0.0}, "beta is not positive"),
        ({"beta": -1.0}, "beta is not positive"),
        ({"radius": 0.0}, "radius is not positive"),
        ({"J": "couplings"}, "J is not an array of numbers"),
    ],
)
def test_what_is_no_system_is_refused_in_one_sentence(kind, change, words):
    with pytest.raises(UsageError, match=words) as caught:
        S.solve(kind(**(GOOD | change)))
    assert "\n" not in str(caught.value)


def test_other_refusals():
    with pytest.raises(UsageError, match="int is not a spin model"):
        S.solve(3)
    with pytest.raises(UsageError, match="max_steps=0 is too small"):
        S.solve(S.MeanField(**GOOD), max_steps=0)
    with pytest.raises(UsageError, match="order=3 is not known"):
        S.solve(S.KineticMeanField(**GOOD, order=3))
    with pytest.raises(UsageError, match="prior='flat'"):
        S.solve(S.AdaptiveTAP(**GOOD, prior="flat"))
    with pytest.raises(UsageError, match="eigenvalue of 1 or more"):
        S.solve(S.AdaptiveTAP([[0.0, 2.0], [2.0, 0.0]], GOOD["h"], prior="gaussian"))
    with pytest.raises(UsageError, match="too many for quadrature"):
        S.solve(S.Exact(torch.zeros(5, 5), torch.zeros(5, 3)))
    with pytest.raises(UsageError, match="too many states"):
        S.solve(S.Exact(torch.zeros(30, 30), torch.zeros(30, 1)))
    with pytest.raises(UsageError, match="patterns are"):
        S.solve(S.Hopfield(torch.zeros(4, 3), torch.zeros(2, 2)))


def test_what_the_caller_handed_in_is_not_changed():
    J, h = random_system(3, 2, 0)
    before = J.clone(), h.clone()
    for kind in (*EQUILIBRIUM, S.Exact, S.MonteCarlo, S.KineticMeanField):
        S.solve(kind(J, h))
    assert torch.equal(J, before[0])
    assert torch.equal(h, before[1])


@pytest.mark.parametrize("kind", EQUILIBRIUM)
def test_energy_and_correlations_are_slopes_of_the_free_energy(kind):
    """U = d(beta F)/d beta and <s_i.s_j> = -dF/dJ_ij (each pair once), through the solver."""
    J, h = random_system(3, 3, 13)
    J, beta = J.requires_grad_(), torch.tensor(0.8, dtype=torch.float64).requires_grad_()
    fit = S.solve(kind(J, h, beta, 1.3))
    by_beta = torch.autograd.grad(beta * fit.free_energy, beta, retain_graph=True)[0]
    torch.testing.assert_close(by_beta, fit.energy, rtol=1e-8, atol=1e-9)
    by_J = torch.autograd.grad(fit.free_energy, J)[0]
    off = ~torch.eye(3, dtype=torch.bool)
    torch.testing.assert_close(-(by_J + by_J.mT)[off], fit.correlation[off], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(fit.entropy, beta * (fit.energy - fit.free_energy), rtol=1e-10, atol=1e-12)
