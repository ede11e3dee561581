"""The synchronous chain of a few sign spins without approximation: transition matrix, stationary law, its moments.

The reference for `kinetic`: all 2^N states, `P(s'|s) = prod_i exp(beta s'_i h_i) / 2 cosh(beta h_i)`, `h = x + J s`.
Irreversibility is measured by definition, as the relative entropy of a step and its reverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.spins.exact import sign_states
from mechview.spins.system import System, system

MOST = 10


@dataclass(frozen=True)
class Chain:
    """States, transition probabilities `[from, to]`, and the stationary law."""

    states: Float[Tensor, "state site"]
    transition: Float[Tensor, "n n"]
    stationary: Float[Tensor, "state"]

    @property
    def magnetisation(self) -> Float[Tensor, "site"]:
        """Stationary mean of every spin."""
        return self.stationary @ self.states

    @property
    def lagged_correlation(self) -> Float[Tensor, "site site"]:
        """Connected `<s_i(t+1) s_j(t)>` in the stationary state."""
        joint = (self.transition @ self.states).mT @ (self.stationary[:, None] * self.states)
        return joint - self.magnetisation[:, None] * self.magnetisation

    @property
    def entropy_production(self) -> float:
        """`sum pi(s) P(s'|s) ln [pi(s) P(s'|s) / pi(s') P(s|s')]`, nats per step."""
        flow = self.stationary[:, None] * self.transition
        return float((flow * (flow.log() - flow.mT.log())).sum())


def sign_chain(J: Any, h: Any, beta: Any = 1.0) -> Chain:
    """The chain of N <= 10 sign spins.

    Raises:
        UsageError: more spins, vector spins, or a batch.
    """
    checked = _few_signs(J, h, beta)
    s = sign_states(checked.sites, checked.h)
    field = checked.beta * (checked.h[:, 0] + s @ checked.J.mT)
    log_P = field @ s.mT - torch.logaddexp(field, -field).sum(-1, keepdim=True)
    P = log_P.exp()
    balance = P.mT - torch.eye(len(s), dtype=P.dtype)
    balance[-1] = 1.0
    right = torch.zeros_like(P[0])
    right[-1] = 1.0
    return Chain(s, P, torch.linalg.solve(balance, right))


def _few_signs(J: Any, h: Any, beta: Any) -> System:
    checked = system(J, h, beta, 1.0, symmetric=False)
    if checked.dim != 1 or checked.h.ndim != 2 or checked.sites > MOST:
        raise UsageError(f"the exact chain is for one system of at most {MOST} sign spins")
    return checked


def one_step_means(J: Any, h: Any, before: Any, beta: Any = 1.0) -> Float[Tensor, "site"]:
    """Means after one step of the chain from independent sign spins with means `before`."""
    checked = _few_signs(J, h, beta)
    s = sign_states(checked.sites, checked.h)
    m = checked.given_means(before)[:, 0]
    weight = ((1 + s * m) / 2).prod(-1)
    return weight @ torch.tanh(checked.beta * (checked.h[:, 0] + s @ checked.J.mT))
