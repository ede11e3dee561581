"""One layer's share of the pass: sums while training sequences go by, errors while test sequences do.

Nothing is kept of a sequence but small Gram sums (added up) and a few numbers a quantity, so memory does not
grow with the text. Chance is seeded by layer and by the tokens of a sequence: neither the order of
sequences nor which layers run together changes a draw.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.spins.layers import balance, energies, maxwell, order, relaxation, structure, thermo
from mechview.spins.layers import controls as c
from mechview.spins.layers.baselines import Baselines
from mechview.spins.layers.controls import Destroyed, Null, destroyed
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.ladder import EVERY, Design, attention_designs
from mechview.spins.layers.ladder_mlp import mlp_designs
from mechview.spins.layers.moments import METRICS, Moments, ScalarFit, fit, moments, own_moments
from mechview.spins.layers.reaction import Reaction
from mechview.spins.layers.site import Layer, Site, layer_of, site_of


@dataclass(frozen=True)
class Plan:
    """How much is drawn and on how many sequences the dear quantities are measured."""

    draws: int = 20
    jacobians: int = 4
    jacobian_draws: int = 8
    relaxations: int = 6
    relaxation_draws: int = 5
    losses: int = 3
    reaction_draws: int = 8
    seed: int = 0


@dataclass
class LayerWork:
    """Everything that is measured on one layer."""

    model: Model
    layer: Layer
    plan: Plan
    drawn: list[Destroyed]
    samples: Samples = field(default_factory=Samples)
    sums: dict[Key, Moments] = field(default_factory=dict)
    fits: dict[Key, ScalarFit] = field(default_factory=dict)
    reaction: Reaction = field(default_factory=Reaction)
    baselines: Baselines = field(default_factory=Baselines)
    other: Tensor | None = None
    trained: int = 0
    tested: int = 0

    def train(self, trace: Trace) -> None:
        """Add a training sequence's sums."""
        site = site_of(trace, self.layer)
        for design in self._designs(site, trace):
            for metric, new in zip(METRICS, _moments(design), strict=True):
                key = _key(design, metric)
                self.sums[key] = self.sums[key] + new if key in self.sums else new
        self.reaction.train(site, self.trained)
        self.baselines.train(site, self.trained)
        self.other, self.trained = site.pattern, self.trained + 1

    def ready(self) -> None:
        """Fit; from here on sequences are test sequences."""
        self.fits = {key: fit(total) for key, total in self.sums.items()}
        self.sums.clear()
        self.reaction.ready()
        self.baselines.ready()
        structure.measure(self.layer, self.drawn, self.samples)

    def test(self, trace: Trace) -> None:
        """Errors of every fit on a test sequence, and the scalars on it."""
        site, generator = site_of(trace, self.layer), self._generator(trace)
        nulls = self._nulls(site, generator)
        for design in self._designs(site, trace, nulls):
            for metric, new in zip(METRICS, _moments(design), strict=True):
                key = _key(design, metric)
                if key in self.fits:
                    self._score(key, self.fits[key], new)
        self.reaction.test(site, self.samples)
        self.baselines.test(site, self.samples)
        self._scalars(site, trace, nulls, generator)
        self.other, self.tested = site.pattern, self.tested + 1

    def _score(self, key: Key, found: ScalarFit, new: Moments) -> None:
        errors, owns = found.errors(new)
        for n, (error, own) in enumerate(zip(errors.tolist(), owns.tolist(), strict=True)):
            one = key._replace(head=n) if key.head == EVERY else key._replace(draw=key.draw + n)
            self.samples.add(one, own - error, own)

    def _scalars(self, site: Site, trace: Trace, nulls: list[Null], generator: torch.Generator) -> None:
        parallel = self.model.shape.placement == "parallel"
        thermo.measure(site, nulls, self.samples)
        balance.measure(site, nulls, self.samples)
        energies.measure(site, nulls, self.samples)
        order.measure(site, self.drawn, self.samples)
        if self.tested < self.plan.jacobians:
            maxwell.measure(site, self.drawn[: self.plan.jacobian_draws], parallel, generator, self.samples)
        if self.tested < self.plan.relaxations and relaxation.possible(site):
            draws = min(self.plan.relaxation_draws, len(self.drawn))
            relaxation.measure(site, parallel, draws, generator, self.samples)
            if draws and self.tested < self.plan.losses:
                relaxation.loss_changes(self.model, trace, site, parallel, generator, self.samples)

    def finish(self) -> dict[str, Tensor]:
        """The numbers that only all sequences together have; spectra of the reaction, real and null."""
        spectra = self.reaction.shapes(self.samples)
        nulls = self.reaction.nulls(self.layer, self.drawn[: self.plan.reaction_draws], self.samples)
        return spectra | {f"{metric} null": values for metric, values in nulls.items()}

    def _designs(self, site: Site, trace: Trace, nulls: list[Null] | None = None) -> Iterator[Design]:
        nulls = self._nulls(site, self._generator(trace)) if nulls is None else nulls
        index = self.layer.index
        before = trace.attention(index - 1).pattern.to(site.pattern) if index and nulls else None
        yield from attention_designs(site, nulls, self.other if nulls else None, before)
        yield from mlp_designs(site, nulls)

    def _nulls(self, site: Site, generator: torch.Generator) -> list[Null]:
        return [Null(site, drawn, generator, n) for n, drawn in enumerate(self.drawn)]

    def _generator(self, trace: Trace) -> torch.Generator:
        ids = ",".join(str(token.id) for token in trace.tokens)
        return seeded(self.plan.seed, self.layer.index, zlib.crc32(ids.encode()))


def work_of(model: Model, index: int, plan: Plan, dtype: torch.dtype) -> LayerWork:
    layer = layer_of(model.weights, index, dtype, model.device)
    drawn = destroyed(layer, plan.draws, seeded(plan.seed, index, 0))
    return LayerWork(model, layer, plan, drawn)


def adopt(samples: Samples, null: Samples, control: str) -> None:
    """The real series of a whole-model control as one more null draw of the same quantities."""
    real = {key for key in samples.series if key.control == c.REAL}
    for key, pairs in null.series.items():
        if key in real:
            samples.series[key._replace(control=control)] = list(pairs)


def seeded(*parts: int) -> torch.Generator:
    """A generator of its own for each tuple of numbers."""
    return torch.Generator().manual_seed(zlib.crc32(repr(parts).encode()))


def _moments(design: Design) -> tuple[Moments, Moments]:
    return (own_moments if design.head == EVERY else moments)(design.predictors, design.targets)


def _key(design: Design, metric: str) -> Key:
    return Key(design.quantity, design.head, metric, design.control, design.draw)
