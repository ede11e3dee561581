"""Thin products `left @ right` whose dense form is never needed: spectra, norms and compositions from r x r algebra.

With right^T = Q R (R^T R = right right^T) and M = left @ right, `M^T M = Q (R left^T left R^T) Q^T`: one Cholesky
factor and one symmetric r x r eigenproblem give S and both sets of vectors. Forming M^T M squares the condition, so
this *fast* route serves float32 factors only, in float64, head by head where it costs no float32 digit. All else
(float64 and half-precision factors, rank-deficient heads, rank above the dimension, products that nearly cancel)
takes the *careful* route: Householder QR of `left`, then the SVD of `R @ right`. Its error is a few float64
roundings of |left||right| (Golub and Van Loan, Matrix Computations, 2013, sections 5.3 and 8.6).

Conventions: float32 in, float32 out; float64 and half precision in, float64 out. Numbers that sum up a matrix (norm,
trace, ranks, symmetry) are float64 throughout. A product below its own rounding noise is zero; a zero matrix has
ranks and symmetry 0. NaN, Inf, and answers that do not fit their dtype are refused with a `UsageError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.reprs import short_repr

_F16, _BF16, _F32, _F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
_RESULT = {_F16: _F64, _BF16: _F64, _F32: _F32, _F64: _F64}
_EPS = torch.finfo(_F64).eps
_SOUND_SPECTRUM = 1e-8  # smallest eigenvalue / |left|^2 |right|^2: its float64 error, and U's, stay below float32's
_SOUND_NORM = 0.1  # |M|^2 / |left^T left| |right right^T|: at most one digit of a float32 Gram may cancel
_SAFE_GRAM = 1e-25  # below this, entries of a float32 Gram fall out of the normal range
_CACHE = 2**20  # numbers of one factor worked on at once: their float64 copies stay in a processor's cache
_MODERATE = 1e50  # fourth powers of entries between its inverse and it stay in float64's range
_TIE = 1e-5  # relative difference of two moduli that counts as a tie when a sign is chosen

Route = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False)
class LowRank:
    """The product `left @ right` of thin factors, or a batch; factors that cannot form one raise a `UsageError`."""

    left: Float[Tensor, "*batch d_in rank"]
    right: Float[Tensor, "*batch rank d_out"]
    __repr__ = short_repr

    def __post_init__(self) -> None:
        left, right = self.left, self.right
        if left.ndim < 2 or right.ndim < 2 or left.shape[:-2] != right.shape[:-2] or left.shape[-1] != right.shape[-2]:
            raise UsageError(f"factors of shapes {tuple(left.shape)} and {tuple(right.shape)} have no thin product")
        if 0 in left.shape or 0 in right.shape:
            raise UsageError(f"a factor is empty: shapes {tuple(left.shape)} and {tuple(right.shape)}")
        if left.dtype not in _RESULT or left.dtype != right.dtype or left.device != right.device:
            kinds = f"{left.dtype} on {left.device} and {right.dtype} on {right.device}"
            raise UsageError(f"factors must share one real dtype of 16 to 64 bits and one device, not {kinds}")

    @property
    def shape(self) -> torch.Size:
        """Shape of the dense product."""
        return self.left.shape[:-1] + self.right.shape[-1:]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the factors."""
        return self.left.dtype

    @property
    def mT(self) -> LowRank:
        """Transpose of every matrix: the factors change places."""
        return LowRank(left=self.right.mT, right=self.left.mT)

    T = mT

    def dense(self) -> Float[Tensor, "*batch d_in d_out"]:
        """The product itself, in the factors' dtype: d_in x d_out numbers that nothing here needs."""
        return self.left @ self.right

    def __matmul__(self, other: LowRank | Tensor) -> LowRank | Tensor:
        """With a `LowRank`: the composition, of the smaller inner rank, half precision upcast. With a tensor: its image."""
        if not isinstance(other, LowRank):
            return self.left @ (self.right @ other)
        if self.shape[:-2] != other.shape[:-2] or self.shape[-1] != other.shape[-2]:
            raise UsageError(f"matrices of shapes {tuple(self.shape)} and {tuple(other.shape)} cannot be multiplied")
        dtype = torch.promote_types(_RESULT[self.dtype], _RESULT[other.dtype])
        A, B, C, D = (x.to(dtype) for x in (self.left, self.right, other.left, other.right))
        return LowRank(A, (B @ C) @ D) if A.shape[-1] <= C.shape[-1] else LowRank(A @ (B @ C), D)

    def __rmatmul__(self, rows: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*images d_out"]:
        """Row vectors times the matrix, `x @ low`, through the thin side."""
        return (rows @ self.left) @ self.right

    @torch.no_grad()
    def svd(
        self,
    ) -> tuple[Float[Tensor, "*batch d_in rank"], Float[Tensor, "*batch rank"], Float[Tensor, "*batch rank d_out"]]:
        """Thin SVD `(U, S, Vh)`, S descending, with min(rank, d_in, d_out) columns.

        Signs: in each column of U the entry of largest modulus is positive; where a positive and a negative entry
        tie to 1e-5, positive wins. Not differentiable.
        """
        *batch, rows, columns = self.shape
        rank, dtype = min(rows, columns, self.left.shape[-1]), _RESULT[self.dtype]
        U = self.left.new_empty(math.prod(batch), rows, rank, dtype=dtype)
        Vh = self.left.new_empty(math.prod(batch), rank, columns, dtype=dtype)
        S = self.left.new_empty(math.prod(batch), rank, dtype=dtype)
        for part, (u, s, vh, units) in _solved(self, _fast_svd, _careful_svd):
            sign = torch.where(u.amax(-2) >= -(1 - _TIE) * u.amin(-2), 1.0, -1.0)
            torch.mul(u, sign[:, None, :], out=U[part])
            torch.mul(vh, sign[:, :, None], out=Vh[part])
            S[part] = _fitted(s, units, dtype)
        return U.view(*batch, rows, rank), S.view(*batch, rank), Vh.view(*batch, rank, columns)

    def singular_values(self) -> Float[Tensor, "*batch rank"]:
        """Singular values, descending: those of `svd`, without its vectors."""
        s, units = _spectrum(self)
        return _fitted(s, units, _RESULT[self.dtype]).view(*self.shape[:-2], -1)

    @torch.no_grad()
    def eigenvalues(self) -> Complex[Tensor, "*batch rank"]:
        """The min(rank, d) eigenvalues that may differ from zero, by modulus descending; of a pair the upper first."""
        left, right, units = _scaled(*_square(self, "eigenvalues"))
        values = torch.linalg.eigvals(left @ right if left.shape[-1] > left.shape[-2] else right @ left)
        order = values.abs().sort(dim=-1, descending=True, stable=True).indices
        return _fitted(values.gather(-1, order), units, _RESULT[self.dtype].to_complex()).view(*self.shape[:-2], -1)

    def frobenius(self) -> float:
        """Frobenius norm of one matrix."""
        return _of_one(self, frobenius_norms)

    def trace(self) -> float:
        """Trace of one square matrix."""
        return _of_one(self, traces)

    def stable_rank(self) -> float:
        """|M|_F^2 / |M|_2^2 of one matrix, from 1 to the rank; 0 if M = 0."""
        return _of_one(self, stable_ranks)

    def effective_rank(self) -> float:
        """exp(entropy of S / sum S) of one matrix (Roy and Vetterli 2007), from 1 to the rank; 0 if M = 0."""
        return _of_one(self, effective_ranks)

    def symmetry(self) -> float:
        """tr(MM) / |M|_F^2 of one square matrix: 1 symmetric, -1 antisymmetric; 0 if M = 0."""
        return _of_one(self, symmetries)


@torch.no_grad()
def frobenius_norms(low: LowRank) -> Float[Tensor, "*batch"]:
    """Frobenius norm of each matrix: tr(left^T left right right^T), or by QR where that trace would cancel."""
    left, right = _flat(low)
    if low.dtype != _F32:
        return _careful_norms(left, right).view(low.shape[:-2])
    grams = (left.mT @ left).double(), (right @ right.mT).double()
    squares = (grams[0] * grams[1]).sum((-2, -1))
    sizes = [torch.linalg.matrix_norm(gram) for gram in grams]
    sound = (squares > _SOUND_NORM * sizes[0] * sizes[1]) & (sizes[0] > _SAFE_GRAM) & (sizes[1] > _SAFE_GRAM)
    norms = squares.clamp_min(0).sqrt()
    if not sound.all():
        norms[~sound] = _careful_norms(left[~sound], right[~sound])
    return norms.view(low.shape[:-2])


@torch.no_grad()
def traces(low: LowRank) -> Float[Tensor, "*batch"]:
    """Trace of each square matrix."""
    left, right, units = _scaled(*_square(low, "a trace"))
    return _fitted((left * right.mT).sum((-2, -1))[:, None], units, _F64).view(low.shape[:-2])


def stable_ranks(low: LowRank) -> Float[Tensor, "*batch"]:
    """|M|_F^2 / |M|_2^2 of each matrix; 0 if M = 0."""
    s, _ = _spectrum(low)
    return (s / s[:, :1].where(s[:, :1] > 0, 1.0)).square().sum(-1).view(low.shape[:-2])


def effective_ranks(low: LowRank) -> Float[Tensor, "*batch"]:
    """exp(entropy of S / sum S) of each matrix; 0 if M = 0."""
    s, _ = _spectrum(low)
    total = s.sum(-1, keepdim=True)
    entropy = torch.special.entr(s / total.where(total > 0, 1.0)).sum(-1)
    return entropy.exp().where(total[:, 0] > 0, 0.0).view(low.shape[:-2])


@torch.no_grad()
def symmetries(low: LowRank) -> Float[Tensor, "*batch"]:
    """tr(MM) / |M|_F^2 of each square matrix, in [-1, 1]; 0 if M = 0."""
    Q, rest, _ = _orthonormal(*_square(low, "symmetry"))
    core, squares = rest @ Q, rest.square().sum((-2, -1))
    ratio = (core * core.mT).sum((-2, -1)) / squares.where(squares > 0, 1.0)
    return ratio.clamp(-1, 1).view(low.shape[:-2])


def _of_one(low: LowRank, measure: Callable[[LowRank], Tensor]) -> float:
    if low.left.ndim > 2:
        raise UsageError(f"this is a batch of matrices, {tuple(low.shape[:-2])}: use lowrank.{measure.__name__}")
    return measure(low).item()


def _flat(low: LowRank) -> tuple[Float[Tensor, "n d_in rank"], Float[Tensor, "n rank d_out"]]:
    return low.left.reshape(-1, *low.left.shape[-2:]), low.right.reshape(-1, *low.right.shape[-2:])


def _square(low: LowRank, what: str) -> tuple[Float[Tensor, "n d rank"], Float[Tensor, "n rank d"]]:
    if low.shape[-2] != low.shape[-1]:
        raise UsageError(f"{what} exists only for square matrices, not {low.shape[-2]} x {low.shape[-1]}")
    return _flat(low)


def _solved(low: LowRank, fast: Route, careful: Route) -> Iterator[tuple[slice, list[Tensor]]]:
    """Answers part by part; `fast` marks in its last output the matrices that it may answer."""
    left, right = _flat(low)
    narrow = low.dtype == _F32 and low.left.shape[-1] <= min(low.shape[-2:])
    step = max(1, _CACHE // max(left[0].numel(), right[0].numel()))
    for part in (slice(start, start + step) for start in range(0, len(left), step)):
        a, b = left[part].double(), right[part].double()
        *answers, sound = fast(a, b) if narrow else (*careful(a, b), torch.ones(1))
        if not sound.all():
            for answer, better in zip(answers, careful(a[~sound], b[~sound]), strict=True):
                answer[~sound] = better
        yield part, answers


def _scaled(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Float[Tensor, "n 2"]]:
    """Float64 factors of moderate size, and the powers of two taken out of each: together they may overflow."""
    peaks = torch.stack([torch.linalg.vector_norm(x, torch.inf, dim=(-2, -1)) for x in (left, right)], dim=-1).double()
    left, right = left.double(), right.double()
    if not peaks.isfinite().all():
        raise UsageError("a factor contains NaN or Inf, so its product has no norm, spectrum or trace")
    extreme = (peaks > 0) & ((peaks < 1 / _MODERATE) | (peaks > _MODERATE))
    units = torch.where(extreme, peaks / (2 * torch.frexp(peaks).mantissa), 1.0)
    return (left / units[:, :1, None], right / units[:, 1:, None], units) if extreme.any() else (left, right, units)


def _fitted(values: Tensor, units: Float[Tensor, "n 2"], dtype: torch.dtype) -> Tensor:
    """Put the powers of two back; refuse a matrix whose largest value overflows or vanishes in `dtype`."""
    restored = values.where(values == 0, values * units[:, :1] * units[:, 1:])
    size, limits = restored.abs().amax(-1), torch.finfo(dtype)
    misfit = ~(size <= limits.max) | ((size < limits.tiny) & (values != 0).any(-1))
    if misfit.any():
        raise UsageError(f"a value near {size[misfit][0].item():.1e} does not fit {dtype}: rescale the factors")
    return restored.to(dtype)


def _orthonormal(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Float[Tensor, "n 2"]]:
    """`left @ right = (Q @ rest) * units` with orthonormal columns Q, so that norms are those of `rest`."""
    left, right, units = _scaled(left, right)
    (Q, R), norm = torch.linalg.qr(left), torch.linalg.matrix_norm
    rest = R @ right
    return Q, rest * (norm(rest) > 8 * _EPS * norm(left) * norm(right))[:, None, None], units


def _careful_norms(left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
    _, rest, units = _orthonormal(left, right)
    return _fitted(torch.linalg.matrix_norm(rest)[:, None], units, _F64)[:, 0]


def _careful_svd(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    Q, rest, units = _orthonormal(left, right)
    U, S, Vh = torch.linalg.svd(rest, full_matrices=False)
    return Q @ U, S, Vh, units


def _careful_values(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    _, rest, units = _orthonormal(left, right)
    return torch.linalg.svdvals(rest), units


def _core(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Float[Tensor, " n"]]:
    """Matrix whose eigenvalues are S^2, Cholesky factor of right right^T, and the eigenvalue above which both serve."""
    gram, gram_right = left.mT @ left, right @ right.mT
    L, failed = torch.linalg.cholesky_ex(gram_right)
    core = L.mT @ gram @ L
    usable = (failed == 0) & core.isfinite().all(-1).all(-1)
    floor = _SOUND_SPECTRUM * torch.linalg.matrix_norm(gram) * torch.linalg.matrix_norm(gram_right)
    return core.where(usable[:, None, None], 0.0), L, floor.where(usable, torch.inf)


def _fast_svd(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    core, L, floor = _core(left, right)
    squares, V = (x.flip(-1) for x in torch.linalg.eigh(core))
    S = squares.clamp_min(0).sqrt()
    U = left @ (L @ V / S[:, None, :])
    Vh = torch.linalg.solve_triangular(L.mT, V, upper=True).mT @ right
    return U, S, Vh, left.new_ones(len(left), 2), squares[:, -1] > floor


def _fast_values(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    core, _, floor = _core(left, right)
    squares = torch.linalg.eigvalsh(core).flip(-1)
    return squares.clamp_min(0).sqrt(), left.new_ones(len(left), 2), squares[:, -1] > floor


@torch.no_grad()
def _spectrum(low: LowRank) -> tuple[Float[Tensor, "n rank"], Float[Tensor, "n 2"]]:
    """Singular values in float64 up to `units`, which scale-free numbers need not put back."""
    values, units = zip(*(answer for _, answer in _solved(low, _fast_values, _careful_values)), strict=True)
    return torch.cat(values), torch.cat(units)
