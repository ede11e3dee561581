"""Two models: exact zeros, edited heads first, maps against dense matrices, contributions on prompts."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import scipy.linalg
import torch

import families
import mechview as mv
from conftest import family
from mechview.errors import UsageError
from mechview.models.prompt_tables import Case
from mechview.residual.compare import compare
from mechview.residual.compare_rows import COLUMNS
from mechview.residual.ledger import ledger
from mechview.residual.shares import shares

MAPS = ("pattern", "message", "pattern_affine", "message_affine")
D_HEAD = 8  # of the tiny Llama: 48 / 6


@pytest.fixture(scope="module")
def base():
    return family("llama")


def edited(module, change):
    """A model like the given one with one thing changed."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        change(twin)
    return mv.wrap(twin, name="edited")


def moved(rows):
    """Components whose maps or weights differ at all."""
    return {row.component for row in rows if row.quantity in (*MAPS, "weights") and row.delta != 0.0}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bert", "t5", "olmo2", "mixtral", "cohere_qk_norm"])
def test_a_model_and_its_copy_are_identical(name):
    model, module = family(name)
    found = compare(model, mv.wrap(copy.deepcopy(module), name="copy"))
    assert found.identical
    assert found.notes[0] == "identical"
    assert {row.delta for row in found.rows} == {row.rel for row in found.rows} == {0.0}
    assert {row.side_b for row in found.rows if row.quantity.endswith("_cosine")} == {1.0}
    assert {standing.size for standing in found.ranked()} == {0.0}


def test_an_edited_message_is_ranked_first(base):
    model, module = base

    def change(twin):
        twin.model.layers[1].self_attn.o_proj.weight[:, 4 * D_HEAD : 5 * D_HEAD] *= 1.01

    found = compare(model, edited(module, change))
    assert not found.identical
    assert found.ranked()[0].component == "L1H4"
    assert found.ranked()[0].size == pytest.approx(0.01, rel=1e-4)
    assert moved(found.rows) == {"L1H4"}
    row = {r.quantity: r for r in found.rows if r.component == "L1H4"}
    assert row["message_cosine"].side_b == pytest.approx(1.0, abs=1e-12)
    assert row["message_spectrum"].rel == pytest.approx(0.01, rel=1e-4)
    assert row["write_angle"].side_b == pytest.approx(0.0, abs=1e-4)
    assert row["pattern"].delta == 0.0


def test_an_edited_pattern_is_ranked_first(base):
    model, module = base

    def change(twin):
        twin.model.layers[0].self_attn.q_proj.weight[2 * D_HEAD] += 0.3

    found = compare(model, edited(module, change))
    assert found.ranked()[0].component == "L0H2"
    assert moved(found.rows) == {"L0H2"}
    changed = {r.quantity for r in found.rows if abs(r.delta) > 1e-12}
    assert changed == {"pattern", "pattern_cosine", "pattern_spectrum", "query_angle"}  # keys are read as before


@pytest.mark.parametrize(("projection", "side"), [("k_proj", "pattern"), ("v_proj", "message")])
def test_an_edited_kv_head_shows_in_all_its_query_heads(base, projection, side):
    model, module = base

    def change(twin):
        getattr(twin.model.layers[1].self_attn, projection).weight[D_HEAD : 2 * D_HEAD] *= 1.5

    found = compare(model, edited(module, change))
    assert moved(found.rows) == {"L1H3", "L1H4", "L1H5"}
    assert {s.component for s in found.ranked()[:3]} == {"L1H3", "L1H4", "L1H5"}
    assert {r.kv_head for r in found.of(side) if r.delta != 0.0} == {1}


def test_what_belongs_to_no_head_has_rows_too(base):
    model, module = base
    mlp = compare(model, edited(module, lambda twin: twin.model.layers[0].mlp.up_proj.weight.mul_(1.1)))
    assert moved(mlp.rows) == {"L0.mlp"} == {mlp.ranked()[0].component}
    ends = compare(model, edited(module, lambda twin: twin.model.norm.weight.add_(0.1)))
    assert moved(ends.rows) == {"ends"}
    gain = compare(model, edited(module, lambda twin: twin.model.layers[1].input_layernorm.weight.add_(0.1)))
    assert moved(gain.rows) == {"L1.attn", *(f"L1H{n}" for n in range(6))}
    assert moved(compare(model, gain_of(module), fold=False).rows) == {"L1.attn"}


def gain_of(module):
    return edited(module, lambda twin: twin.model.layers[1].input_layernorm.weight.add_(0.1))


def test_a_bias_of_one_head_is_ranked_by_the_affine_map():
    model, module = family("gpt2")

    def change(twin):
        twin.transformer.h[1].attn.c_attn.bias[2 * 12 : 3 * 12] += 0.5

    found = compare(model, edited(module, change))
    assert moved(found.rows) == {"L1H2"}
    assert {r.quantity for r in found.rows if r.delta != 0.0} == {"pattern_affine"}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_numbers_are_those_of_dense_matrices(name):
    model, module = family(name)
    other = mv.wrap(families.perturb(copy.deepcopy(module), seed=9), name="other")
    found = {(r.component, r.quantity): r for r in compare(model, other, offset=2).rows}
    for label, layer, head in (("L0H0", 0, 0), ("L1H3", 1, 3)):
        f, g = (mv.head_factors(m, layer=layer, head=head) for m in (model, other))
        at = 2 if f.needs_offset else None
        for side, low, high in (("pattern", f.pattern(at), g.pattern(at)), ("message", f.message, g.message)):
            A, B = low.left.double() @ low.right.double(), high.left.double() @ high.right.double()
            assert found[label, side].delta == pytest.approx(float((B - A).norm()), rel=1e-6)
            assert found[label, side].rel == pytest.approx(float((B - A).norm() / A.norm()), rel=1e-6)
            cosine = float((A * B).sum() / A.norm() / B.norm())
            assert found[label, f"{side}_cosine"].side_b == pytest.approx(cosine, abs=1e-9)
            rank = low.left.shape[1]
            S = [torch.linalg.svdvals(X)[:rank] for X in (A, B)]
            assert found[label, f"{side}_spectrum"].delta == pytest.approx(float((S[1] - S[0]).norm()), rel=1e-6)
            names = ("query_angle", "key_angle") if side == "pattern" else ("read_angle", "write_angle")
            angles = [
                scipy.linalg.subspace_angles(x.double().numpy(), y.double().numpy())[0]
                for x, y in ((low.left, high.left), (low.right.mT, high.right.mT))
            ]
            for quantity, angle in zip(names, angles, strict=True):
                assert found[label, quantity].side_b == pytest.approx(math.degrees(angle), abs=1e-5)


