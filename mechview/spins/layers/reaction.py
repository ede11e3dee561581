"""M4 and M5: the linear part of the MLP as a matrix reaction `u = xh' M`, and how much of it opposes the field.

The general map is compared with the best symmetric and the best antisymmetric one; `s(M)` is the symmetric
share of the general map and the negative mass the squared share of negative eigenvalues of its symmetric
half (an Onsager term with a matrix V would be symmetric and negative). N3 exchanges hidden units before
`W_down`; all its draws come of the same pass, for `X^T u~ = (X^T h)[:, units] W_down`. In the metric `tw`
a null token keeps the weight of the real one. Spread of `s(M)` and of the mass: jackknife over blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.models.norms import fold_write
from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Destroyed
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.linear import (
    BLOCKS,
    Basis,
    LinearFit,
    Part,
    Sums,
    added,
    fitted,
    negative_share,
    put,
    ridged,
    sums,
    symmetric_share,
)
from mechview.spins.layers.moments import token_weight
from mechview.spins.layers.site import Layer, Site

PARTS: tuple[Part, ...] = ("general", "symmetric", "antisymmetric")
REACTION = {part: f"M4 {part} reaction" for part in PARTS}
SHARE, NEGATIVE, TRACE = "M4 symmetric share s(M)", "M5 negative eigen-mass", "M4 normalised trace"


@dataclass
class Reaction:
    """Sums of one layer: real blocks by metric, hidden units for the nulls, and the test sequences' totals."""

    blocks: dict[str, list[Sums]] = field(default_factory=lambda: {"raw": [], "tw": []})
    hidden: dict[str, Sums] = field(default_factory=dict)
    hidden_test: dict[str, tuple[Sums, Tensor]] = field(default_factory=dict)
    fits: dict[str, tuple[Basis, dict[Part, LinearFit]]] = field(default_factory=dict)

    def train(self, site: Site, number: int) -> None:
        if site.mlp_write is None:
            return
        for metric, weighted in (("raw", False), ("tw", True)):
            put(self.blocks[metric], number % BLOCKS, sums(site.mlp_field[1:], site.mlp_write[1:], weighted))
            if (read := hidden_sums(site, weighted)) is not None:
                self.hidden[metric] = self.hidden[metric] + read if metric in self.hidden else read

    def ready(self) -> None:
        """Fit, once all training sequences are in."""
        self.fits = {metric: fitted(blocks, PARTS) for metric, blocks in self.blocks.items() if blocks}

    def test(self, site: Site, samples: Samples) -> None:
        for metric, (_, fits) in self.fits.items():
            if site.mlp_write is None:
                continue
            for part, found in fits.items():
                error, own = found.residuals(site.mlp_field[1:], site.mlp_write[1:], metric == "tw")
                samples.add(Key(REACTION[part], metric=metric), own - error, own)
            if (read := hidden_sums(site, metric == "tw")) is not None:
                square = hidden_square(site, metric == "tw")
                before = self.hidden_test.get(metric)
                self.hidden_test[metric] = (read, square) if before is None else (before[0] + read, before[1] + square)

    def nulls(self, layer: Layer, drawn: Sequence[Destroyed], samples: Samples) -> dict[str, Tensor]:
        """Null series of every reaction number, and the eigenvalues of the null symmetric halves by metric."""
        spectra: dict[str, list[Tensor]] = {}
        for metric, (at, fits) in self.fits.items():
            if metric not in self.hidden or layer.mlp is None:
                continue
            for n, draw in enumerate(drawn):
                swapped = exchanged(self.hidden[metric], layer, draw.units)
                mean_x, mean_y = swapped.x / swapped.count, swapped.y / swapped.count
                cross = swapped.centred(mean_x, mean_y)[1]
                found = {
                    part: LinearFit(at.matrix(cross, part, fit.ridge), mean_x, mean_y, fit.ridge)
                    for part, fit in fits.items()
                }
                self._score(layer, metric, n, draw, found, samples)
                values = torch.linalg.eigvalsh((found["general"].matrix + found["general"].matrix.mT) / 2)
                spectra.setdefault(metric, []).append(values)
                self._shape(found["general"].matrix, values, Key("", metric=metric, control=c.HIDDEN, draw=n), samples)
        return {metric: torch.stack(values) for metric, values in spectra.items()}

    def _score(
        self, layer: Layer, metric: str, n: int, draw: Destroyed, found: dict[Part, LinearFit], samples: Samples
    ) -> None:
        if metric not in self.hidden_test:
            return
        read, square = self.hidden_test[metric]
        test = exchanged(read, layer, draw.units, square)
        for part, fit in found.items():
            error, own = fit.errors(test)
            samples.add(Key(REACTION[part], metric=metric, control=c.HIDDEN, draw=n), own - error, own)

    def _shape(self, M: Tensor, values: Tensor, key: Key, samples: Samples) -> None:
        samples.add(key._replace(quantity=SHARE), symmetric_share(M))
        samples.add(key._replace(quantity=NEGATIVE), negative_share(values))
        samples.add(key._replace(quantity=TRACE), float(M.trace() / (M.norm().clamp(min=1e-300) * len(M) ** 0.5)))

    def shapes(self, samples: Samples) -> dict[str, Tensor]:
        """Real `s(M)`, negative mass and trace, and the spectrum by metric."""
        spectra = {}
        for metric, (_, fits) in self.fits.items():
            M = fits["general"].matrix
            spectra[metric] = torch.linalg.eigvalsh((M + M.mT) / 2)
            self._shape(M, spectra[metric], Key("", metric=metric), samples)
        return spectra

    def spread(self, metric: str) -> dict[str, float]:
        """Jackknife standard errors of what has no per-sequence value."""
        blocks = self.blocks[metric]
        if len(blocks) < 3:
            return {}
        total, ridge = added(blocks), self.fits[metric][1]["general"].ridge
        left = Samples()
        for block in blocks:
            M = ridged(total - block, ridge)
            self._shape(M, torch.linalg.eigvalsh((M + M.mT) / 2), Key("", metric=metric), left)
        found = {}
        for key, pairs in left.series.items():
            numbers = torch.tensor([num for num, _ in pairs], dtype=torch.float64)
            found[key.quantity] = float(
                ((len(pairs) - 1) / len(pairs) * (numbers - numbers.mean()).square().sum()).sqrt()
            )
        return found


