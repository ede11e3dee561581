"""Estimators of the spin correspondence against the golden numbers of its specification, and closed forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mechview.spins.layers.balance import curl_index, curl_of
from mechview.spins.layers.linear import basis, solve, sums
from mechview.spins.layers.maxwell import hutchinson
from mechview.spins.layers.moments import fit, moments
from mechview.spins.layers.structure import symmetric_fraction
from mechview.spins.layers.thermo import isothermal, keys_for, row_thermo

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "golden.json").read_text(encoding="utf-8"))


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def assert_golden(ours, expected):
    torch.testing.assert_close(torch.as_tensor(ours, dtype=torch.float64), tensor(expected), rtol=1e-9, atol=1e-12)


def test_scalar_coupling_fit():
    g = GOLDEN["scalar_coupling_fit"]
    x, A, R = (tensor(g[name]) for name in ("x", "A", "R"))
    P = A @ x @ R @ R.mT

    def fitted(y):
        total = moments(torch.stack([P, x], dim=1), y[:, None])[0]
        found = fit(total)
        error, own = found.errors(total)
        return found.weights[0], float((1 - error / own)[0])

    weights, r2 = fitted(tensor(g["y"]))
    assert_golden(weights, g["theta"])
    assert r2 == pytest.approx(1.0, abs=1e-12)
    weights, r2 = fitted(tensor(g["y"]) + tensor(g["noise"]))
    assert_golden(weights, g["theta_noisy"])
    assert_golden(r2, g["R2_noisy"])


def test_attention_row_thermo():
    g = GOLDEN["attention_row_thermo"]
    for row in g["rows"]:
        found = row_thermo(row["tau"] * tensor(g["lg"]))
        assert_golden(found.ln_z, row["lnZ"])
        assert_golden(found.energy, row["U"])
        assert_golden(found.entropy, row["S"])
        assert_golden(found.heat, row["C"])
        assert_golden(found.participation, row["participation"])


def test_masked_keys_are_no_states():
    scores = tensor([0.3, -1.0, 0.7])
    masked = torch.cat([scores, tensor([-torch.inf, -torch.inf])])
    for ours, without in zip(vars(row_thermo(masked)).values(), vars(row_thermo(scores)).values(), strict=True):
        assert_golden(ours, without.tolist())


def test_detailed_balance():
    g = GOLDEN["detailed_balance"]
    logits = tensor(g["logits"])
    assert_golden(curl_index(logits), g["index"])
    assert_golden(curl_of(logits), g["curl"])
    assert_golden(((logits - logits.mT) / 2).mean(-1), g["potential"])


def test_curl_is_zero_for_a_reversible_chain_and_blind_to_row_constants():
    generator = torch.Generator().manual_seed(0)
    S = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    u, gauge = (torch.randn(6, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    reversible = S + S.mT + u.mT
    assert float(curl_index(reversible)) < 1e-25
    assert_golden(curl_index(S + gauge), curl_index(S).tolist())
    assert float(curl_index(S)) > 0.05


def test_jacobian_symmetry():
    g = GOLDEN["jacobian_symmetry"]
    W1, W2, x = tensor(g["W1"]), tensor(g["W2"]), tensor(g["x"])[None]
    probes = torch.eye(3, dtype=torch.float64)[:, None]  # a whole basis: no longer an estimate
    for second, name in ((W1.mT, "tied"), (W2, "untied")):
        symmetric, size = hutchinson(lambda y, W=second: torch.tanh(y @ W1.mT) @ W.mT, x, probes)
        assert_golden((1 + symmetric / size)[0] / 2, g[name])


def test_random_probes_estimate_the_same_symmetry():
    generator = torch.Generator().manual_seed(1)
    M = torch.randn(20, 20, generator=generator, dtype=torch.float64)
    probes = torch.randint(0, 2, (400, 1, 20), generator=generator).double() * 2 - 1
    symmetric, size = hutchinson(lambda y: y @ M, torch.zeros(1, 20, dtype=torch.float64), probes)
    exact = float((M + M.mT).square().sum() / 4 / M.square().sum())
    assert float((1 + symmetric / size) / 2) == pytest.approx(exact, abs=0.03)


def test_symmetry_score():
    g = GOLDEN["symmetry_score"]
    M = tensor(g["M"])
    assert_golden(symmetric_fraction(M, torch.eye(3, dtype=torch.float64)), g["s"])


def test_eigenvalues_of_a_causal_pattern_are_its_diagonal():
    """The reason for which criticality by eigenvalues is refused."""
    g = GOLDEN["causal_spectrum"]
    A = tensor(g["A"])
    values = torch.linalg.eigvals(A).real.sort(descending=True).values
    torch.testing.assert_close(values, tensor(g["eigenvalues"]).sort(descending=True).values, rtol=1e-6, atol=1e-7)
    assert_golden(torch.linalg.svdvals(A), g["singular_values"])
    assert_golden(torch.linalg.matrix_power(A, 400), g["Ainf"])


@pytest.mark.parametrize(("part", "sign"), [("symmetric", 1), ("antisymmetric", -1)])
def test_symmetric_least_squares_is_the_minimum_over_such_matrices(part, sign):
    generator = torch.Generator().manual_seed(2)
    X, Y = (torch.randn(40, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    at = basis(sums(X, Y, weighted=False))
    ridge = 0.1
    M = solve(at, part, ridge).matrix
    torch.testing.assert_close(M, sign * M.mT)
    x, y = X - X.mean(0), Y - Y.mean(0)
    penalty = ridge * at.values.mean()
    free = torch.randn(5, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    best = torch.optim.LBFGS([free], lr=1, max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15)

    def loss():
        best.zero_grad()
        S = (free + sign * free.mT) / 2
        value = (y - x @ S).square().sum() + penalty * S.square().sum()
        value.backward()
        return value

    best.step(loss)
    torch.testing.assert_close(M, ((free + sign * free.mT) / 2).detach(), rtol=1e-6, atol=1e-8)


def test_isothermal_fit_finds_the_temperature_that_made_the_pattern():
    generator = torch.Generator().manual_seed(3)
    cosines = 2 * torch.rand(2, 9, 9, generator=generator, dtype=torch.float64) - 1
    visible = torch.ones(9, 9, dtype=torch.bool).tril()
    scores = tensor([3.0, 11.0])[:, None, None] * cosines
    pattern = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    beta, explained = isothermal(pattern, cosines.masked_fill(~visible, 0.0), visible)
    torch.testing.assert_close(beta, tensor([3.0, 11.0]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(explained, tensor([1.0, 1.0]), rtol=1e-8, atol=1e-8)


def test_share_of_keys_that_hold_most_of_a_row():
    pattern = tensor([[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.95, 0.04, 0.01, 0], [0.25, 0.25, 0.25, 0.25]]])
    visible = torch.ones(4, 4, dtype=torch.bool).tril()
    assert float(keys_for(pattern, visible)[0]) == pytest.approx((1 + 1 + 1 / 3 + 1) / 4)
