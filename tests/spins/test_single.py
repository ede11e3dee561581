"""One spin: golden rows, an independent integral, limits, symmetries, derivatives by finite differences."""

from __future__ import annotations

import golden_numbers as golden
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import torch
from golden_numbers import assert_golden, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

import mechview as mv
from mechview.errors import UsageError
from mechview.spins import bessel
from mechview.spins.single import SiteLaw

spins = mv.spins
ROWS = golden.group("single_spin")["rows"]
DIMS = (1, 2, 3, 4, 16, 64, 576)


def field(length: float, dim: int):
    h = torch.randn(dim, generator=torch.Generator().manual_seed(dim), dtype=torch.float64)
    return length * h / h.norm()


def test_golden_rows_of_a_single_spin():
    assert len(ROWS) == 27
    for row in ROWS:
        k, dim = row["kappa"], row["D"]
        h = field(k, dim)
        assert_golden(spins.amplitude(k, dim), row["A"])
        assert_golden(spins.response(h).norm(), row["A"])
        assert_golden(spins.log_partition(h), row["lnZ1"])
        across, along = spins.variances(h)
        assert_golden(across, row["tangential_var_R1"])
        assert_golden(along, row["radial_var_R1"])
        for key in (key for key in row if key.startswith("A_")):
            form = "saddle" if key.endswith("D/2") else "large_d"
            assert_golden(spins.amplitude(k, dim, form), row[key])


def test_numbers_of_the_specification():
    known = {(1, 1): 0.761594155955765, (2, 1): 0.446389965896535, (3, 1): 0.313035285499331, (3, 5): 0.800090803982019}
    known |= {(8, 5): 0.494449764063645, (64, 50): 0.549394488879839, (576, 500): 0.578276956820635}
    for (dim, k), value in known.items():
        assert float(spins.amplitude(k, dim)) == pytest.approx(value, rel=1e-14)
    assert float(spins.amplitude(500, 576, "large_d")) == pytest.approx(0.579029054274002, rel=1e-13)
    assert float(spins.amplitude(500, 576, "saddle")) == pytest.approx(0.578025996240986, rel=1e-13)
    assert float(spins.log_partition(field(5, 3))) == pytest.approx(2.69736950604558, rel=1e-13)
    assert float(spins.log_partition(field(500, 576))) == pytest.approx(171.96074538398, rel=1e-13)


@pytest.mark.parametrize("dim", [2, 3, 5, 20])
@pytest.mark.parametrize("k", [0.3, 4.0, 60.0])
def test_log_partition_is_the_integral_over_the_sphere(dim, k):
    def weight(angle):
        return np.sin(angle) ** (dim - 2)

    mean = scipy.integrate.quad(lambda a: np.exp(k * (np.cos(a) - 1)) * weight(a), 0, np.pi, epsabs=0, epsrel=1e-12)[0]
    norm = scipy.integrate.quad(weight, 0, np.pi, epsabs=0, epsrel=1e-12)[0]
    assert float(spins.log_partition(field(k, dim))) == pytest.approx(np.log(mean / norm) + k, rel=1e-10)


@pytest.mark.parametrize("dim", DIMS)
def test_recurrence_and_expansion_meet_where_they_hand_over(dim):
    edge = 50 + (dim / 2) ** 2
    for function in (bessel.ratio, bessel.slope, bessel.log_partition):
        below, at, above = function(tensor([edge * (1 - 1e-9), edge, edge * (1 + 1e-9)]) ** 2, dim)
        assert float((below + above) / 2 / at) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("dim", [3, 8, 32])
def test_values_are_scipys_where_scipy_has_them(dim):
    k = np.geomspace(0.01, 600, 40)
    expected = scipy.special.ive(dim / 2, k) / scipy.special.ive(dim / 2 - 1, k)
    np.testing.assert_allclose(spins.amplitude(torch.tensor(k), dim).numpy(), expected, rtol=2e-13)


@pytest.mark.parametrize("dim", DIMS)
def test_small_and_huge_fields(dim):
    assert float(spins.amplitude(1e-8, dim)) == pytest.approx(1e-8 / dim, rel=1e-14)
    assert float(spins.log_partition(field(1e-6, dim))) == pytest.approx(1e-12 / (2 * dim), rel=1e-10)
    assert torch.equal(spins.response(torch.zeros(dim)), torch.zeros(dim))
    huge = spins.response(field(1e12, dim), radius=2.0)
    torch.testing.assert_close(huge, 2 * field(1.0, dim))
    assert bool((spins.variances(field(1e10, dim))[1] >= 0).all())
    assert torch.isnan(spins.response(torch.full((dim,), float("nan")))).all()


@pytest.mark.parametrize("form", spins.FORMS)
@pytest.mark.parametrize("dim", [3, 7, 40])
def test_derivatives_are_those_of_finite_differences(form, dim):
    law, s, step = SiteLaw(dim, form), tensor([0.0, 0.3, 5.0, 90.0, 4000.0]) + 1e-3, 1e-4
    for function, derivative in (
        (law.log_partition, lambda s: law.ratio(s) / 2),
        (law.ratio, law.slope),
        (law.slope, law.curvature),
    ):
        numeric = (function(s + step) - function(s - step)) / (2 * step)
        torch.testing.assert_close(derivative(s), numeric, rtol=2e-6, atol=1e-13)


