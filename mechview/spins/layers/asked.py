"""Which quantities there are, and which are refused because they could not come out otherwise (SPIN C.0)."""

from __future__ import annotations

from collections.abc import Sequence

from mechview.errors import UsageError
from mechview.spins.layers import ladder, ladder_mlp
from mechview.spins.layers.baselines import BASELINES
from mechview.spins.layers.reaction import REACTION

FITS = frozenset((*ladder.RUNGS, *ladder_mlp.RUNGS, *BASELINES, *REACTION.values()))
TAUTOLOGIES = {
    "identity R2": "the identity alone gives 0.7 to 0.95 of the whole stream, for any block that changes it little",
    "tensor couplings": "J_ij^ab = A_ij [W_V W_O]_ab is attention itself: its R^2 is 1 by definition",
    "response temperature": "RMSNorm is the response at zero temperature, so no finite one can be identified",
    "retrieval descent": "the energy of key retrieval falls by theorem, for random keys too",
    "softmax response": "dA/dlogit is the covariance of any softmax",
    "causal asymmetry": "||A - A^T|| of a causal pattern is fixed by its mask",
    "entropy production": "on a causal pattern its proxy is fixed by the mask; the curl index is what is left",
    "criticality by eigenvalues": "the eigenvalues of a causal pattern are its diagonal, its radius 1 from A_00",
    "equilibrium free energy": "it needs symmetric couplings; a causal pattern has none, rows have their own ln Z",
}


def check_quantities(wanted: Sequence[str] | None) -> tuple[str, ...] | None:
    """The quantities asked for, unless one is a tautology.

    Raises:
        UsageError: it is refused, with the reason.
    """
    refused = {name.lower(): reason for name, reason in TAUTOLOGIES.items()}
    for name in wanted or ():
        if name.lower() in refused:
            raise UsageError(f"{name} is refused, for it is no evidence: {refused[name.lower()]}")
    return None if wanted is None else tuple(wanted)


def chosen(names: frozenset[str], wanted: Sequence[str] | None) -> frozenset[str]:
    """Of the names measured, those that a word asked for is the beginning of.

    Raises:
        UsageError: a word begins none.
    """
    if wanted is None:
        return names
    lost = next((word for word in wanted if not any(name.lower().startswith(word.lower()) for name in names)), None)
    if lost is not None:
        raise UsageError(f"no quantity is called {lost}; there are {', '.join(sorted(names)[:8])} and others")
    return frozenset(name for name in names if any(name.lower().startswith(word.lower()) for word in wanted))
