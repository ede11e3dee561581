"""Attribution over many prompts, one at a time: mean and spread of every component, and nothing else kept.

Welford's running mean and squares (1962) are as exact for a million prompts as for two. With the lazy
`mv.write_traces` and `mv.direct_attributions` one prompt's numbers are alive at any moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UsageError
from mechview.residual.direct import Attribution
from mechview.results import Result


@dataclass(frozen=True)
class MeanAttribution(Result):
    """Mean and standard deviation over `n` prompts at one position of each; `error` is the largest completeness error.

    `total` is the mean of the model's own value; the means of the rows sum to it as the rows of one prompt do.
    """

    components: tuple[str, ...]
    mean: Float[Tensor, "component"]
    sd: Float[Tensor, "component"]
    n: int
    total: float
    error: float
    direction: str
    position: int
    model: str = ""
    revision: str | None = None


def mean_attribution(found: Iterable[Attribution], position: Any = -1) -> MeanAttribution:
    """The mean over attributions, which are taken one by one from any iterable.

    Args:
        position: position of each prompt that is read; from the end where it is negative.

    Raises:
        UsageError: no attributions, rows of different models, or a position some prompt does not have.
    """
    n, total, error = 0, 0.0, 0.0
    first: Attribution | None = None
    mean = squares = torch.zeros(0, dtype=torch.float64)
    for n, one in enumerate(found, 1):
        column = _column(one, position)
        if first is None:
            first, mean, squares = one, torch.zeros_like(column), torch.zeros_like(column)
        if one.components != first.components:
            raise UsageError(f"attributions of {first.model} and {one.model} have different rows: they have no mean")
        off = column - mean
        mean = mean + off / n
        squares = squares + off * (column - mean)
        total += (float(one.total[position]) - total) / n
        error = max(error, one.error)
    if first is None:
        raise UsageError("there are no attributions to average")
    sd = (squares / (n - 1)).sqrt() if n > 1 else torch.full_like(mean, torch.nan)
    return MeanAttribution(
        components=first.components, mean=mean, sd=sd, n=n, total=total, error=error, direction=first.direction,
        position=position, model=first.model, revision=first.revision,
    )  # fmt: skip


def _column(one: Attribution, position: Any) -> Tensor:
    length = one.values.shape[1]
    if isinstance(position, bool) or not isinstance(position, int) or not -length <= position < length:
        raise UsageError(f"position {position} does not exist: a prompt has positions 0 to {length - 1}")
    return one.values[:, position].double()
