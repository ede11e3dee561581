"""What a head's weights alone say: symmetry of QK and OV, copying, isotropy, alignment of OV with its energy.

All from `d_head x d_head` products of the folded factors, at offset 0 for rotary heads. `symmetric_fraction
= (1 + tr(BB)/|B|^2)/2`. If attention were the gradient step of its own energy, with row weights `W_V W_O`
would be proportional to `W_K W_Q^T`. Nulls: keys (QK) or values (OV) turned by a random orthogonal matrix.
Saponati et al. 2025 (symmetry and directionality of W_QK).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Destroyed
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.site import Layer

QK, OV = "symmetric fraction of W_QK", "symmetric fraction of OV"
DIRECTION, COPYING = "directionality of W_QK", "copying score of OV"
ISOTROPY, ALIGNMENT = "isotropy R2 of OV", "cosine of OV with its energy"


def symmetric_fraction(
    left: Float[Tensor, "*batch d_model d_head"], right: Float[Tensor, "*batch d_model d_head"]
) -> Float[Tensor, "*batch"]:
    """Of `B = left right^T`."""
    inner = right.mT @ left
    trace = (inner * inner.mT).sum((-1, -2))
    return (1 + trace / _square(left, right)) / 2


def copying(reads: Float[Tensor, "*batch d_model d_head"], outputs: Float[Tensor, "*batch d_head d_model"]) -> Tensor:
    """Real part of the sum of eigenvalues over the sum of their moduli."""
    values = torch.linalg.eigvals((outputs @ reads).double())
    return values.real.sum(-1) / values.abs().sum(-1).clamp(min=1e-30)


def isotropy(reads: Float[Tensor, "*batch d_model d_head"], outputs: Float[Tensor, "*batch d_head d_model"]) -> Tensor:
    """`(Re sum eig)^2 / (d_head |OV|^2)`: what one scalar explains of OV in its own subspace for isotropic fields."""
    trace = (outputs @ reads).diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace.square() / (reads.shape[-1] * _square(reads, outputs.mT))


def alignment(layer: Layer, reads: Tensor, key_read: Tensor) -> Float[Tensor, "head"]:
    """Frobenius cosine of `W_V W_O` with `W_K W_Q^T`."""
    outputs, query = layer.outputs, layer.query_read
    product = ((reads.mT @ key_read) * (outputs @ query)).sum((-1, -2))
    return product / (_square(reads, outputs.mT) * _square(key_read, query)).sqrt()


def directionality(query: Float[Tensor, "head d_model d_head"], key: Float[Tensor, "head d_model d_head"]) -> Tensor:
    """Excess of column norms over their mean + 2 sd less that of row norms, over both; 0 where neither has any."""
    rows = ((query @ (key.mT @ key)) * query).sum(-1).clamp(min=0).sqrt()
    columns = ((key @ (query.mT @ query)) * key).sum(-1).clamp(min=0).sqrt()
    over_rows, over_columns = (_excess(norms) for norms in (rows, columns))
    return (over_columns - over_rows) / (over_columns + over_rows).clamp(min=1e-30)


def measure(layer: Layer, drawn: list[Destroyed], samples: Samples) -> None:
    _weights(layer, layer.reads, layer.key_read, None, samples)
    for n, draw in enumerate(drawn):
        turned_values, turned_keys = (
            layer.reads @ draw.values.to(layer.reads),
            layer.key_read @ draw.keys.to(layer.reads),
        )
        _weights(layer, turned_values, turned_keys, n, samples)


def _weights(layer: Layer, reads: Tensor, keys: Tensor, draw: int | None, samples: Samples) -> None:
    of_keys, of_values = (c.REAL, c.REAL) if draw is None else (c.KEYS, c.VALUES)
    found = {
        QK: (symmetric_fraction(layer.query_read, keys), of_keys),
        DIRECTION: (directionality(layer.query_read, keys), of_keys),
        OV: (symmetric_fraction(reads, layer.outputs.mT), of_values),
        COPYING: (copying(reads, layer.outputs), of_values),
        ISOTROPY: (isotropy(reads, layer.outputs), of_values),
        ALIGNMENT: (alignment(layer, reads, keys), of_keys),
    }
    for name, (values, control) in found.items():
        samples.add_mean(Key(name, control=control, draw=draw or 0), values.tolist())


def _square(left: Tensor, right: Tensor) -> Tensor:
    """`|left right^T|^2`."""
    return ((left.mT @ left) * (right.mT @ right)).sum((-1, -2)).clamp(min=1e-30)


def _excess(norms: Float[Tensor, "head d_model"]) -> Float[Tensor, "head"]:
    bound = norms.mean(-1, keepdim=True) + 2 * norms.std(-1, keepdim=True)
    return torch.where(norms > bound, norms, torch.zeros_like(norms)).sum(-1)
