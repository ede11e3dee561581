"""Modern Hopfield retrieval, with the energy whose unit gradient step is exactly one attention update.

Patterns are the rows of X, `E(xi) = |xi|^2/2 - lse(beta X xi)/beta + log(N)/beta + max|x|^2/2 >= 0` and
`xi' = softmax(beta xi X^T) X = xi - dE/dxi`. The article prints the energy without `1/beta` before the
log-sum-exp, whose step is another update. `E(xi') <= E(xi)` always, for random patterns as well: a theorem, and
never evidence about a trained head. With visible and hidden Lagrangians `|v|^2/2` and `lse(beta h)/beta`
(Krotov and Hopfield) the same energy is what is left when the hidden layer is fast. The energy transformer's
attention energy (Hoover et al.) has a key term too, which under a causal mask needs future tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins.fits import SpinFit
from mechview.spins.fixed_points import Found, Status, attach, find
from mechview.spins.models import Hopfield
from mechview.spins.reading import positive, read, whole

Patterns = Float[Tensor, "*batch state dim"]
States = Float[Tensor, "*batch site dim"]


def energy(patterns: Patterns, states: States, beta: Any = 1.0) -> Float[Tensor, "*batch site"]:
    """E of each state, not negative."""
    beta = torch.as_tensor(beta, dtype=states.dtype, device=states.device)[..., None]
    lse = torch.logsumexp(beta[..., None] * states @ patterns.mT, -1)
    longest = patterns.square().sum(-1).amax(-1, keepdim=True)
    count = torch.tensor(float(patterns.shape[-2]), dtype=states.dtype, device=states.device).log()
    return (states.square().sum(-1) + longest) / 2 + (count - lse) / beta


def step(patterns: Patterns, states: States, beta: Any = 1.0) -> States:
    """One update: attention with the patterns as keys and as values."""
    beta = torch.as_tensor(beta, dtype=states.dtype, device=states.device)[..., None, None]
    return torch.softmax(beta * states @ patterns.mT, -1) @ patterns


def article_energy(patterns: Patterns, states: States, beta: Any = 1.0) -> Float[Tensor, "*batch site"]:
    """The energy as equation (2) of the article prints it; its unit step is not the update (1)."""
    beta = torch.as_tensor(beta, dtype=states.dtype, device=states.device)[..., None, None]
    return states.square().sum(-1) / 2 - torch.logsumexp(beta * states @ patterns.mT, -1)


def krotov_energy(
    patterns: Patterns, visible: States, hidden: Float[Tensor, "*batch site state"], beta: Any = 1.0
) -> Float[Tensor, "*batch site"]:
    """Two layers of neurons; minimal over what the hidden ones can do at `hidden = X v`, where it is `energy` - const."""
    beta = torch.as_tensor(beta, dtype=visible.dtype, device=visible.device)[..., None]
    active = torch.softmax(beta[..., None] * hidden, -1)
    lagrangian = torch.logsumexp(beta[..., None] * hidden, -1) / beta
    interaction = ((visible @ patterns.mT) * active).sum(-1)
    return visible.square().sum(-1) / 2 + (hidden * active).sum(-1) - lagrangian - interaction


def separation(patterns: Patterns) -> Float[Tensor, "*batch state"]:
    """How far each pattern is from being mistaken: `|x_i|^2 - max_(j != i) x_i.x_j`."""
    gram = patterns @ patterns.mT
    own = gram.diagonal(dim1=-2, dim2=-1)
    others = gram.masked_fill(torch.eye(gram.shape[-1], dtype=torch.bool, device=gram.device), -torch.inf)
    return own - others.amax(-1)


def retrieved(model: Hopfield, tol: float, max_steps: int) -> SpinFit:
    """States after `steps` updates, or at the fixed point they fall into."""
    patterns, states = read(model.patterns, "patterns"), read(model.h, "h")
    if patterns.ndim < 2 or states.ndim < 2 or patterns.shape[-1] != states.shape[-1]:
        raise UsageError("patterns are [N, d] and states [queries, d], with the same d")
    steps = None if model.steps is None else whole(model.steps, "steps", 0)
    dtype = torch.promote_types(patterns.dtype, states.dtype)
    patterns, states = patterns.to(states.device, dtype), states.to(dtype)
    beta = positive(model.beta, "beta", dtype, states.device)
    found, final = _fall(patterns, states, beta, steps, tol, max_steps)
    return SpinFit(
        model="Hopfield", magnetisation=final, status=found.status, steps=found.steps, residual=found.residual,
        energy=energy(patterns, final, beta).sum(-1),
    )  # fmt: skip


def _fall(
    patterns: Tensor, states: Tensor, beta: Tensor, steps: int | None, tol: float, max_steps: int
) -> tuple[Found, Tensor]:
    if steps is not None:
        for _ in range(steps):
            states = step(patterns, states, beta)
        left = (step(patterns, states, beta) - states).detach().abs().amax((-2, -1))
        return Found(states.detach().flatten(-2), left, steps, Status.EXACT), states
    shape = torch.broadcast_shapes(patterns.shape[:-2], states.shape[:-2]) + states.shape[-2:]

    def update(x: Tensor, patterns: Tensor, beta: Tensor) -> Tensor:
        return step(patterns, x.reshape(shape), beta).flatten(-2)

    start, walked = _descend(patterns.detach(), states.detach().expand(shape), beta.detach(), 20 * max_steps)
    found = find(update, start.flatten(-2), (patterns, beta), tol=tol, max_steps=max_steps, damping=1.0)
    found = replace(found, steps=found.steps + walked)
    return found, attach(update, found.x, (patterns, beta)).reshape(shape)


def _descend(patterns: Tensor, states: Tensor, beta: Tensor, most: int) -> tuple[Tensor, int]:
    """Plain updates until Newton's method can no longer leave the valley."""
    for n in range(most):
        moved = step(patterns, states, beta)
        if float((moved - states).abs().max()) < 1e-7:
            return moved, n
        states = moved
    return states, most