def test_a_stated_offset_changes_rotary_patterns_and_is_said(base):
    model, module = base
    other = mv.wrap(families.perturb(copy.deepcopy(module), seed=9), name="other")
    near, far = compare(model, other, offset=0), compare(model, other, offset=7)
    assert "rotary patterns are taken at offset 7" in far.notes
    assert near.of("pattern")[0].delta != far.of("pattern")[0].delta
    assert near.of("message") == far.of("message")
    assert compare(model, other, fold=False).of("message")[0].delta != near.of("message")[0].delta


def test_contributions_of_two_models_on_prompts(base):
    model, module = base

    def change(twin):
        twin.model.layers[1].self_attn.o_proj.weight[:, 4 * D_HEAD : 5 * D_HEAD] *= 1.5

    other, prompts = edited(module, change), [families.tokens(6, seed=n) for n in range(4)]
    found = compare(model, other, prompts=prompts, target=5, against=6, draws=50)
    passed = [r for r in found.rows if r.quantity == "share"]
    expected = [shares(mv.trace(model, p), 5, 6).values.numpy() for p in prompts]
    assert [r.side_a for r in passed] == pytest.approx(np.mean(expected, axis=0).tolist())
    same = {r.component for r in found.of("difference") if r.delta == 0.0}
    assert {"embed", "L0H0", "L0.mlp", "L1H0", "L1H5"} <= same  # what comes before the edit, and beside it
    row = next(r for r in found.of("difference") if r.component == "L1H4")
    writes = [ledger(mv.trace(model, p)).row("L1H4")[-1].norm() for p in prompts]
    assert row.delta == pytest.approx(0.5 * float(np.mean(writes)), rel=1e-4)
    assert found.ranked()[0].component == "L1H4"
    assert "paired sign" in found.method
    assert {tuple(record) for record in found.records()} == {COLUMNS}


def test_identical_models_are_identical_on_prompts_too(base):
    model, module = base
    found = compare(model, mv.wrap(copy.deepcopy(module)), prompts=[families.tokens(5), families.tokens(7)], draws=20)
    assert found.identical
    assert {row.delta for row in found.rows} == {0.0}
    one = compare(model, mv.wrap(copy.deepcopy(module)), prompts=families.tokens(5))
    assert one.identical
    assert any("one prompt" in note for note in one.notes)


def test_cases_carry_targets_to_two_models(base):
    model, module = base
    other = mv.wrap(families.perturb(copy.deepcopy(module), seed=9))
    prompts, targets = [families.tokens(5), families.tokens(6)], [(5, 6), (7, 8)]
    found = compare(model, other, prompts=[Case(p, *t) for p, t in zip(prompts, targets, strict=True)], draws=20)
    expected = np.mean(
        [shares(mv.trace(other, p), *t).values.numpy() for p, t in zip(prompts, targets, strict=True)], 0
    )
    assert [r.side_b for r in found.of("share")] == pytest.approx(expected.tolist())


def test_what_cannot_be_asked_of_models_is_refused(base):
    model, _ = base
    with pytest.raises(UsageError, match="weights alone cannot run prompts"):
        compare(model.weights, model.weights, prompts=[[1, 2]])
    with pytest.raises(UsageError, match="already"):
        compare(model, model, prompts=[mv.trace(model, [1, 2])])
    with pytest.raises(UsageError, match="always paired"):
        compare(model, model, prompts=[[1, 2]], paired=False)
    with pytest.raises(UsageError, match="model= has no meaning"):
        compare(model, model, model=model)
    with pytest.raises(UsageError, match="set of prompts is empty"):
        compare(model, model, prompts=[])
    assert compare(model.weights, model.weights).identical


def test_a_vocabulary_that_grew_is_said_not_compared(base):
    model, module = base
    found = compare(model, edited(module, lambda twin: twin.resize_token_embeddings(104, mean_resizing=False)))
    assert not found.identical
    assert moved(found.rows) == set()
    assert any("W_E has shapes [100, 48] and [104, 48]" in note for note in found.notes)


def test_checkpoints_of_the_bundled_model(toy):
    early = mv.load("toy", revision="step-000400")
    found = compare(early, toy, prompts=["The king said that"], target=5)
    assert (found.model_a, found.model_b) == ("toy@step-000400", "toy@final")
    assert not found.identical
    assert min(r.rel for r in found.of("message")) > 0
    norms = {r.component: (r.side_a, r.side_b) for r in found.of("pattern")}
    assert all(late > start for start, late in norms.values())  # patterns grow as the model learns
    assert compare(toy, mv.load("toy")).identical
