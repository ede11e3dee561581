"""Planted recovery: what a rung of the ladder made is found with its parameters, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import families
import mechview as mv
from conftest import family
from mechview.models.intervene import recorded
from mechview.spins.layers import controls as c
from mechview.spins.layers import ladder, ladder_mlp, reaction, structure
from mechview.spins.layers.moments import fit, moments, own_moments
from mechview.spins.layers.site import layer_of, site_of
from mechview.spins.layers.verdicts import Verdict
from mechview.spins.layers.work import seeded

D, HEADS, D_HEAD, VOCAB = 16, 2, 8, 40


@pytest.fixture(scope="module")
def sites():
    model, _ = family("llama")
    layer = layer_of(model.weights, 1, torch.float64)
    return [site_of(recorded(model, families.tokens(20, seed)), layer) for seed in range(8)]


def predictors(site):
    """Predictors of every rung, and of layers' whole writes."""
    rungs = [*ladder.real_designs(site), *ladder_mlp.mlp_designs(site, [])]
    return {d.quantity: d.predictors for d in rungs if d.control == c.REAL and d.head is None}


ALL = [*ladder.RUNGS, *ladder_mlp.RUNGS]


def added(each):
    total = each[0]
    for one in each[1:]:
        total = total + one
    return total


def r2(found, test) -> float:
    error, own = found.errors(test)
    return float((1 - error / own)[0])


@pytest.mark.parametrize("rung", ALL)
def test_every_rung_recovers_the_weights_that_made_its_target(sites, rung):
    fields = [predictors(site)[rung] for site in sites]
    weights = torch.linspace(-1.0, 2.0, fields[0].shape[1], dtype=torch.float64)
    generator = seeded(5)

    def planted(field, noise):
        made = torch.einsum("tkd,k->td", field, weights) + 0.7  # a mean vector of its own
        extra = noise * torch.randn(made.shape, generator=generator, dtype=torch.float64) * made.std()
        return moments(field, (made + extra)[:, None])[0]

    total = added([planted(field, 0.0) for field in fields[:5]])
    found = fit(total)
    assert r2(found, planted(fields[6], 0.0)) == pytest.approx(1.0, abs=1e-8)
    inner = total.centred(found.mean)[0, :-1, :-1]
    made = inner @ weights
    torch.testing.assert_close(inner @ found.weights[0], made, rtol=1e-6, atol=1e-6 * float(made.abs().max()))
    if torch.linalg.cond(inner) < 1e8:
        torch.testing.assert_close(found.weights[0], weights, rtol=1e-5, atol=1e-5)
    noisy = fit(added([planted(field, 1.0) for field in fields[:6]]))
    assert r2(noisy, planted(fields[6], 1.0)) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("rung", ALL)
def test_no_rung_explains_a_target_that_it_did_not_make(sites, rung):
    generator = seeded(6)
    sums = []
    for site in sites:
        field = predictors(site)[rung]
        noise = torch.randn(len(field), 1, field.shape[-1], generator=generator, dtype=torch.float64)
        sums.append(moments(field, noise)[0])
    assert r2(fit(added(sums[:6])), sums[7]) < 0.03


def test_targets_that_share_predictors_are_fitted_one_by_one(sites):
    field = predictors(sites[0])[ladder.H3]
    targets = torch.randn(len(field), 3, field.shape[-1], generator=seeded(7), dtype=torch.float64)
    together = moments(field, targets)
    for n in range(3):
        for ours, alone in zip(together, moments(field, targets[:, n : n + 1]), strict=True):
            torch.testing.assert_close(fit(ours).weights[n], fit(alone).weights[0])
            torch.testing.assert_close(ours.gram[n], alone.gram[0])