@pytest.mark.parametrize("form", spins.FORMS)
def test_covariance_is_the_jacobian_of_the_response(form):
    beta, radius = 0.7, 1.6
    for h in (field(2.3, 5), torch.zeros(5, dtype=torch.float64)):
        jacobian = torch.autograd.functional.jacobian(lambda h: spins.response(h, beta, radius, form), h)
        sigma = spins.covariance(h, beta, radius, form)
        torch.testing.assert_close(jacobian, beta * sigma, rtol=1e-12, atol=1e-15)
        across, along = spins.variances(h, beta, radius, form)
        expected = torch.stack([along, *[across] * 4]).sort().values
        torch.testing.assert_close(torch.linalg.eigvalsh(sigma), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dim", [1, 3])
def test_gradients_and_their_gradients(dim):
    h = (1.3 * field(1.0, dim)).requires_grad_()
    beta, radius = tensor(0.8).requires_grad_(), tensor(1.4).requires_grad_()
    functions = (spins.response, spins.log_partition, spins.covariance)
    for function in functions:
        assert torch.autograd.gradcheck(function, (h, beta, radius), fast_mode=True)
        assert torch.autograd.gradgradcheck(function, (h, beta, radius), fast_mode=True)
    m = (0.6 * field(1.0, dim)).requires_grad_()
    for function in (spins.inverse_response, spins.entropy):
        assert torch.autograd.gradcheck(function, (m, beta, radius), fast_mode=True)
        assert torch.autograd.gradgradcheck(function, (m, beta, radius), fast_mode=True)


def test_responses_work_under_functional_transforms():
    h = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    each = torch.func.vmap(torch.func.jacrev(spins.response))(h)
    torch.testing.assert_close(each, spins.covariance(h))


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 30),
    st.floats(1e-3, 0.999),
    st.floats(0.1, 5.0),
    st.floats(0.2, 3.0),
    st.sampled_from(("exact", "saddle")),
)
def test_the_inverse_goes_back(dim, length, beta, radius, form):
    m = radius * length * field(1.0, dim)
    theta = spins.inverse_response(m, beta, radius, form)
    torch.testing.assert_close(spins.response(theta, beta, radius, form), m, rtol=1e-11, atol=1e-13)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 12), st.floats(0.0, 20.0), st.integers(0, 10**6))
def test_rotating_the_field_rotates_the_response(dim, length, seed):
    random = torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    Q, _ = torch.linalg.qr(random)
    h = field(length, dim)
    torch.testing.assert_close(spins.response(h @ Q), spins.response(h) @ Q, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(spins.covariance(h @ Q), Q.mT @ spins.covariance(h) @ Q, rtol=1e-11, atol=1e-13)


def test_entropy_falls_from_zero_and_does_not_depend_on_beta():
    lengths = torch.linspace(0, 0.99, 12, dtype=torch.float64)
    m = lengths[:, None] * field(1.0, 4)
    found = spins.entropy(m)
    assert float(found[0]) == 0
    assert bool((found.diff() < 0).all())
    torch.testing.assert_close(spins.entropy(m, beta=3.0), found, rtol=1e-11, atol=1e-13)
    t = lengths.square()
    torch.testing.assert_close(spins.entropy(m, form="large_d"), torch.log1p(-t), rtol=1e-11, atol=1e-13)


def test_divergence_is_zero_at_home_positive_elsewhere_and_known_at_large_dimension():
    a, b = field(2.0, 16), field(2.0, 16).flip(0) * 1.7
    assert float(spins.divergence(a, a)) == 0
    assert float(spins.divergence(a, b)) > 0
    R2, beta = 7.0, 0.9
    m_a, m_b = (spins.response(x, beta, R2**0.5, "large_d") for x in (a, b))
    expected = R2 * torch.log((R2 - m_b @ m_b) / (R2 - m_a @ m_a)) + 2 * R2 * (m_b @ m_b - m_a @ m_b) / (R2 - m_b @ m_b)
    torch.testing.assert_close(spins.divergence(a, b, beta, R2**0.5, "large_d"), expected)


def test_zero_temperature_is_rmsnorm_without_a_gain():
    known = golden.group("rmsnorm_limit")
    h = tensor(known["h"])
    assert_golden(spins.zero_temperature(h), known["rmsnorm"])
    torch.testing.assert_close(spins.zero_temperature(h), torch.nn.functional.rms_norm(h, (4,), eps=0.0))
    for row in known["rows"]:
        assert_golden(spins.response(h, row["beta"], 2.0), row["phi"])
    gap = [float((spins.response(h, beta, 2.0) - spins.zero_temperature(h)).norm()) for beta in (1e2, 1e4, 1e6)]
    assert gap[0] / gap[1] == pytest.approx(100, rel=0.05)
    assert gap[1] / gap[2] == pytest.approx(100, rel=0.01)


def test_values_follow_dtype_and_sizes_broadcast():
    h = torch.randn(2, 3, 4)
    assert spins.response(h, beta=0.1).dtype == torch.float32
    betas = torch.tensor([0.5, 2.0], dtype=torch.float64)[:, None]
    several = spins.response(h.double(), betas)
    for n in range(2):
        torch.testing.assert_close(several[n], spins.response(h[n].double(), float(betas[n])))


def test_what_has_no_answer_is_refused():
    with pytest.raises(UsageError, match="infinite field"):
        spins.inverse_response(torch.tensor([1.0, 0.0]))
    with pytest.raises(UsageError, match="is not a response"):
        SiteLaw(3, "quick")
    with pytest.raises(UsageError, match="dimension 2 has no large_d"):
        SiteLaw(2, "large_d")
