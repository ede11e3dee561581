"""Hostile input to spin models: one sentence, or the right answer; never a silent wrong one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mechview as mv
from mechview.errors import MechviewError, UsageError
from mechview.spins import chain, conventions

S = mv.spins
J = [[0.0, 0.2], [0.2, 0.0]]
H = [[0.1, 0.2, 0.0], [0.3, 0.4, -0.1]]
KINDS = (S.Exact, S.MonteCarlo, S.MeanField, S.TAP, S.AdaptiveTAP, S.SteepestDescent, S.KineticMeanField)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        {"J": np.array(J) * 1j}, {"h": np.array(H) * 1j}, {"J": None}, {"h": "up"}, {"h": [[1, 2], [3]]}, {"J": 1.0},
        {"J": np.zeros((0, 0)), "h": np.zeros((0, 3))}, {"h": np.zeros((2, 0))}, {"h": torch.zeros(5)},
        {"J": torch.zeros(3, 2, 2), "h": torch.zeros(4, 2, 3)}, {"beta": [1.0, 2.0, 3.0], "J": torch.zeros(2, 2, 2)},
        {"beta": float("nan")}, {"beta": 1j}, {"radius": float("inf")}, {"beta": "cold"}, {"beta": 1e300},
        {"h": [[1e200, 0.0, 0.0], [0.0, 1.0, 0.0]]}, {"J": torch.eye(2).to_sparse()},
    ],
)  # fmt: skip
def test_no_system_is_refused_in_one_sentence(kind, change):
    with pytest.raises(MechviewError) as caught:
        S.solve(kind(**({"J": J, "h": H} | change)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not S.MonteCarlo])
def test_lists_integers_half_precision_and_tiny_beta_are_read_for_what_they_are(kind):
    plain = S.solve(kind(torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double(), torch.ones(2, 1).double(), 0.5)).magnetisation
    for given in (([[0, 1], [1, 0]], [1, 1]), (np.array([[0, 1], [1, 0]]), torch.ones(2, 1, dtype=torch.int64))):
        torch.testing.assert_close(S.solve(kind(*given, 0.5)).magnetisation, plain)
    half = S.solve(kind(torch.tensor([[0.0, 1.0], [1.0, 0.0]]).half(), torch.ones(2, 1).half(), 0.5)).magnetisation
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), plain, rtol=1e-4, atol=1e-5)
    hot = S.solve(kind(J, H, 1e-30)).magnetisation
    rounding = 1e-14 if kind is S.Exact else 1e-45  # sums over directions round at the length of a spin
    torch.testing.assert_close(hot, 1e-30 / 3 * torch.tensor(H, dtype=torch.float64), rtol=1e-9, atol=rounding)
    warm = S.solve(kind(J, H, 1e-5)).magnetisation
    torch.testing.assert_close(warm, 1e-5 / 3 * torch.tensor(H, dtype=torch.float64), rtol=1e-3, atol=1e-9)
    zero = S.solve(kind(J, np.zeros((2, 3)))).magnetisation
    assert float(zero.abs().max()) < 1e-12


@pytest.mark.parametrize(
    "ask",
    [
        lambda: S.response(1j * torch.ones(3)), lambda: S.response(torch.tensor(1.0)), lambda: S.response("up"),
        lambda: S.response(torch.ones(4, 3), beta=torch.ones(3)), lambda: S.divergence(torch.ones(3), torch.ones(4)),
        lambda: S.entropy([2.0, 0.0]), lambda: S.solve(S.Exact(J, H, nodes=0)), lambda: S.solve(S.Exact(J, H, nodes=3.5)),
        lambda: S.solve(S.Exact(J, H, 3000.0)), lambda: S.solve(S.MonteCarlo(J, H, chains=1)),
        lambda: S.solve(S.MeanField(J, H, start=[[np.nan] * 3] * 2)), lambda: S.solve(S.TAP(J, H, start=[[1.0, 0, 0]] * 2)),
        lambda: S.solve(S.KineticMeanField(J, H, steps=1.5)), lambda: S.solve(S.KineticMeanField(J, H, steps=-1)),
        lambda: S.solve(S.KineticMeanField(J, H, start=torch.zeros(3, 3))), lambda: S.solve(S.MeanField(J, H), tol="low"),
        lambda: S.solve(S.MeanField(J, H), max_steps=2.5), lambda: S.solve(S.AdaptiveTAP(J, H, 1, 2, prior="gaussian")),
        lambda: S.solve(S.Hopfield(H, H, steps=0.5)), lambda: S.solve(S.Hopfield(H, [[np.nan] * 3])),
        lambda: S.susceptibility(S.MonteCarlo(J, H)), lambda: S.susceptibility(3),
        lambda: S.susceptibility(S.MeanField(np.zeros((4, 2, 2)), H)), lambda: S.beta_sweep("model", [1.0]),
        lambda: S.landscape(float("nan")), lambda: S.landscape(1.0, points=2.5), lambda: S.retrieval_map(H, H, steps=-1),
        lambda: S.entropy_production(J, np.zeros((3, 3))), lambda: S.from_article([1.0, 2.0], H),
        lambda: chain.one_step_means(J, [0.1, 0.2], [0.1, 0.2, 0.3]), lambda: chain.sign_chain(J, H),
        lambda: S.SpinBlock(0), lambda: S.SpinBlock(2.5), lambda: S.SpinBlock(4)(torch.ones(2, 3)),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_refused_in_one_sentence(ask):
    with pytest.raises(MechviewError) as caught:
        ask()
    assert "\n" not in str(caught.value)


def test_responses_read_integers_lists_and_extremes():
    expected = S.response(torch.tensor([1.0, 2.0], dtype=torch.float64), 0.5)
    torch.testing.assert_close(S.response([1, 2], 0.5), expected)
    torch.testing.assert_close(S.response(torch.tensor([1, 2]), 0.5), expected)
    assert S.response(torch.ones(2).half()).dtype == torch.float32
    assert bool(S.response([1e200, 0.0]).isnan().any())
    torch.testing.assert_close(S.zero_temperature([3e200, 4e200], 1.0), torch.tensor([0.6, 0.8], dtype=torch.float64))
    assert torch.equal(S.zero_temperature(torch.zeros(3)), torch.zeros(3))


def test_gradients_reach_only_what_asks_for_them():
    live = torch.tensor(J, requires_grad=True)
    fit = S.solve(S.TAP(live, torch.tensor(H, dtype=torch.float64)))
    assert fit.magnetisation.dtype == torch.float64
    assert torch.autograd.grad(fit.free_energy, live)[0].dtype == torch.float32
    with torch.no_grad():
        assert not S.solve(S.TAP(live, H)).magnetisation.requires_grad


def test_duplicate_spins_have_equal_means():
    coupled = 0.3 * (1 - torch.eye(4, dtype=torch.float64))
    h = torch.tensor([H[0]] * 4, dtype=torch.float64)
    for kind in (S.MeanField, S.TAP, S.AdaptiveTAP, S.SteepestDescent):
        m = S.solve(kind(coupled, h)).magnetisation
        torch.testing.assert_close(m, m[:1].expand(4, 3), rtol=1e-10, atol=1e-12)


def test_dictionaries_read_lists_in_double_precision():
    made = S.from_article([[0.1, 0.2], [0.3, 0.4]], [[0.1], [0.2]])
    assert made.J.dtype == torch.float64
    assert float(made.energy_shift) == pytest.approx(-0.5, rel=1e-15)
    assert conventions.to_article(J).dtype == torch.float64
    with pytest.raises(UsageError, match="J has 1 values"):
        S.from_neq([[np.nan]], np.zeros((1, 4)))