def arrays(seed: int = 0, **layer):
    """A model of one layer with random keys and queries; matrices of its layer replaced by those given."""
    generator = seeded(seed)

    def draw(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads = {name: draw(HEADS, D, D_HEAD, scale=0.52) for name in ("W_Q", "W_K", "W_V")}
    mlp = {"W_in": draw(D, 2 * D, scale=0.5), "W_out": draw(2 * D, D, scale=0.4)}
    given = heads | {"W_O": draw(HEADS, D_HEAD, D, scale=0.6)} | mlp | layer
    return mv.from_arrays(W_E=draw(VOCAB, D), layers=[given], norm="rms", position="none")


def basis(seed: int = 1):
    return torch.linalg.qr(torch.randn(HEADS, D, D_HEAD, generator=seeded(seed), dtype=torch.float64))[0]


def documents(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB, (240,), generator=generator).tolist() for _ in range(4)]


def fitted(model):
    return mv.fit_spins(model, documents(), length=24, train=8, test=5, whole=False, draws=8)


@pytest.fixture(scope="module")
def spins():
    """Heads that send back what they read, `W_V = Q`, `W_O = w Q^T`; an MLP `u = xh M`, M symmetric, negative."""
    Q = basis()
    weights = torch.tensor([1.5, -0.8], dtype=torch.float64)[:, None, None]
    half = torch.randn(D, D, generator=seeded(3), dtype=torch.float64)
    M = -(half @ half.mT) / D
    eye = torch.eye(D, dtype=torch.float64)
    mlp = {"W_in": torch.cat([eye, -eye], 1), "W_out": torch.cat([M, -M])}  # relu(x) - relu(-x) = x
    return fitted(arrays(W_V=Q, W_O=weights * Q.mT, **mlp)), M


@pytest.fixture(scope="module")
def random():
    return fitted(arrays(seed=9))


@pytest.mark.slow
def test_head_spins_are_found_with_their_weights_and_called_informative(spins):
    found, _ = spins
    row = found.row(ladder.READ, 0)
    assert row.value == pytest.approx(1.0, abs=1e-9)
    assert row.verdict == Verdict.informative
    assert found.weights[0][f"{ladder.READ}|raw"] == pytest.approx([0.0, 1.5, -0.8], abs=1e-6)
    for head, weight in enumerate((1.5, -0.8)):
        one = found.row(ladder.READ, 0, head)
        assert one.verdict == Verdict.informative
        assert found.weights[0][f"{ladder.READ}|raw|{head}"] == pytest.approx([weight], abs=1e-6)
        assert found.row(structure.COPYING, 0, head).value == pytest.approx(weight / abs(weight))
        assert found.row(structure.ISOTROPY, 0, head).value == pytest.approx(1.0)
    assert found.row(ladder.SYM, 0).value == pytest.approx(1.0, abs=1e-9)
    assert found.row(ladder.SYM, 0).verdict == Verdict.informative
    assert found.row(ladder.ANTI, 0).verdict != Verdict.informative


