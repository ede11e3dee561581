"""The articles' claims, each with its test, what this model says, and a verdict that is computed from it.

Claims are of *Transformers are secretly collectives of spin systems* (the article) and of the pattern and
message article. A verdict sums up the rows that test the claim over the layers measured: `informative` where at
least a third of the layers are, `weak` where some layer is informative or weak, `vacuous` where none is. It says
that the test tells something, not that the claim is right: the finding counts rows for and against it.
Exact identities are checked by their error on this model's own numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import torch

from mechview.checks import layer_parity
from mechview.models.load import Model
from mechview.models.norms import centred
from mechview.results import Result
from mechview.spins.layers import balance, energies, ladder, ladder_mlp, maxwell, order, reaction, relaxation, structure
from mechview.spins.layers import controls as c
from mechview.spins.layers.fit import SpinLayers, recorded_ids
from mechview.spins.layers.site import layer_of, site_of
from mechview.spins.layers.verdicts import SMALL, SpinRow, Verdict
from mechview.spins.single import zero_temperature

SUPPORTS = {  # which side of its null speaks for the claim that a quantity tests
    reaction.NEGATIVE: 1, energies.ERASURE: -1, energies.DESCENT: 1, structure.ALIGNMENT: 1, structure.COPYING: 1,
    balance.CURL: -1, maxwell.MLP: 1, maxwell.ATTENTION: 1, maxwell.BLOCK: 1, reaction.SHARE: 1,
    relaxation.FROZEN: -1, relaxation.HELD: -1, relaxation.RECOMPUTED: -1,
}  # fmt: skip
EXACT = 1e-4  # largest relative error of an identity in single precision


@dataclass(frozen=True)
class Claim:
    """One claim: who makes it, how it is tested, what was found here, and the verdict."""

    claim: str
    source: str
    test: str
    finding: str
    verdict: str


@dataclass(frozen=True)
class Claims(Result):
    """Table E on one model."""

    claims: tuple[Claim, ...]
    model: str = ""
    revision: str | None = None


def claims(model: Model, found: SpinLayers) -> Claims:
    """Judge every claim by the rows of a fit, and the identities by the model's own pass."""
    return Claims(
        claims=tuple(made(model, found) for made in CLAIMS),
        model=found.model,
        revision=found.revision,
    )


def gathered(found: SpinLayers, *quantities: str, heads: bool = False) -> list[SpinRow]:
    """One row a layer (or head) and quantity: raw, against the control that decides."""
    rows: dict[tuple[str, int, int | None], SpinRow] = {}
    for row in found.rows:
        if row.quantity in quantities and row.metric == "raw" and (row.head is not None) == heads:
            key = (row.quantity, row.layer, row.head)
            if key not in rows or row.decides:
                rows[key] = row
    return list(rows.values())


def summed(rows: Iterable[SpinRow]) -> str:
    """The verdict of several rows together."""
    counts = Counter(row.verdict for row in rows if row.verdict != Verdict.not_applicable)
    total = sum(counts.values())
    if not total:
        return Verdict.not_applicable.value
    if counts[Verdict.informative.value] * 3 >= total:
        return Verdict.informative.value
    some = counts[Verdict.informative.value] + counts[Verdict.weak.value]
    return Verdict.weak.value if some else Verdict.vacuous.value


def told(name: str, rows: list[SpinRow]) -> str:
    """Median and range of a quantity beside its null, and how many rows came out how."""
    if not rows:
        return f"{name}: not measured on this model"
    values, nulls = [row.value for row in rows], [row.null for row in rows]
    counts = Counter(row.verdict for row in rows)
    name += sided(name, rows)
    what = "heads" if rows[0].head is not None else "layers"
    verdicts = ", ".join(f"{counts[v.value]} {v.value}" for v in Verdict if counts[v.value])
    return (
        f"{name}: median {median(values):.3f} ({min(values):.3f} to {max(values):.3f}), null {median(nulls):.3f}; "
        f"{verdicts} of {len(rows)} {what}"
    )


def sided(name: str, rows: list[SpinRow]) -> str:
    """How many informative rows lie on the claim's side of their null, and how many on the other."""
    if name not in SUPPORTS:
        return ""
    signs = [(row.value - row.null) * SUPPORTS[name] > 0 for row in rows if row.verdict == Verdict.informative]
    return f" ({sum(signs)} informative for the claim, {len(signs) - sum(signs)} against it)"


