"""Solvers against golden numbers, exact enumeration and quadrature, closed forms, and each other."""

from __future__ import annotations

import itertools

import golden_numbers as golden
import pytest
import torch
from golden_numbers import assert_golden, tensor

import mechview as mv
from mechview.spins import equations, hopfield
from mechview.spins.single import SiteLaw

S = mv.spins
ISING = golden.group("ising")["cases"]
VECTOR = golden.group("vector2")["cases"]


def random_system(sites, dim, seed=0, scale=0.4):
    generator = torch.Generator().manual_seed(seed)
    J = scale * torch.randn(sites, sites, generator=generator, dtype=torch.float64)
    J = ((J + J.mT) / 2).fill_diagonal_(0)
    return J, torch.randn(sites, dim, generator=generator, dtype=torch.float64)


def vector_case(case):
    h = torch.zeros(2, case["D"], dtype=torch.float64)
    h[:, :2] = tensor(case["h"])
    return {"J": case["J"], "h": h, "beta": case["beta"], "radius": case["R"]}


@pytest.mark.parametrize("case", ISING, ids=lambda case: f"N{len(case['h'])}")
def test_golden_ising(case):
    J, h, beta = case["J"], case["h"], case["beta"]
    fit, known = S.solve(S.Exact(J, h, beta)), case["exact"]
    for found, key in ((fit.magnetisation, "m"), (fit.correlation, "C"), (fit.log_partition, "lnZ")):
        assert_golden(found, known[key])
    for found, key in ((fit.free_energy, "F"), (fit.energy, "U"), (fit.entropy, "S")):
        assert_golden(found, known[key])
    m = fit.magnetisation
    chi = S.susceptibility(S.Exact(J, h, beta)).squeeze()
    assert_golden(chi, known["chi"])
    torch.testing.assert_close(chi, beta * (fit.correlation - m @ m.mT), rtol=1e-12, atol=1e-13)
    naive, tap, adaptive = (S.solve(kind(J, h, beta)) for kind in (S.MeanField, S.TAP, S.AdaptiveTAP))
    assert_golden(naive.magnetisation, case["nmf"]["m"])
    assert_golden(naive.free_energy, case["nmf"]["F"])
    assert_golden(S.susceptibility(S.MeanField(J, h, beta)), case["nmf"]["chi"])
    assert_golden(tap.magnetisation, case["tap"]["m"])
    assert_golden(tap.free_energy, case["tap"]["F"])
    assert_golden(adaptive.magnetisation, case["adatap"]["m"])
    assert_golden(adaptive.multiplier, case["adatap"]["V"])
    m = adaptive.magnetisation
    assert_golden(beta * (adaptive.correlation - m @ m.mT), case["adatap"]["chi"])
    assert float(naive.free_energy) >= float(fit.free_energy)


@pytest.mark.parametrize("case", VECTOR, ids=lambda case: f"D{case['D']}-beta{case['beta']}")
def test_golden_pairs_of_vector_spins(case):
    given = vector_case(case)
    fit, known = S.solve(S.Exact(**given, nodes=48)), case["exact"]
    assert_golden(fit.log_partition, known["lnZ"])
    assert_golden(fit.magnetisation[0, :2], known["m1"])
    assert_golden(fit.magnetisation[1, :2], known["m2"])
    assert_golden(fit.correlation[0, 1], known["c12"])
    assert_golden(fit.energy, known["U"])
    naive, tap = S.solve(S.MeanField(**given)), S.solve(S.TAP(**given))
    assert_golden(naive.magnetisation[:, :2], case["nmf"]["m"])
    assert_golden(naive.free_energy, case["nmf"]["F"])
    assert_golden(tap.magnetisation[:, :2], case["tap"]["m"])
    assert_golden(tap.free_energy, case["tap"]["F"])
    adaptive, steepest = S.solve(S.AdaptiveTAP(**given)), S.solve(S.SteepestDescent(**given))
    assert_golden(adaptive.magnetisation[:, :2], case["adatap_scalar"]["m"])
    assert_golden(adaptive.multiplier, case["adatap_scalar"]["V"])
    assert_golden(steepest.multiplier, case["afem"]["tau"])
    assert_golden(steepest.log_partition, case["afem"]["lnZ"])
    assert_golden(steepest.magnetisation[:, :2], case["afem"]["m"])
    assert_golden(steepest.correlation[0, 1], case["afem"]["corr12"])