@pytest.mark.slow
def test_a_symmetric_negative_reaction_is_found_and_called_informative(spins):
    found, M = spins
    assert found.row(reaction.REACTION["symmetric"], 0).value == pytest.approx(1.0, abs=1e-4)
    assert found.row(reaction.SHARE, 0).value == pytest.approx(1.0, abs=1e-4)
    assert found.row(reaction.NEGATIVE, 0).value == pytest.approx(1.0, abs=1e-4)
    assert found.row(reaction.SHARE, 0).verdict == Verdict.informative
    assert found.row(reaction.NEGATIVE, 0).verdict == Verdict.informative
    spectrum = torch.tensor(found.spectra[0]["raw"], dtype=torch.float64)
    torch.testing.assert_close(spectrum, torch.linalg.eigvalsh(M), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_random_heads_and_a_random_mlp_are_not_called_spins(random):
    for quantity in (
        ladder.H1,
        ladder.H3,
        ladder.READ,
        ladder.WRITE,
        ladder.H5,
        ladder.H7,
        ladder_mlp.M1,
        ladder_mlp.M2,
    ):
        assert random.row(quantity, 0).verdict != Verdict.informative, quantity
    for quantity in (reaction.SHARE, reaction.NEGATIVE, structure.OV, structure.QK, "curl index"):
        assert random.row(quantity, 0).verdict != Verdict.informative, quantity


@pytest.mark.slow
def test_an_energy_gradient_is_found(random):
    """`W_V = W_K`, `W_O = w W_Q^T` without norms: the write is the gradient of the head's own energy."""
    plain = arrays(seed=4)
    w = plain.weights.attention(0)
    made = {"W_V": w.W_K, "W_O": 0.9 * w.W_Q.mT}
    model = mv.from_arrays(
        W_E=0.7 * plain.weights.ends().W_E, layers=[{"W_Q": w.W_Q, "W_K": w.W_K, **made}], norm="none"
    )
    found = fitted(model)
    row = found.row(ladder.H5, 0)
    assert row.value == pytest.approx(1.0, abs=1e-9)
    assert row.verdict == Verdict.informative
    assert found.weights[0][f"{ladder.H5}|raw"] == pytest.approx([0.9 * D_HEAD**0.5] * HEADS, abs=1e-6)
    assert found.row(structure.ALIGNMENT, 0, 0).value == pytest.approx(1.0)
    assert random.row(ladder.H5, 0).value < 0.5


@pytest.mark.slow
def test_a_scalar_onsager_term_is_found():
    eye = torch.eye(D, dtype=torch.float64)
    model = arrays(seed=7, W_in=torch.cat([eye, -eye], 1), W_out=torch.cat([-0.4 * eye, 0.4 * eye]))
    found = fitted(model)
    assert found.row(ladder_mlp.M1, 0).value == pytest.approx(1.0, abs=1e-9)
    assert found.row(ladder_mlp.M1, 0).verdict == Verdict.informative
    assert found.weights[0][f"{ladder_mlp.M1}|raw"] == pytest.approx([-0.4], abs=1e-9)


@pytest.mark.slow
def test_scalar_couplings_in_the_whole_space_are_found():
    """Heads as wide as the stream with OV a multiple of the identity: H3 exactly."""
    eye = torch.eye(D, dtype=torch.float64)
    generator = seeded(8)
    QK = {name: 0.35 * torch.randn(2, D, D, generator=generator, dtype=torch.float64) for name in ("W_Q", "W_K")}
    OV = {"W_V": eye.expand(2, D, D), "W_O": torch.stack([0.7 * eye, 1.2 * eye])}
    W_E = torch.randn(VOCAB, D, generator=generator, dtype=torch.float64)
    found = fitted(mv.from_arrays(W_E=W_E, layers=[QK | OV], norm="rms"))
    row = found.row(ladder.H3, 0)
    assert row.value == pytest.approx(1.0, abs=1e-9)
    assert row.verdict == Verdict.informative
    assert found.weights[0][f"{ladder.H3}|raw"] == pytest.approx([0.0, 0.7, 1.2], abs=1e-6)


def test_the_planted_target_needs_its_own_sites(sites):
    """A site whose write was replaced is fitted with the new one, not with what the model wrote."""
    site = replace(sites[0], attention_write=2.0 * sites[0].field)
    [one] = [d for d in ladder.real_designs(site) if d.quantity == ladder.H1]
    assert fit(moments(one.predictors, one.targets)[0]).weights[0].tolist() == pytest.approx([2.0])


def test_heads_fitted_together_are_each_fitted_by_itself():
    """One predictor and one target a head, both metrics: sums, weights and errors."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(30, 4, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    for together, metric in zip(own_moments(x, y + 2 * x), (0, 1), strict=True):
        for head in range(4):
            alone = moments(x[:, head : head + 1], (y + 2 * x)[:, head : head + 1])[metric]
            torch.testing.assert_close(together.gram[head], alone.gram[0])
            torch.testing.assert_close(together.total[head], alone.total[0])
            assert together.count == alone.count
            torch.testing.assert_close(fit(together).weights[head], fit(alone).weights[0])
