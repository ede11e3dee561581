"""Couplings that depend on the field, and the magnetisation that follows: equations (7) to (9).

With `J(h) = softmax(b q k^T)`, `q = n W_Q^T`-like projections of the token states, the response to a field has two
parts: the mean spin, and the couplings' own change (half convention: with a factor 1/2),

    m_i = <s_i> + sum_mn <s_m.s_n> dJ_mn/dn_i   (ordered pairs, without 1/2: the article's)

whose second part has a closed form: with `C_mn = <s_m.s_n>` held fixed and `B = A o (C - rowsum(A o C))` it is
`b [B k W_Q^T + B^T q W_K^T]`: token i as a query, and as a key of all rows m (under a causal mask rows m >= i,
so it needs later tokens). Rows times matrices: `W_Q, W_K [dim, d_head]`, `q = n W_Q`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins.conventions import from_article
from mechview.spins.models import Exact
from mechview.spins.solving import solve

States = Float[Tensor, "*batch site dim"]
Couplings = Float[Tensor, "*batch site site"]
Projection = Float[Tensor, "dim d_head"]


def softmax_couplings(
    n: States, W_Q: Projection, W_K: Projection, scale: float | None = None, *, causal: bool = False
) -> Couplings:
    """Equation (7): attention weights as couplings; `scale` is `1/sqrt(d_head)` by default."""
    b = _scale(n, W_Q, W_K, scale)
    scores = b * (n @ W_Q) @ (n @ W_K).mT
    if causal:
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return torch.softmax(scores, -1)


def _scale(n: States, W_Q: Projection, W_K: Projection, scale: float | None) -> float:
    if W_Q.shape != W_K.shape or W_Q.ndim != 2 or n.ndim < 2 or n.shape[-1] != W_Q.shape[0]:
        shapes = ", ".join(str(list(x.shape)) for x in (n, W_Q, W_K))
        raise UsageError(f"states, W_Q and W_K have shapes {shapes}: they are [sites, dim] and twice [dim, d_head]")
    return W_Q.shape[-1] ** -0.5 if scale is None else scale


def coupling_term(
    n: States,
    W_Q: Projection,
    W_K: Projection,
    correlation: Couplings,
    scale: float | None = None,
    *,
    causal: bool = False,
) -> States:
    """`sum_mn C_mn dA_mn/dn_i` in closed form, C held fixed."""
    b = _scale(n, W_Q, W_K, scale)
    A = softmax_couplings(n, W_Q, W_K, scale, causal=causal)
    if correlation.shape[-2:] != A.shape[-2:]:
        raise UsageError(f"correlation has shape {list(correlation.shape)}, the couplings {list(A.shape)}")
    B = A * (correlation - (A * correlation).sum(-1, keepdim=True))
    return b * (B @ (n @ W_K) @ W_Q.mT + B.mT @ (n @ W_Q) @ W_K.mT)


def total_response(
    couplings: Callable[[Tensor], Tensor],
    h: States,
    beta: float = 1.0,
    radius: float = 1.0,
    *,
    model: type = Exact,
    **settings: Any,
) -> States:
    """Equation (9): `-dF/dh` of a system whose couplings (article's convention) are a function of its field.

    Differentiates through the solver and through `couplings`; the free energy includes the diagonal's shift.
    """
    with torch.enable_grad():
        field = h.detach().clone().requires_grad_()
        made = from_article(couplings(field), field, beta, radius)
        fit = solve(model(J=made.J, h=made.h, beta=beta, radius=radius, **settings))
        if fit.free_energy is None:
            raise UsageError(f"{fit.model} has no free energy to differentiate")
        return -torch.autograd.grad((fit.free_energy + made.energy_shift).sum(), field)[0]


def attention_energy(
    n: States, W_Q: Projection, W_K: Projection, scale: float | None = None
) -> Float[Tensor, "*batch"]:
    """The energy transformer's `-(1/b) sum_C log sum_B exp(b q_C.k_B)` of one head (Hoover et al. 2023)."""
    b = _scale(n, W_Q, W_K, scale)
    return -torch.logsumexp(b * (n @ W_Q) @ (n @ W_K).mT, -1).sum(-1) / b


def attention_force(n: States, W_Q: Projection, W_K: Projection, scale: float | None = None) -> States:
    """`-dE/dn` of `attention_energy`: a query term (attention to keys) and a key term."""
    A = softmax_couplings(n, W_Q, W_K, scale)
    return A @ (n @ W_K) @ W_Q.mT + A.mT @ (n @ W_Q) @ W_K.mT


def memory_energy(n: States, patterns: Float[Tensor, "state dim"]) -> Float[Tensor, "*batch"]:
    """The energy transformer's Hopfield part `-sum G(xi.n)`, `G' = relu`; its force is `relu(n xi^T) xi`."""
    return -torch.relu(n @ patterns.mT).square().sum((-2, -1)) / 2
