"""How long a written token can be read from a state: a linear probe, with shuffled labels as its control.

Random sequences over a few token ids are run; from the state at a position (an LSTM's cell states side by side,
a transformer's final stream) a ridge regression on one-hot labels foretells which id stood `lag` positions
before. Accuracy is on sequences that were held out; the control is the same probe trained on labels that were
shuffled among the training states (after Hewitt and Liang 2019), and chance is one over the number of ids. A
transformer may look an old token up again at any time: that its stream holds it *at this position* is what is
tested.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

RIDGE = 1e-2


@dataclass(frozen=True)
class Probe:
    """Accuracy at one lag; `control` with shuffled training labels; `n` states were tested."""

    lag: int
    accuracy: float
    control: float
    chance: float
    n: int


def probe(
    states: Float[Tensor, "_row pos d"],
    labels: Int[Tensor, "_row pos"],
    lag: int,
    classes: int,
    generator: torch.Generator,
) -> Probe:
    """Read the label of `lag` positions before; the last quarter of the rows is held out."""
    cut = max(1, len(states) * 3 // 4)
    x, y = states[:, lag:].double(), labels[:, : labels.shape[1] - lag]
    train, test = (x[:cut].flatten(0, 1), y[:cut].flatten()), (x[cut:].flatten(0, 1), y[cut:].flatten())
    mixed = train[1][torch.randperm(len(train[1]), generator=generator)]
    return Probe(
        lag=lag,
        accuracy=accuracy(train[0], train[1], *test, classes),
        control=accuracy(train[0], mixed, *test, classes),
        chance=1.0 / classes,
        n=len(test[1]),
    )


def accuracy(
    x: Float[Tensor, "_train d"], y: Int[Tensor, "_train"], x_test: Tensor, y_test: Tensor, classes: int
) -> float:
    """Share of test states whose label the ridge regression ranks first."""
    mean, spread = x.mean(0), x.std(0).clamp(min=1e-12)
    x, x_test = (x - mean) / spread, (x_test - mean) / spread
    targets = torch.nn.functional.one_hot(y, classes).to(x)
    targets = targets - targets.mean(0)
    gram = x.mT @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, x.mT @ targets)
    return float(((x_test @ weights).argmax(-1) == y_test).double().mean())