Made = Callable[[Model, SpinLayers], Claim]


def by_rows(claim: str, source: str, test: str, *quantities: str, heads: bool = False) -> Made:
    """A claim that rows decide."""

    def made(_: Model, found: SpinLayers) -> Claim:
        groups = [gathered(found, name, heads=heads) for name in quantities]
        finding = "; ".join(told(name, rows) for name, rows in zip(quantities, groups, strict=True))
        return Claim(claim, source, test, finding, summed(row for rows in groups for row in rows))

    return made


def input_dependent(_: Model, found: SpinLayers) -> Claim:
    """H3 with the layer's own pattern against another sequence's and the layer's before (N2)."""
    rows = [r for r in found.rows if (r.quantity, r.metric) == (ladder.H3, "raw") and r.null_name.startswith("N2")]
    by_layer: dict[int, list[SpinRow]] = {}
    for row in rows:
        by_layer.setdefault(row.layer, []).append(row)
    won = [layer for layer, each in by_layer.items() if all(row.lo > row.null_hi for row in each)]
    finding = f"own pattern better than both others in {len(won)} of {len(by_layer)} layers; " + told(ladder.H3, rows)
    verdict = Verdict.weak if won else Verdict.vacuous
    if not rows:
        verdict = Verdict.not_applicable
    elif len(won) * 3 >= len(by_layer) and max(row.value - row.null for row in rows) >= SMALL:
        verdict = Verdict.informative
    test = "H3 with the pattern of another sequence, or of the layer before"
    return Claim("couplings depend on the input (7)", ARTICLE, test, finding, verdict.value)


def hopfield_identity(model: Model, found: SpinLayers) -> Claim:
    """(1) is a unit gradient step of the corrected (2), on this model's own queries and keys."""
    seen = recorded_ids(model)
    site = site_of(seen, layer_of(model.weights, found.layers[0], torch.float64, model.device))
    beta, keys = site.layer.attention.scale, site.key[0]
    query = site.query[0].clone().requires_grad_()
    with torch.enable_grad():
        energy = query.square().sum() / 2 - torch.logsumexp(beta * query @ keys.mT, -1).sum() / beta
        [slope] = torch.autograd.grad(energy, query)
    step, update = (query - slope).detach(), (beta * site.query[0] @ keys.mT).softmax(-1) @ keys
    error = float((step - update).abs().max() / update.abs().max())
    finding = f"relative error {error:.1e} on L{found.layers[0]}H0; an identity for any keys, so no evidence"
    verdict = Verdict.vacuous if error < EXACT else Verdict.not_applicable
    return Claim(
        "attention is one gradient step of (2)",
        ARTICLE,
        "(1) = q - dE/dq with the corrected (2)",
        finding,
        verdict.value,
    )


def norm_is_constraint(model: Model, found: SpinLayers) -> Claim:
    """The norm is the response at zero temperature (an identity); what it fixes is not the length that a head sees."""
    site = site_of(recorded_ids(model), layer_of(model.weights, found.layers[0], torch.float64, model.device))
    rows, norm = gathered(found, order.LENGTH, heads=True), site.layer.attention.norm
    finding = "this block reads the stream without a norm; "
    if norm.kind != "none":
        limit = zero_temperature(centred(site.stream, norm))
        error = float((limit - site.field).abs().max() / site.field.abs().max())
        finding = f"norm against the response at zero temperature: relative error {error:.1e}, of the norm's epsilon; "
    test = "RMSNorm is the response at infinite beta; spread of spin length over tokens in a head's read subspace"
    finding += told(order.LENGTH, rows)
    return Claim("normalisation is the spin constraint", ARTICLE, test, finding, summed(rows))


def heads_add_up(model: Model, found: SpinLayers) -> Claim:
    """Pattern times message, summed over heads, is what attention put out."""
    seen = recorded_ids(model)
    rows = [row for layer in found.layers for row in layer_parity(seen, layer, seen.stack)]
    worst = max(row.error for row in rows if row.quantity in ("message", "attention"))
    verdict = Verdict.informative if worst < EXACT else Verdict.not_applicable
    return Claim(
        "QK^T V O = pattern x message, heads add up", MESSAGES, "sum of head writes against the model's own",
        f"largest relative error {worst:.1e} in the layers measured", verdict.value,
    )  # fmt: skip


