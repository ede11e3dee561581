"""Spin correspondences of every layer of a model, each number with an interval, its nulls and a verdict.

One pass over the sequences serves a group of layers: training sequences add to Gram sums, then the fits
are made, then test sequences (of other documents) are scored; see `work`. Quantities that could not come out
otherwise are refused with the reason (`asked`). Causal attention: nothing here is called an equilibrium free
energy of tokens; rows are Boltzmann laws of their own, and symmetrised patterns are named surrogates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mechview.errors import UsageError
from mechview.manifest import weights_digest
from mechview.models.intervene import recorded
from mechview.models.load import Model
from mechview.models.reader import check_layer
from mechview.models.trace import Trace
from mechview.models.tracing import default_prompt, finite, trace
from mechview.results import Result
from mechview.spins.layers import controls as c
from mechview.spins.layers.asked import FITS, check_quantities, chosen
from mechview.spins.layers.saved import LayerResult, Shelf, shelf
from mechview.spins.layers.site import refuse
from mechview.spins.layers.texts import LENGTH, TEST, TRAIN, Document, Sequences, sequences
from mechview.spins.layers.verdicts import Judge, SpinRow
from mechview.spins.layers.whole import initial, permuted, reordered
from mechview.spins.layers.work import LayerWork, Plan, adopt, seeded, work_of
from mechview.version import __version__

QUICK = Plan(draws=5, jacobians=2, relaxations=2, relaxation_draws=2, jacobian_draws=5, losses=2)
AT_ONCE = 1e9  # bytes of sums that layers running together may take
Told = Callable[[str], None]


@dataclass(frozen=True)
class SpinLayers(Result):
    """Rows of every layer measured; `weights` and `spectra` are by layer, then by `quantity|metric`."""

    rows: tuple[SpinRow, ...]
    weights: dict[int, dict[str, list[float]]]
    spectra: dict[int, dict[str, list[Any]]]
    layers: tuple[int, ...]
    model: str = ""
    revision: str | None = None
    documents: tuple[int, int] = (0, 0)
    sequences: tuple[int, int] = (0, 0)
    length: int = 0

    def row(
        self, quantity: str, layer: int, head: int | None = None, metric: str = "raw", null: str | None = None
    ) -> SpinRow:
        """The row of a quantity: against the control that decides, or against one named (by its beginning)."""
        rows = [r for r in self.rows if (r.quantity, r.layer, r.head, r.metric) == (quantity, layer, head, metric)]
        named = rows if null is None else [r for r in rows if r.null_name.startswith(null)]
        found = next((r for r in named if r.decides), named[0] if named else None)
        if found is None:
            raise UsageError(f"layer {layer} has no row {quantity}" + (f" against {null}" if null else ""))
        return found

    def verdicts(self, quantity: str, metric: str = "raw", heads: bool = False) -> dict[tuple[int, int | None], str]:
        """Verdict by layer and head."""
        return {
            (r.layer, r.head): r.verdict
            for r in self.rows
            if r.quantity == quantity and r.metric == metric and (r.head is not None) == heads
        }


def fit_spins(
    model: Model,
    prompts: Sequence[Document] | None = None,
    *,
    heldout: Sequence[Document] | None = None,
    layers: Iterable[int] | None = None,
    quick: bool = False,
    whole: bool | None = None,
    quantities: Sequence[str] | None = None,
    length: int = LENGTH,
    train: int = TRAIN,
    test: int = TEST,
    draws: int | None = None,
    seed: int = 0,
    generator: torch.Generator | None = None,
    folder: str | Path | None = None,
    told: Told | None = None,
) -> SpinLayers:
    """Fit the spin correspondences of each layer on some documents and test them on others.

    Args:
        prompts: documents (texts, or lists of ids); the bundled excerpts unless given.
        heldout: documents to test on; without them the last third of `prompts`.
        layers: which; all unless given.
        quick: 5 draws of every null instead of 20, 8 and 4 sequences, no whole-model controls.
        whole: also the controls N4 to N6, which are models of their own; not when `quick` unless asked.
        quantities: keep rows whose name begins with one of these words; tautologies are refused.
        length, train, test: tokens of a sequence, and how many sequences are fitted and tested on.
        folder: where finished layers are kept; a later run with the same arguments goes on from them.
        told: is called with a sentence after each step.

    Raises:
        UnsupportedError: the model is no causal decoder whose blocks add to the stream.
        PromptError: one document only, or too little text. CheckError: the pass gives NaN.
        UsageError: a layer that does not exist, or a quantity that is refused.
    """
    wanted = check_quantities(quantities)
    refuse(model.weights)
    chosen_layers = _layers(model, layers)
    if quick:
        train, test = min(train, 8), min(test, 4)
    seed = seed if generator is None else int(torch.randint(2**31, (1,), generator=generator))
    plan = replace(QUICK if quick else Plan(), seed=seed)
    if draws is not None:
        if draws < 2:
            raise UsageError(f"a null of {draws} draws has no spread; give at least 2")
        plan = replace(plan, draws=draws)
    text = sequences(model, prompts, heldout, length=length, train=train, test=test)
    run = Run(model, text, plan, not quick if whole is None else whole, told or (lambda _: None))
    results = run.layers(chosen_layers, shelf(folder, run.about()))
    return _result(model, text, results, wanted)


@dataclass(frozen=True)
class Run:
    """What is run on what; a group of layers shares one pass over the sequences."""

    model: Model
    text: Sequences
    plan: Plan
    whole: bool
    told: Told

    def about(self) -> dict[str, Any]:
        """What makes two runs the same: model, sequences, plan."""
        facts = {
            "mechview": __version__,
            "model": self.model.name,
            "weights": weights_digest(self.model),
            "revision": self.model.source.revision,
        }
        return facts | {"plan": asdict(self.plan), "text": asdict(self.text), "whole": self.whole}

    def layers(self, wanted: Sequence[int], kept: Shelf | None) -> list[LayerResult]:
        found = {n: old for n in wanted if kept is not None and (old := kept.read(n)) is not None}
        todo = [n for n in wanted if n not in found]
        size = self._at_once()
        for start in range(0, len(todo), size):
            for result in self._group(todo[start : start + size]):
                found[result.layer] = result
                if kept is not None:
                    kept.write(result)
        return [found[n] for n in wanted]

    @torch.no_grad()
    def _group(self, layers: Sequence[int]) -> list[LayerResult]:
        name = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
        works = self._passed(self.model, layers, self.plan, name)
        spectra = {work.layer.index: work.finish() for work in works}
        for control, other in self._controls() if self.whole else ():
            shadow = replace(self.plan, draws=0, jacobians=2, relaxations=2)
            for work, null in zip(works, self._passed(other, layers, shadow, f"{name}, {control}"), strict=True):
                null.finish()
                adopt(work.samples, null.samples, control)
        return [self._judged(work, spectra[work.layer.index]) for work in works]

    def _passed(self, model: Model, layers: Sequence[int], plan: Plan, name: str) -> list[LayerWork]:
        """Both halves of the pass."""
        works: list[LayerWork] = []
        total = len(self.text.train) + len(self.text.test)
        for n, ids in enumerate((*self.text.train, *self.text.test)):
            short = n < len(self.text.train) or n >= len(self.text.train) + plan.losses
            seen = _trace(model, ids, max(layers) if short else None)
            if not works:
                dtype = seen.stream(layers[0]).dtype
                dtype = dtype if dtype in (torch.float32, torch.float64) else torch.float32
                works = [work_of(model, index, plan, dtype) for index in layers]
            for work in works:
                if n == len(self.text.train):
                    work.ready()
                (work.train if n < len(self.text.train) else work.test)(seen)
            self.told(f"{name}: sequence {n + 1} of {total}")
        return works

    def _controls(self) -> Iterable[tuple[str, Model]]:
        makers = [(c.PERMUTED, permuted), (c.INITIAL, initial)]
        makers += [(c.LAYERS, reordered)] if self.model.shape.n_layers > 1 else []
        for number, (name, make) in enumerate(makers):
            yield name, make(self.model, seeded(self.plan.seed, -1, number))

    def _judged(self, work: LayerWork, spectra: dict[str, torch.Tensor]) -> LayerResult:
        spreads = {(name, m): sd for m in work.reaction.fits for name, sd in work.reaction.spread(m).items()}
        judge = Judge(seeded(self.plan.seed, work.layer.index, -2), self.model.shape.n_layers, spreads=spreads)
        weights = {
            f"{key.quantity}|{key.metric}" + ("" if key.head is None else f"|{key.head}"): fit.weights[0].tolist()
            for key, fit in work.fits.items()
            if key.control == c.REAL
        }
        rows = tuple(judge.rows(work.layer.index, work.samples, FITS))
        return LayerResult(work.layer.index, rows, weights, {name: value.tolist() for name, value in spectra.items()})

    def _at_once(self) -> int:
        """How many layers' sums fit the memory allowed."""
        d, hidden = self.model.shape.d_model, self.model.shape.d_mlp
        one = 8 * (2 * 16 * d * d + 2 * 2 * 12 * d * d + 2 * (d * hidden + hidden * hidden))
        one += 8 * 2 * self.plan.draws * 80 * d * (8 + self.model.shape.n_heads) // 8
        return max(1, int(AT_ONCE // max(one, 1)))


def _trace(model: Model, ids: Sequence[int], last: int | None) -> Trace:
    """A pass, up to the last layer that is looked at where later ones are not needed for a loss."""
    if model.source.kind == "bridge":
        return trace(model, list(ids))
    found = recorded(model, list(ids), last=last)
    finite(found.capture)
    return found


def recorded_ids(model: Model) -> Trace:
    """One pass over the default prompt, for identities that are checked on any numbers."""
    return recorded(model, default_prompt(model))


def _layers(model: Model, layers: Iterable[int] | None) -> list[int]:
    wanted = list(range(model.shape.n_layers)) if layers is None else list(dict.fromkeys(layers))
    for layer in wanted:
        check_layer(model.shape, layer, None)
    if not wanted:
        raise UsageError("no layer is asked for")
    return wanted


def _result(model: Model, text: Sequences, results: Sequence[LayerResult], wanted: Sequence[str] | None) -> SpinLayers:
    rows = [row for result in results for row in result.rows]
    names = chosen(frozenset(row.quantity for row in rows), wanted)
    return SpinLayers(
        rows=tuple(row for row in rows if row.quantity in names),
        weights={result.layer: result.weights for result in results},
        spectra={result.layer: result.spectra for result in results},
        layers=tuple(result.layer for result in results),
        model=model.name,
        revision=model.source.revision,
        documents=text.documents,
        sequences=(len(text.train), len(text.test)),
        length=text.length,
    )
