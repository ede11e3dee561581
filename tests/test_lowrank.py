"""`LowRank` against float64 dense algebra, closed forms, and the invariance of a product under its factorisation.

Tolerances: float64 answers carry a few roundings of |left||right|, so 1e-12 of the largest singular value leaves a
factor 1000 for sizes and conditions here; float32 answers are rounded once from float64 (6e-8), so 3e-7 is enough.
"""

from __future__ import annotations

import math

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechview.errors import UsageError
from mechview.lowrank import LowRank, effective_ranks, frobenius_norms, stable_ranks, symmetries, traces

TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-7}
SCALARS = [frobenius_norms, stable_ranks, effective_ranks, symmetries, traces]


def factors(*batch, rows=24, rank=5, columns=24, dtype=torch.float64, seed=0, condition=1.0):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(*batch, rows, rank, generator=generator, dtype=torch.float64)
    right = torch.randn(*batch, rank, columns, generator=generator, dtype=torch.float64)
    weights = torch.logspace(0, -math.log10(condition), rank, dtype=torch.float64)
    return LowRank((left * weights).to(dtype), right.to(dtype))


def exact(low):
    return low.left.double() @ low.right.double()


def check_svd(low, tolerance):
    """Reconstruction, orthonormality, order and sign rule; singular values against the dense SVD."""
    U, S, Vh = (x.double() for x in low.svd())
    product = exact(low)
    count = min(low.left.shape[-1], *low.shape[-2:])
    reference = torch.linalg.svdvals(product)[..., :count]
    top = reference[..., :1].clamp_min(torch.finfo(torch.float64).tiny)
    identity = torch.eye(count, dtype=torch.float64)
    assert S.shape[-1] == count
    assert ((S - reference).abs() <= tolerance * top).all()
    assert ((low.singular_values() - reference).abs() <= tolerance * top).all()
    assert (((U * S[..., None, :]) @ Vh - product).abs() <= 4 * tolerance * top[..., None]).all()
    assert (U.mT @ U - identity).abs().max() <= 4 * tolerance
    assert (Vh @ Vh.mT - identity).abs().max() <= 4 * tolerance
    assert (S.diff(dim=-1) <= 0).all()
    assert (U.amax(-2) >= -(1 - 2e-5) * U.amin(-2)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6, 1e9])
@pytest.mark.parametrize("shape", [(24, 5, 24), (24, 5, 9), (7, 5, 30), (4, 9, 12), (12, 9, 4), (6, 1, 6), (1, 3, 1)])
def test_svd_is_that_of_the_dense_product(dtype, condition, shape):
    rows, rank, columns = shape
    low = factors(3, rows=rows, rank=rank, columns=columns, dtype=dtype, condition=condition)
    assert {x.dtype for x in low.svd()} == {dtype}
    check_svd(low, TOLERANCE[dtype])
    check_svd(low.mT, TOLERANCE[dtype])