def training_shapes(_: Model, found: SpinLayers) -> Claim:
    """How many layer quantities lie outside what the permuted and the fresh model give."""
    pairs: dict[tuple[str, int], list[bool]] = {}
    for row in found.rows:
        if row.head is None and row.metric == "raw" and row.null_name in (c.PERMUTED, c.INITIAL):
            apart = row.hi < row.null_lo or row.lo > row.null_hi
            pairs.setdefault((row.quantity, row.layer), []).append(apart)
    test = "every number beside a permuted (N4) and a fresh model (N5)"
    claim = "training shapes collective behaviour (10)"
    if not pairs:
        return Claim(claim, ARTICLE, test, "whole-model controls were not run", Verdict.not_applicable.value)
    count = sum(all(each) for each in pairs.values())
    verdict = Verdict.informative if count * 2 > len(pairs) else Verdict.weak if count else Verdict.vacuous
    return Claim(claim, ARTICLE, test, f"{count} of {len(pairs)} numbers differ from both", verdict.value)


def elsewhere(claim: str, test: str) -> Made:
    """A claim about memory, which another verb measures."""

    def made(_: Model, __: SpinLayers) -> Claim:
        finding = "not measured here: it compares the stream with an LSTM's cell (mechview memory)"
        return Claim(claim, MESSAGES, test, finding, Verdict.not_applicable.value)

    return made


ARTICLE, MESSAGES = "the article", "pattern and message"
CLAIMS: tuple[Made, ...] = (
    hopfield_identity,
    by_rows("heads retrieve: their writes descend their energy", ARTICLE, "share of tokens whose energy falls, against random and other heads' writes; OV against W_K W_Q^T", energies.DESCENT, structure.ALIGNMENT, heads=True),
    by_rows("the forward pass is a magnetisation response m = -dF/dh", ARTICLE, "symmetry of token-diagonal Jacobians (Maxwell)", maxwell.MLP, maxwell.ATTENTION, maxwell.BLOCK),
    by_rows("the residual stream is the external field", ARTICLE, "H1: the normalised stream predicts the write (the identity's R2 is refused)", ladder.H1),
    by_rows("token mixing is by scalar couplings, whole space", ARTICLE, "H3 against shuffled patterns and rotated values", ladder.H3),
    by_rows("token mixing is by scalar couplings, inside a head's subspace", ARTICLE, "H4 READ of single heads; copying score", ladder.READ, structure.COPYING, heads=True),
    norm_is_constraint,
    by_rows("channel mixing is an Onsager term, scalar", ARTICLE, "M1 and M2 against exchanged hidden units and shuffled patterns", ladder_mlp.M1, ladder_mlp.M2),
    by_rows("channel mixing is an Onsager term, with a matrix", ARTICLE, "M4: symmetric share, negative mass; erasure of the layer's own attention write", reaction.SHARE, reaction.NEGATIVE, energies.ERASURE),
    by_rows("the FFN is the coupling-derivative term of (8)", ARTICLE, "M3, full and causal, against shuffled correlations", ladder_mlp.M3, ladder_mlp.M3C),
    input_dependent,
    by_rows("equilibrium needs symmetric couplings; attention has none", "SMT", "curl of unmasked logits against rotated keys; symmetry of W_QK", balance.CURL, structure.QK),
    by_rows("layers relax towards fixed points", "the article, DIA, NEQ", "second step of a block against another token's update", relaxation.HELD, relaxation.FROZEN, relaxation.RECOMPUTED),
    by_rows("one step is a transient, not an under-converged fixed point", "NEQ", "loss change of K = 0 and K = 2", *relaxation.LOSS.values()),
    training_shapes,
    heads_add_up,
    elsewhere("the cell state is the residual stream", "exact decompositions of both"),
    elsewhere("the input gate is the pattern", "retention times gate against attention over lag"),
    elsewhere("the output gate is the message", "both mappings; emission coherence"),
    elsewhere("transformers never forget", "effective forget gates, retention, nulls"),
)  # fmt: skip
