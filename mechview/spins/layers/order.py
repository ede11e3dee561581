"""Order parameters of the tokens over depth: how aligned the spins are before each block.

`|mean xh|/|xh|`, mean cosine of pairs, participation ratio of the spectrum of their Gram matrix (between 1 and
the number of tokens), and `E_1 = mean exp(cos)` (Geshkovski et al. 2023). Clustering is generic of random
attention too, so these have nulls of whole models only (N4 to N6). The norm fixes the length of the whole spin but not of
its part in a head's subspace: that length's spread over tokens (sd over mean) is read in each head's read
subspace, beside a random subspace of the same size. Position 0 is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Destroyed
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.site import Site

MEAN, COSINE, RATIO, E1 = "|mean spin|", "mean cosine of spins", "participation ratio of spins", "E_1 of spins"
LENGTH = "spread of spin length in a head"


def order_parameters(field: Float[Tensor, "pos d_model"]) -> dict[str, float]:
    unit = field / field.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    gram = (unit @ unit.mT).double()
    count = len(unit)
    pairs = (gram.sum() - gram.diagonal().sum()) / (count * (count - 1))
    return {
        MEAN: float(unit.mean(0).norm()),
        COSINE: float(pairs),
        RATIO: float(gram.diagonal().sum().square() / gram.square().sum()),
        E1: float(gram.exp().mean()),
    }


def length_spread(part: Float[Tensor, "_head pos _size"]) -> Float[Tensor, "_head"]:
    """Standard deviation over mean of the lengths of tokens."""
    size = part[:, 1:].norm(dim=-1)
    return size.std(-1) / size.mean(-1).clamp(min=1e-30)


def measure(site: Site, drawn: Sequence[Destroyed], samples: Samples) -> None:
    samples.add_mean(Key(LENGTH), length_spread(site.read_field).tolist())
    for n, draw in enumerate(drawn):
        spread = length_spread((site.field @ draw.subspace)[None]).tolist() * len(site.pattern)
        samples.add_mean(Key(LENGTH, control=c.SUBSPACE, draw=n), spread)
    for name, value in order_parameters(site.field[1:]).items():
        samples.add(Key(name), value)
