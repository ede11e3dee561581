"""Is a fixed point stable? The spectrum of the map's Jacobian there, dense or by Lanczos-Arnoldi.

Its spectral radius (gain) says whether plain iteration contracts. Its largest real part says whether the
susceptibility is positive: `chi^-1 = (1 - T_theta)(beta Sigma)^-1` is symmetric in equilibrium, so all eigenvalues
of `1 - T_theta` are real there and have the signs of those of chi.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from scipy.sparse.linalg import LinearOperator, eigs
from torch import Tensor

from mechview.spins.fixed_points import DENSE, Found, Update, jacobian


def leading(update: Update, found: Found, parameters: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Spectral radius and largest real part of `T_x`; NaN where the point is not finite."""
    fixed, x = tuple(p.detach() for p in parameters), found.x
    if x.shape[-1] == 0 or not bool(x.isfinite().all()):
        missing = torch.full(x.shape[:-1], float("nan"), dtype=x.dtype, device=x.device)
        return missing, missing
    with torch.no_grad():
        if x.shape[-1] <= DENSE:
            with suppress(RuntimeError):  # LAPACK fails on some matrices of low rank (its error is a RuntimeError)
                values = torch.linalg.eigvals(jacobian(update, x, *fixed))
                return values.abs().amax(-1), values.real.amax(-1)
        flat = [_arnoldi(update, x, fixed, index) for index in range(x[..., 0].numel())]
    columns = torch.tensor(flat, dtype=x.dtype, device=x.device).unbind(-1)
    return columns[0].reshape(x.shape[:-1]), columns[1].reshape(x.shape[:-1])


def _arnoldi(update: Update, x: Tensor, fixed: tuple[Tensor, ...], index: int) -> tuple[float, float]:
    """Of one member of the batch, from products with the transposed Jacobian (same eigenvalues)."""
    _, pull = torch.func.vjp(lambda x: update(x, *fixed), x)
    n = x.shape[-1]

    def product(v: object) -> object:
        row = torch.zeros_like(x).reshape(-1, n)
        row[index] = torch.as_tensor(v, dtype=x.dtype, device=x.device).reshape(n)
        return pull(row.reshape(x.shape))[0].reshape(-1, n)[index].cpu().numpy()

    operator = LinearOperator((n, n), matvec=product, dtype="float64")
    start = torch.ones(n, dtype=torch.float64).numpy()
    found = [
        eigs(operator, k=1, which=which, v0=start, tol=1e-6, return_eigenvectors=False)[0] for which in ("LM", "LR")
    ]
    return abs(found[0]), found[1].real