@given(
    rows=st.integers(1, 9),
    rank=st.integers(1, 9),
    columns=st.integers(1, 9),
    zeros=st.integers(0, 9),
    wide=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_and_rank(rows, rank, columns, zeros, wide, seed):
    low = factors(rows=rows, rank=rank, columns=columns, seed=seed, dtype=torch.float64 if wide else torch.float32)
    left = low.left.clone()
    left[:, :zeros] = 0
    low = LowRank(left, low.right)
    check_svd(low, TOLERANCE[low.dtype])
    true_rank = min(rows, columns, max(rank - zeros, 0))
    assert -1e-6 <= low.stable_rank() <= true_rank * (1 + 1e-6)
    assert low.stable_rank() <= low.effective_rank() ** 2 * (1 + 1e-6)
    assert low.effective_rank() <= true_rank * (1 + 1e-4)
    assert low.frobenius() == pytest.approx(torch.linalg.matrix_norm(exact(low)).item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scalars_against_dense_float64(dtype):
    low = factors(dtype=dtype, condition=30.0)
    product = exact(low)
    s = torch.linalg.svdvals(product)
    share = s / s.sum()
    rel = {torch.float64: 1e-12, torch.float32: 1e-6}[dtype]
    assert low.frobenius() == pytest.approx(torch.linalg.matrix_norm(product).item(), rel=rel)
    assert low.stable_rank() == pytest.approx((s.square().sum() / s[0] ** 2).item(), rel=1e-12)
    assert low.effective_rank() == pytest.approx(torch.special.entr(share).sum().exp().item(), rel=1e-10)
    assert low.trace() == pytest.approx(product.trace().item(), rel=1e-11)
    assert low.symmetry() == pytest.approx(((product @ product).trace() / product.square().sum()).item(), abs=1e-13)
    assert {type(getattr(low, name)()) for name in ("frobenius", "stable_rank", "effective_rank", "trace")} == {float}


def test_numbers_of_float32_factors_are_float64():
    low = factors(dtype=torch.float32)
    assert all(measure(low).dtype == torch.float64 for measure in SCALARS)


@pytest.mark.parametrize("rank", [3, 6, 10])
def test_eigenvalues_are_those_of_the_dense_product(rank):
    low = factors(2, rows=6, columns=6, rank=rank)
    values = low.eigenvalues()
    moduli = torch.linalg.eigvals(exact(low)).abs().sort(descending=True).values[..., : min(rank, 6)]
    assert values.shape == (2, min(rank, 6))
    assert values.dtype == torch.complex128
    torch.testing.assert_close(values.abs(), moduli, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(values.sum(-1).real, traces(low), rtol=1e-11, atol=1e-11)


def test_a_rotation_has_a_conjugate_pair_upper_one_first():
    low = LowRank(torch.eye(2), 3 * torch.tensor([[0.6, -0.8], [0.8, 0.6]]))
    torch.testing.assert_close(low.eigenvalues(), torch.tensor([1.8 + 2.4j, 1.8 - 2.4j]))


def test_closed_form_of_a_diagonal_matrix():
    low = LowRank(torch.diag(torch.tensor([1.0, 4.0, -2.0])), torch.eye(3))
    U, S, Vh = low.svd()
    torch.testing.assert_close(S, torch.tensor([4.0, 2.0, 1.0]))
    torch.testing.assert_close(U, torch.eye(3)[:, [1, 2, 0]])
    torch.testing.assert_close(Vh, torch.tensor([[0.0, 1, 0], [0, 0, -1], [1, 0, 0]]))
    assert low.frobenius() == pytest.approx(math.sqrt(21), rel=1e-7)
    assert low.stable_rank() == pytest.approx(21 / 16)
    assert low.effective_rank() == pytest.approx(7 / (4 ** (4 / 7) * 2 ** (2 / 7)))
    assert low.trace() == 3
    assert low.symmetry() == pytest.approx(1)


def test_symmetry_of_symmetric_antisymmetric_and_nilpotent():
    a, b = torch.eye(4)[:, :1], torch.eye(4)[:, 1:2]
    assert LowRank(torch.cat([a, b], 1), torch.cat([b, a], 1).mT).symmetry() == pytest.approx(1)
    assert LowRank(torch.cat([a, b], 1), torch.cat([b, -a], 1).mT).symmetry() == pytest.approx(-1)
    assert LowRank(a, b.mT).symmetry() == pytest.approx(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_invariant_under_reparametrisation(dtype):
    low = factors(2, condition=10.0)
    mix = torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    other = LowRank((low.left @ mix).to(dtype), torch.linalg.solve(mix, low.right).to(dtype))
    # the mixed factors are themselves rounded: the condition of `mix` (about 30) multiplies one rounding
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-5}[dtype]
    for mine, theirs in zip(low.svd(), other.svd(), strict=True):
        torch.testing.assert_close(theirs.double(), mine, rtol=0, atol=tolerance * max(1.0, mine.abs().max().item()))
    for measure in SCALARS:
        torch.testing.assert_close(measure(other), measure(low), rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_invariant_under_rotation_of_the_stream(dtype):
    low = factors(dtype=dtype)
    Q = torch.linalg.qr(torch.randn(24, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q.to(
        dtype
    )
    turned = LowRank(Q @ low.left, low.right @ Q.mT)
    for measure in SCALARS:
        torch.testing.assert_close(measure(turned), measure(low), rtol=1e-5, atol=1e-5)


def test_transpose_exchanges_sides():
    low = factors(columns=9)
    assert torch.equal(low.T.dense(), low.dense().mT)
    torch.testing.assert_close(low.mT.singular_values(), low.singular_values(), rtol=1e-12, atol=0)
    assert low.mT.shape == (9, 24)


@pytest.mark.parametrize(("r1", "r2"), [(2, 5), (5, 2), (3, 3)])
def test_composition_keeps_the_smaller_rank(r1, r2):
    first, second = factors(rank=r1, columns=8), factors(rows=8, rank=r2, columns=11, seed=1)
    both = first @ second
    assert both.left.shape[-1] == min(r1, r2)
    torch.testing.assert_close(both.dense(), first.dense() @ second.dense())


def test_composition_of_half_precision_is_not_rounded_to_half():
    first, second = factors(dtype=torch.bfloat16), factors(dtype=torch.bfloat16, seed=1)
    torch.testing.assert_close((first @ second).dense(), exact(first) @ exact(second))


def test_rows_and_columns_pass_through_the_thin_side():
    low = factors(columns=9)
    rows, columns = torch.randn(3, 24, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    torch.testing.assert_close(rows @ low, rows @ low.dense())
    torch.testing.assert_close(rows[0] @ low, rows[0] @ low.dense())
    torch.testing.assert_close(low @ columns, low.dense() @ columns)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_and_returned_in_float64(dtype):
    low = factors(2, dtype=dtype, condition=10.0)
    assert {x.dtype for x in low.svd()} == {torch.float64}
    assert low.eigenvalues().dtype == torch.complex128
    check_svd(low, 1e-12)
    torch.testing.assert_close(frobenius_norms(low), torch.linalg.matrix_norm(exact(low)), rtol=1e-13, atol=0)


@pytest.mark.parametrize(("dtype", "big"), [(torch.float32, 1e30), (torch.float64, 1e200)])
def test_scales_cancel_without_overflow(dtype, big):
    low = factors(dtype=dtype)
    for scale in (big, 1 / big):
        skewed = LowRank(low.left * scale, low.right / scale)
        # scaling by a decimal rounds every entry once
        rel = 4e-7 if dtype == torch.float32 else 1e-14
        torch.testing.assert_close(skewed.singular_values(), low.singular_values(), rtol=10 * rel, atol=0)
        torch.testing.assert_close(frobenius_norms(skewed), frobenius_norms(low), rtol=10 * rel, atol=0)
        torch.testing.assert_close(symmetries(skewed), symmetries(low), rtol=0, atol=10 * rel)
        alike = LowRank(low.left * scale, low.right * scale)
        assert alike.stable_rank() == pytest.approx(low.stable_rank(), rel=1e-5)
        with pytest.raises(UsageError, match="does not fit"):
            alike.singular_values()


def test_norm_of_float32_factors_reaches_beyond_float32():
    low = factors(dtype=torch.float32)
    far = LowRank(low.left * 1e30, low.right * 1e30)
    assert far.frobenius() == pytest.approx(low.frobenius() * 1e60, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_zero_matrices_have_no_rank(dtype):
    zero = LowRank(torch.zeros(6, 2, dtype=dtype), torch.zeros(2, 6, dtype=dtype))
    assert [zero.frobenius(), zero.stable_rank(), zero.effective_rank(), zero.symmetry(), zero.trace()] == [0.0] * 5
    assert (zero.eigenvalues() == 0).all()
    check_svd(zero, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_that_cancel_exactly_give_zero(dtype):
    low = factors(rank=6, dtype=dtype)
    left, right = low.left.clone(), low.right.clone()
    left[:, :3] = 0
    right[3:] = 0
    mix = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).Q
    assert LowRank(left, right).frobenius() == 0.0
    hidden = LowRank((left.double() @ mix).to(dtype), (mix.mT @ right.double()).to(dtype))
    product = exact(hidden)
    scale = (hidden.left.double().norm() * hidden.right.double().norm()).item()
    assert hidden.frobenius() == pytest.approx(torch.linalg.matrix_norm(product).item(), rel=1e-6, abs=4e-15 * scale)


def test_near_cancellation_keeps_its_digits():
    low = factors(rank=4, dtype=torch.float32)
    left = torch.cat([low.left, low.left], 1)
    right = torch.cat([low.right, -low.right + 1e-5], 0)
    near = LowRank(left, right)
    reference = torch.linalg.matrix_norm(exact(near)).item()
    assert near.frobenius() == pytest.approx(reference, rel=1e-9)
    assert near.singular_values()[0].item() == pytest.approx(torch.linalg.svdvals(exact(near))[0].item(), rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("side", ["left", "right"])
def test_nan_and_inf_are_refused_in_one_sentence(bad, dtype, side):
    low = factors(3, dtype=dtype)
    getattr(low, side)[1, 2, 3] = bad
    for ask in (LowRank.svd, LowRank.singular_values, LowRank.eigenvalues, *SCALARS):
        with pytest.raises(UsageError, match="NaN or Inf"):
            ask(low)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_equals_loop_with_healthy_and_broken_heads_mixed(dtype):
    healthy, deficient = factors(3, dtype=dtype), factors(3, dtype=dtype, condition=1e12, seed=1)
    low = LowRank(torch.stack([healthy.left, deficient.left]), torch.stack([healthy.right, deficient.right]))
    for i in range(2):
        for j in range(3):
            one = LowRank(low.left[i, j], low.right[i, j])
            for whole, single in zip(low.svd(), one.svd(), strict=True):
                torch.testing.assert_close(whole[i, j][..., :3], single[..., :3], rtol=0, atol=1e-5)
            for measure in SCALARS:
                torch.testing.assert_close(measure(low)[i, j], measure(one), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(low.eigenvalues()[i, j], one.eigenvalues(), rtol=1e-5, atol=1e-5)


def test_same_input_same_bits_and_inputs_untouched():
    low = factors(4, dtype=torch.float32)
    before = low.left.clone(), low.right.clone()
    assert all(torch.equal(a, b) for a, b in zip(low.svd(), low.svd(), strict=True))
    assert torch.equal(before[0], low.left)
    assert torch.equal(before[1], low.right)


def test_factors_that_require_gradients_are_read():
    low = factors(dtype=torch.float32)
    low = LowRank(low.left.requires_grad_(), low.right.requires_grad_())
    check_svd(LowRank(low.left.detach(), low.right.detach()), 3e-7)
    assert not low.svd()[1].requires_grad
    assert low.dense().requires_grad


@pytest.mark.parametrize(
    ("left", "right", "sentence"),
    [
        (torch.ones(3, 2), torch.ones(3, 3), "no thin product"),
        (torch.ones(2, 3, 2), torch.ones(2, 3), "no thin product"),
        (torch.ones(3), torch.ones(3), "no thin product"),
        (torch.ones(3, 0), torch.ones(0, 3), "empty"),
        (torch.ones(3, 2), torch.ones(2, 3).double(), "dtype"),
        (torch.ones(3, 2).long(), torch.ones(2, 3).long(), "dtype"),
    ],
)
def test_factors_that_do_not_fit_are_refused(left, right, sentence, monkeypatch):
    # users run without the shape checks of the test suite, which would speak first
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UsageError, match=sentence):
        LowRank(left, right)


def test_questions_without_an_answer_are_refused():
    wide, batch = factors(columns=9), factors(2)
    for ask in (LowRank.eigenvalues, LowRank.trace, LowRank.symmetry):
        with pytest.raises(UsageError, match="square"):
            ask(wide)
    for ask in (LowRank.frobenius, LowRank.stable_rank, LowRank.effective_rank, LowRank.symmetry, LowRank.trace):
        with pytest.raises(UsageError, match="batch"):
            ask(batch)
    with pytest.raises(UsageError, match="multiplied"):
        wide @ batch