def hidden_sums(site: Site, weighted: bool) -> Sums | None:
    """Sums of the field against the hidden units and a constant one (for the bias), over the post-norm's scale."""
    if site.hidden is None or site.mlp_write is None:
        return None
    x, h = _weighted(site, weighted)
    return Sums(x.mT @ x, x.mT @ h, x.sum(0), h.sum(0), h.square().sum(), len(x))


def hidden_square(site: Site, weighted: bool) -> Float[Tensor, "_units _units"]:
    h = _weighted(site, weighted)[1]
    return h.mT @ h


def _weighted(site: Site, weighted: bool) -> tuple[Tensor, Tensor]:
    units = torch.cat([site.hidden, torch.ones_like(site.mlp_post_scale)], dim=-1)  # type: ignore[list-item]
    x, h = site.mlp_field[1:].double(), (units / site.mlp_post_scale)[1:].double()
    if weighted:
        weight = token_weight(site.mlp_write[1:]).double()[:, None]  # type: ignore[index]
        x, h = x * weight, h * weight
    return x, h


def exchanged(
    read: Sums, layer: Layer, units: Int[Tensor, "d_mlp"] | None, square: Float[Tensor, "_units _units"] | None = None
) -> Sums:
    """The sums of `X` against the MLP's write with its hidden units exchanged, the output bias staying."""
    mlp = layer.mlp
    if mlp is None or units is None:
        return read
    bias = torch.zeros_like(mlp.W_out[0]) if mlp.b_out is None else mlp.b_out
    W = (fold_write(torch.cat([mlp.W_out, bias[None]]), mlp.post_norm) * mlp.multiplier).double()
    order = torch.cat([units, units.new_tensor([len(units)])])
    own = read.own if square is None else (W * (square[order][:, order] @ W)).sum()
    return Sums(read.inner, read.cross[:, order] @ W, read.x, read.y[order] @ W, own, read.count)