def test_golden_steepest_descent_and_its_two_identities():
    case = golden.group("afem_case")
    fit = S.solve(S.SteepestDescent(case["J"], case["h"], 0.5, 6**0.5))
    assert_golden(fit.multiplier, case["tau"])
    assert_golden(fit.log_partition, case["lnZ"])
    assert_golden(fit.magnetisation, case["m"])
    assert_golden(fit.energy, case["U"])
    assert_golden((fit.correlation - fit.magnetisation @ fit.magnetisation.mT) * 0.5 / 6, case["Vinv"])
    length = fit.magnetisation.square().sum(-1)
    assert_golden(fit.multiplier - 6 / (0.5 * (6 - length)), case["cavity_V"])
    torch.testing.assert_close(fit.correlation.diagonal(), torch.full((3,), 6.0, dtype=torch.float64))
    assert fit.steps <= 8


@pytest.mark.parametrize(("sites", "dim", "seed"), [(2, 3, 0), (4, 5, 1), (6, 12, 2)])
def test_steepest_descent_is_adaptive_tap_with_its_response(sites, dim, seed):
    J, h = random_system(sites, dim, seed)
    a, b = S.solve(S.SteepestDescent(J, h, 0.9, 1.4)), S.solve(S.AdaptiveTAP(J, h, 0.9, 1.4, form="saddle"))
    for name in ("magnetisation", "free_energy", "correlation", "energy"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-10, atol=1e-11)


def test_golden_gaussian_prior_is_linear_and_exact():
    case = golden.group("adatap_gaussian")
    fit = S.solve(S.AdaptiveTAP(case["J"], case["h"], prior="gaussian"))
    assert_golden(fit.magnetisation, case["m"])
    assert_golden(fit.multiplier, case["V"])
    m = fit.magnetisation
    assert_golden(fit.correlation - m @ m.mT, case["chi"])
    h = tensor(case["h"])[:, None].requires_grad_()
    live = S.solve(S.AdaptiveTAP(case["J"], h, prior="gaussian"))
    torch.testing.assert_close(torch.autograd.grad(live.log_partition, h)[0], live.magnetisation)


def test_golden_high_temperature_orders():
    rows = golden.group("high_T")["rows"]
    case = golden.group("vector2")["cases"][0]
    errors = []
    for row in rows:
        given = vector_case(case) | {"beta": row["beta"]}
        m = S.solve(S.Exact(**given, nodes=48)).magnetisation[:, :2]
        assert_golden(m, [row["exact_m1"], row["exact_m2"]])
        assert_golden((m - tensor(row["order1"])).abs().max(), row["err1"])
        assert_golden((m - tensor(row["order2"])).abs().max(), row["err2"])
        errors.append([float((m - tensor(row[key])).abs().max()) for key in ("order1", "order2")])
    betas = [row["beta"] for row in rows]
    order = torch.tensor(betas).argsort()
    first, second = (errors[int(order[1])][k] / errors[int(order[0])][k] for k in (0, 1))
    ratio = betas[int(order[1])] / betas[int(order[0])]
    assert first == pytest.approx(ratio**2, rel=0.15)
    assert second == pytest.approx(ratio**3, rel=0.15)


def test_steepest_descent_becomes_exact_as_one_over_dimension():
    """Fields as long as spins, so that nothing but D grows."""
    errors = []
    for dim in (16, 64, 256):
        h = torch.zeros(2, dim, dtype=torch.float64)
        h[0, :2], h[1, :2] = dim**0.5 * tensor([0.7, 0.2]), dim**0.5 * tensor([-0.3, 0.9])
        given = {"J": [[0, 0.5], [0.5, 0]], "h": h, "beta": 1.0, "radius": dim**0.5}
        exact, steepest = S.solve(S.Exact(**given, nodes=60)), S.solve(S.SteepestDescent(**given))
        errors.append(float((exact.magnetisation - steepest.magnetisation).norm(dim=-1).max()) / dim**0.5)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.02)


