"""GMRES for a batch of linear systems known only by their products with vectors.

Restarted, without preconditioner: the systems here are `1 - beta Sigma J` and its like, close to the identity in the
phase where a solution is stable. Ends at the relative residual `tol` or after `restarts` cycles; the caller
measures what came out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Product = Callable[[Tensor], Tensor]


def gmres(
    product: Product, b: Float[Tensor, "*batch n"], tol: float = 1e-13, size: int = 40, restarts: int = 8
) -> Float[Tensor, "*batch n"]:
    """`x` with `product(x) = b`."""
    x = torch.zeros_like(b)
    goal = tol * b.detach().norm(dim=-1)
    for _ in range(restarts):
        r = b - product(x)
        if bool((r.detach().norm(dim=-1) <= goal).all()):
            break
        x = x + _cycle(product, r, min(size, b.shape[-1]))
    return x


def _cycle(product: Product, r: Tensor, size: int) -> Tensor:
    """The best correction in the Krylov space of `size` vectors, by least squares on its orthonormal basis."""
    start = r.norm(dim=-1, keepdim=True)
    basis = [_unit(r, start)]
    images = []
    for _ in range(size):
        image = product(basis[-1])
        images.append(image)
        rest = image
        for _ in range(2):
            for v in basis:
                rest = rest - (rest * v).sum(-1, keepdim=True) * v
        basis.append(_unit(rest, rest.norm(dim=-1, keepdim=True)))
    A = torch.stack(images, -1)
    weights = torch.linalg.pinv(A, rtol=1e-14) @ r[..., None]
    return (torch.stack(basis[:-1], -1) @ weights)[..., 0]


def _unit(v: Tensor, length: Tensor) -> Tensor:
    return torch.where(length > 0, v / length.clamp(min=torch.finfo(v.dtype).tiny), torch.zeros_like(v))
