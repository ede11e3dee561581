"""A block whose forward pass is the response of a spin system: the article's construction, runnable and trainable.

The input is normalised to spins of length `sqrt(dim)` and routed to the external fields (by a matrix) and to the couplings
(softmax of a bilinear form, equation (7)); what comes out is the magnetisation, and gradients pass through the
solver by the implicit function theorem. A stack is a cascade: one system's magnetisation is the next one's input.

`theory` is how the system responds. `steepest`: equilibrium at large D with the symmetrised couplings
`(A + A^T)/2` off the diagonal (each token sees later ones, also under a causal mask, so that is refused).
`kinetic`: the chain with A itself, any mask; `steps` updates from zero (1 is a parallel transformer block's
single step) or, with None, its steady state.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechview.errors import UsageError
from mechview.spins.couplings import softmax_couplings
from mechview.spins.fits import SpinFit
from mechview.spins.models import KineticMeanField, SteepestDescent
from mechview.spins.reading import whole
from mechview.spins.single import zero_temperature
from mechview.spins.solving import solve

THEORIES = ("steepest", "kinetic")


class SpinBlock(nn.Module):
    """Tokens in, mean spins out; `3 dim^2` weights and one inverse temperature."""

    def __init__(
        self,
        dim: Any,
        *,
        theory: str = "steepest",
        causal: bool = False,
        steps: Any = None,
        beta: float = 1.0,
        generator: Any = None,
    ) -> None:
        super().__init__()
        if theory not in THEORIES:
            raise UsageError(f"theory={theory!r} is not known: {' or '.join(THEORIES)}")
        if causal and theory == "steepest":
            raise UsageError("causal couplings are not symmetric, so they have no equilibrium: use theory='kinetic'")
        dim, steps = whole(dim, "dim", 1), None if steps is None else whole(steps, "steps", 0)
        if not beta > 0:
            raise UsageError("beta is not positive")
        self.theory, self.causal, self.steps = theory, causal, steps
        self.query, self.key, self.field = (
            nn.Parameter(torch.randn(dim, dim, generator=generator) * dim**-0.5) for _ in range(3)
        )
        self.log_beta = nn.Parameter(torch.tensor(float(beta)).log())

    def forward(self, x: Float[Tensor, "*batch site dim"]) -> Float[Tensor, "*batch site dim"]:
        """The magnetisation that the input causes."""
        return self.fit(x).magnetisation

    def fit(self, x: Float[Tensor, "*batch site dim"], *, strict: bool = True) -> SpinFit:
        """The same with energies, couplings (`fit.settings.J`) and how the solver ended."""
        return solve(self.model(x), strict=strict, tol=1e-6 if x.dtype == torch.float32 else 1e-11)

    def model(self, x: Float[Tensor, "*batch site dim"]) -> SteepestDescent | KineticMeanField:
        """The spin system that an input sets up."""
        if x.ndim < 2 or x.shape[-1] != len(self.field):
            raise UsageError(f"the input has shape {list(x.shape)}, the block reads [sites, {len(self.field)}]")
        scale = x.shape[-1] ** 0.5
        state = zero_temperature(x, scale)
        A = softmax_couplings(state, self.query, self.key, causal=self.causal)
        h, beta = state @ self.field, self.log_beta.exp()
        if self.theory == "kinetic":
            return KineticMeanField(J=A, h=h, beta=beta, radius=scale, steps=self.steps)
        off = 1 - torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        return SteepestDescent(J=(A + A.mT) / 2 * off, h=h, beta=beta, radius=scale)
