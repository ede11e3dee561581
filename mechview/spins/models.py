"""The models as frozen records: what is to be solved, not how. `solve` takes any of them.

All are in the half convention, `E = -1/2 sum_ij J_ij s_i.s_j - sum_i h_i.s_i`, with `J [*batch, N, N]`,
`h [*batch, N, D]` and spins of length `radius`; `conventions` converts from the papers' forms. D = 1 is the Ising
model (a Boltzmann machine). `form` chooses the response of a site, see `single`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exact:
    """All states of sign spins (N <= 20), or quadrature over the sphere (N <= 2; N = 3 for D <= 3); see `exact` for its limits."""

    J: Any
    h: Any
    beta: Any = 1.0
    radius: Any = 1.0
    nodes: Any = 32


@dataclass(frozen=True)
class MonteCarlo:
    """Heat-bath sampling of any system: means and energy with standard errors from independent chains."""

    J: Any
    h: Any
    beta: Any = 1.0
    radius: Any = 1.0
    chains: Any = 64
    sweeps: Any = 400
    generator: Any = None


@dataclass(frozen=True)
class MeanField:
    """Naive mean field, `m_i = phi(h_i + sum_j J_ij m_j)`; its free energy is an upper bound."""

    J: Any
    h: Any
    beta: Any = 1.0
    radius: Any = 1.0
    form: str = "exact"
    start: Any = None


@dataclass(frozen=True)
class TAP:
    """Second order in the couplings (Thouless, Anderson and Palmer; Plefka), for spins of every dimension."""

    J: Any
    h: Any
    beta: Any = 1.0
    radius: Any = 1.0
    form: str = "exact"
    start: Any = None


@dataclass(frozen=True)
class AdaptiveTAP:
    """Opper and Winther's, with one reaction coefficient a site; `prior` sphere, or gaussian, where it is exact."""

    J: Any
    h: Any
    beta: Any = 1.0
    radius: Any = 1.0
    form: str = "exact"
    prior: str = "sphere"
    start: Any = None


@dataclass(frozen=True)
class SteepestDescent:
    """The large-D free energy (AFEM), with a multiplier a site or one for all (`shared`, Berlin and Kac)."""

    J: Any
    h: Any
    beta: Any = 1.0
    radius: Any = 1.0
    shared: bool = False


@dataclass(frozen=True)
class KineticMeanField:
    """The synchronous chain of spins with any couplings: `steps` updates from `start`, or the steady state (None)."""

    J: Any
    h: Any
    beta: Any = 1.0
    radius: Any = 1.0
    order: Any = 1
    form: str = "exact"
    start: Any = None
    steps: Any = None


@dataclass(frozen=True)
class Hopfield:
    """Modern retrieval: states `h [*batch, queries, d]` fall onto the rows of `patterns [N, d]`; None: to the end."""

    patterns: Any
    h: Any
    beta: Any = 1.0
    steps: Any = 1


SpinModel = Exact | MonteCarlo | MeanField | TAP | AdaptiveTAP | SteepestDescent | KineticMeanField | Hopfield