def test_golden_onsager_field():
    case = golden.group("onsager_field")
    theta, K = tensor(case["theta"])[None], tensor(case["K"])
    for form, key in (("exact", "exact_bessel"), ("large_d", "large_D")):
        scale = tensor(case["beta"] * case["R2"] ** 0.5)
        found = equations.onsager(SiteLaw(5, form), scale, theta, K.trace()[None], theta @ K)
        assert_golden(found[0], case[key])


def test_golden_hopfield():
    case = golden.group("hopfield")
    X = tensor(case["X"])
    for row in case["rows"]:
        start = row["trace"][0]["xi"]
        energies = []
        for n, point in enumerate(row["trace"]):
            fit = S.solve(S.Hopfield(X, [start], row["beta"], steps=n))
            assert_golden(fit.magnetisation[0], point["xi"])
            assert_golden(fit.energy, point["E"])
            energies.append(float(fit.energy))
        assert all(b <= a + 1e-15 for a, b in itertools.pairwise(energies))
        end = S.solve(S.Hopfield(X, [start], row["beta"], steps=None))
        assert_golden(end.magnetisation[0], row["fixed"])
        assert_golden(end.energy, row["E_fixed"])


def test_one_unit_gradient_step_of_the_corrected_energy_is_the_update():
    X = tensor(golden.group("hopfield")["X"])
    q = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    beta = 3**-0.5
    force = torch.autograd.grad(hopfield.energy(X, q, beta).sum(), q)[0]
    torch.testing.assert_close(q - force, hopfield.step(X, q, beta))
    printed = torch.autograd.grad(hopfield.article_energy(X, q, beta).sum(), q)[0]
    torch.testing.assert_close(q - printed, beta * hopfield.step(X, q, beta))
    assert bool((hopfield.energy(X, q, beta) >= 0).all())
    two_layers = hopfield.krotov_energy(X, q, q @ X.mT, beta)
    torch.testing.assert_close((hopfield.energy(X, q, beta) - two_layers).diff(), torch.zeros(3, dtype=torch.float64))


def test_retrieval_is_single_for_cold_and_global_for_hot_memories():
    X = 3 * torch.eye(5, dtype=torch.float64)
    near = X[2:3] + 0.3
    cold = S.solve(S.Hopfield(X, near, 5.0, steps=None)).magnetisation
    torch.testing.assert_close(cold, X[2:3], atol=1e-6, rtol=0)
    hot = S.solve(S.Hopfield(X, near, 0.01, steps=None)).magnetisation
    torch.testing.assert_close(hot, X.mean(0, keepdim=True), atol=0.02, rtol=0)
    torch.testing.assert_close(hopfield.separation(X), torch.full((5,), 9.0, dtype=torch.float64))


@pytest.mark.parametrize(("sites", "dim"), [(5, 1), (2, 2), (3, 3), (2, 7)])
def test_sampling_agrees_with_exact_values(sites, dim):
    J, h = random_system(sites, dim, 9)
    exact = S.solve(S.Exact(J, h, 0.8, 1.3, nodes=20))
    fit = S.solve(S.MonteCarlo(J, h, 0.8, 1.3, chains=100, sweeps=120, generator=torch.Generator().manual_seed(0)))
    off = (fit.magnetisation - exact.magnetisation) / fit.error
    assert float(off.abs().max()) < 4.5
    assert float(fit.energy) == pytest.approx(float(exact.energy), abs=0.05)
    assert fit.status is S.Status.SAMPLED


def test_quadrature_in_the_plane_of_two_fields_is_that_of_the_whole_sphere():
    """D = 3 by both routes, by letting the plane's rule run where the sphere's usually does."""
    from mechview.spins import exact

    J, h = random_system(2, 3, 4)
    checked = mv.spins.system.system(J, h, 0.9, 1.2)
    points, weights = exact._plane(checked, 40)
    squared = h[1].square().sum() + 2 * J[0, 1] * points[1] + (J[0, 1] * 1.2) ** 2
    other = torch.logsumexp(weights + 0.9 * points[0] + checked.law.log_partition((0.9 * 1.2) ** 2 * squared), 0)
    torch.testing.assert_close(other, exact.log_partition(checked, 40), rtol=1e-12, atol=1e-13)
