"""Hr and Mr: dense linear baselines that the ladder's rungs are read against, never evidence themselves.

`xh -> a`, `[xh, Abar xh] -> a`, `n2 -> u` and `xh -> Delta`, each a ridge regression; the model's own
attention and MLP would score exactly 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechview.models.norms import apply_norm
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.linear import LinearFit, Sums, fitted, put, sums
from mechview.spins.layers.moments import METRICS
from mechview.spins.layers.site import Site

SELF, MEAN_FIELD = "Hr ridge on xh", "Hr ridge on [xh, Abar xh]"
EACH = 4
MLP, BLOCK = "Mr ridge on n2", "block: ridge on xh"

BASELINES = (SELF, MEAN_FIELD, MLP, BLOCK)


@dataclass
class Baselines:
    """Sums of the four regressions of one layer, by name and metric."""

    blocks: dict[tuple[str, str], list[Sums]] = field(default_factory=dict)
    fits: dict[tuple[str, str], LinearFit] = field(default_factory=dict)

    def train(self, site: Site, number: int) -> None:
        for name, x, y in regressions(site):
            for metric in METRICS:
                kept = int(number % EACH == 1)  # every fourth sequence chooses the ridge
                put(self.blocks.setdefault((name, metric), []), kept, sums(x[1:], y[1:], metric == "tw"))

    def ready(self) -> None:
        for key, blocks in self.blocks.items():
            self.fits[key] = fitted(blocks, kept=1)[1]["general"]
        self.blocks.clear()

    def test(self, site: Site, samples: Samples) -> None:
        for name, x, y in regressions(site):
            for metric in METRICS:
                error, own = self.fits[name, metric].residuals(x[1:], y[1:], metric == "tw")
                samples.add(Key(name, metric=metric), own - error, own)


def regressions(site: Site) -> Iterator[tuple[str, Tensor, Tensor]]:
    mean = site.pattern.mean(0) @ site.field
    yield SELF, site.field, site.attention_write
    yield MEAN_FIELD, torch.cat([site.field, mean], dim=-1), site.attention_write
    if site.mlp_write is not None and site.layer.mlp is not None:
        yield MLP, apply_norm(site.mlp_stream, site.layer.mlp.norm), site.mlp_write
        yield BLOCK, site.field, site.attention_write + site.mlp_write
