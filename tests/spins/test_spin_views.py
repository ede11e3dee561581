"""Frames and figures of solved systems: values against what the solver returned, surfaces against exact sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_solvers import random_system

import mechview as mv
from mechview.errors import UsageError
from mechview.tables import check_schema

S = mv.spins


def test_a_fit_as_a_frame_holds_every_number():
    J, h = random_system(3, 2, 0)
    fit = S.solve(S.MeanField(J, h, 0.7))
    frame = check_schema(fit.frame(), "spin_fits")
    m = frame[frame["quantity"] == "magnetisation"]
    np.testing.assert_array_equal(m["value"].to_numpy().reshape(3, 2), fit.magnetisation.numpy())
    assert float(frame.loc[frame["quantity"] == "free_energy", "value"].item()) == float(fit.free_energy)
    assert set(frame["status"]) == {S.Status.CONVERGED.value}
    assert (frame["beta"] == 0.7).all()
    assert "equations hold" in fit.figure().layout.title.text
    batch = S.solve(S.SteepestDescent(torch.stack([J, 2 * J]), h, 0.7)).frame()
    assert set(batch["system"]) == {0, 1}


def test_sampled_means_carry_their_errors():
    J, h = random_system(2, 2, 0)
    fit = S.solve(S.MonteCarlo(J, h, chains=8, sweeps=20, generator=torch.Generator().manual_seed(0)))
    frame = fit.frame()
    rows = frame[frame["quantity"] == "magnetisation"]
    np.testing.assert_array_equal(rows["error"].to_numpy(), fit.error.flatten().numpy())
    assert frame[frame["quantity"] == "energy"]["error"].isna().all()


def test_a_sweep_orders_as_it_cools_and_shows_what_did_not_converge():
    J = torch.ones(4, 4, dtype=torch.float64).fill_diagonal_(0)
    sweep = S.beta_sweep(S.MeanField(J, torch.zeros(4, 1, dtype=torch.float64)), [0.2, 0.3, 0.8])
    assert [fit.status for fit in sweep.fits][-1] is S.Status.UNSTABLE
    frame = check_schema(sweep.frame(), "spin_fits")
    assert sorted(set(frame["beta"])) == [0.2, 0.3, 0.8]
    assert sweep.figure().data[0].marker.symbol == ("circle", "circle", "circle-open")
    with pytest.raises(UsageError, match="at least one beta"):
        S.beta_sweep(S.MeanField(J, torch.zeros(4, 1)), [])


def test_the_exact_surface_has_the_exact_minimum_and_lies_below_naive():
    J, h, beta = 0.5, (0.3, -0.2), 1.0
    found = S.landscape(J, h, beta, points=81)
    exact = S.solve(S.Exact([[0, J], [J, 0]], list(h), beta))
    at = np.unravel_index(int(found.exact.argmin()), found.exact.shape)
    assert [float(found.axis[n]) for n in at] == pytest.approx(exact.magnetisation.flatten().tolist(), abs=0.02)
    assert float(found.exact.min()) == pytest.approx(float(exact.free_energy), abs=3e-4)
    assert bool((found.naive >= found.exact - 1e-12).all())
    assert float((found.tap - found.exact).abs().mean()) < float((found.naive - found.exact).abs().mean())
    naive = S.solve(S.MeanField([[0, J], [J, 0]], list(h), beta))
    assert float(found.naive.min()) == pytest.approx(float(naive.free_energy), abs=3e-4)
    check_schema(found.frame(), "spin_landscape")
    assert len(found.figure().data) == 3


def test_a_retrieval_map_follows_the_updates():
    X = torch.eye(4, dtype=torch.float64) * 2
    found = S.retrieval_map(X, X[:2] + 0.2, beta=2.0, steps=3)
    assert bool((found.energies.diff(dim=0) <= 1e-14).all())
    assert found.weights[-1].argmax(-1).tolist() == [0, 1]
    frame = check_schema(found.frame(), "retrieval")
    assert frame.groupby(["step", "query"])["weight"].sum().to_numpy() == pytest.approx(1.0)
    np.testing.assert_allclose(np.array(found.figure().data[0].z), found.weights[-1].numpy())
    with pytest.raises(UsageError, match="retrieval map takes"):
        S.retrieval_map(X, X[:, :2])
