"""Two passes side by side: exact zeros, mirror images, sums, and rows against plain tensor arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
from test_ledger import EXPERTS, traced

import families
import mechview as mv
from conftest import family
from mechview.errors import UsageError
from mechview.residual.compare import compare, compare_positions
from mechview.residual.compare_rows import COLUMNS
from mechview.residual.ledger import ledger
from mechview.residual.shares import shares

SOME = ("gpt2", "llama", "gemma2", "mixtral", "bert", "opt_post", "t5", "gpt_neox")
SIGNED = ("norm", "share")


def pair(name: str):
    """Two prompts of a tiny family: the second has one token inserted, one replaced."""
    first = families.tokens(9)
    second = [*first[:3], 50, *first[3:6], 51, *first[7:]]
    model, _ = family(name)
    extra = {"decoder": families.tokens(7, seed=5)} if model.shape.n_encoder_layers else {}
    return mv.trace(model, first, **extra), mv.trace(model, second, **extra)


def twice(name: str):
    model, _ = family(name)
    return mv.trace(model, families.tokens(9)), mv.trace(model, families.tokens(9))


def keyed(comparison):
    return {(r.component, r.quantity, r.position_a, r.position_b): r for r in comparison.rows}


@pytest.mark.parametrize("name", [*SOME, "albert", "gpt_oss"])
def test_one_prompt_run_twice_is_identical(name):
    for by in ("layer", "head", "bias", *(["expert"] if name in EXPERTS else [])):
        found = compare(*twice(name), by=by)
        assert found.identical, by
        assert found.notes[0] == "identical"
        assert {row.delta for row in found.rows} == {row.rel for row in found.rows} == {0.0}
        assert {standing.size for standing in found.ranked()} == {0.0}
        assert found.error < 1e-5


@pytest.mark.parametrize("name", SOME)
def test_rows_are_the_ledgers_rows_at_aligned_positions(name):
    a, b = pair(name)
    found = compare(a, b)
    rows_a, rows_b = ledger(a), ledger(b)
    assert not found.identical
    assert found.error == pytest.approx(max(rows_a.error, rows_b.error), abs=1e-6)
    for row in found.rows:
        x = None if row.position_a is None else rows_a.row(row.component)[row.position_a].double()
        y = None if row.position_b is None else rows_b.row(row.component)[row.position_b].double()
        if row.quantity == "norm":
            assert row.side_a == pytest.approx(math.nan if x is None else float(x.norm()), rel=1e-6, nan_ok=True)
            assert row.side_b == pytest.approx(math.nan if y is None else float(y.norm()), rel=1e-6, nan_ok=True)
        elif row.quantity == "difference":
            assert row.delta == pytest.approx(float((y - x).norm()), abs=1e-6)
            assert row.rel == pytest.approx(row.delta / float(x.norm()) if row.delta else 0.0)
        else:
            cosine = float(torch.cosine_similarity(x, y, dim=0))
            assert row.side_b == pytest.approx(cosine, abs=1e-9)
            assert row.delta == pytest.approx(cosine - 1.0, abs=1e-9)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_streamed_rows_of_every_grain_cover_the_ledger(name):
    a, b = pair(name)
    for by in ("layer", "head", "bias"):
        assert {r.component for r in compare(a, b, by=by).rows} == set(ledger(a, by).components)


def test_an_inserted_and_a_replaced_token_are_marked():
    a, b = pair("llama")
    found = compare(a, b)
    kinds = {(p.a, p.b): p.kind for p in found.aligned.pairs if p.kind != "same"}
    assert kinds == {(None, 3): "inserted", (6, 7): "substituted"}
    assert found.aligned.distance == 2
    inserted = [row for row in found.rows if row.aligned == "inserted"]
    assert {row.quantity for row in inserted} == {"norm"}
    assert all(math.isnan(row.side_a) and row.side_b >= 0 and row.position_a is None for row in inserted)
    before = [row for row in found.of("difference") if (row.position_b or 0) < 3]
    assert len(before) == 3 * len(ledger(a).components)
    assert {row.delta for row in before} == {0.0}  # a causal model has not seen the change yet


@pytest.mark.parametrize("name", SOME)
def test_sides_that_change_places_change_signs(name):
    a, b = pair(name)
    target = {} if name == "bert" else {"target": 5, "against": 6}
    there, back = keyed(compare(a, b, **target)), keyed(compare(b, a, **target))
    assert len(there) == len(back)
    for (component, quantity, i, j), row in there.items():
        mirror = back[component, quantity, j, i]
        sign = -1.0 if quantity in SIGNED else 1.0
        assert mirror.delta == pytest.approx(sign * row.delta, nan_ok=True, abs=1e-12)
        if quantity in (*SIGNED, "difference"):
            assert mirror.side_a == pytest.approx(row.side_b, nan_ok=True)


@pytest.mark.parametrize("name", [n for n in SOME if n != "bert"])
def test_differences_of_shares_sum_to_the_difference_of_the_logits(name):
    a, b = pair(name)
    found = compare(a, b, target=5, against=6, position=-2)
    last = len(a.tokens) - 2, len(b.tokens) - 2
    assert found.asked == last
    asked = [row for row in found.of("share") if (row.position_a, row.position_b) == last]
    # a soft-cap is undone by atanh, whose last bit depends on how many numbers are taken at once
    assert found.totals == pytest.approx((shares(a, 5, 6, -2).total, shares(b, 5, 6, -2).total), rel=1e-14)
    size = max(abs(row.side_a) for row in asked)
    assert sum(row.delta for row in asked) == pytest.approx(found.totals[1] - found.totals[0], abs=1e-4 * size)
    expected = dict(zip(shares(a, 5, 6, -2).components, shares(a, 5, 6, -2).values.tolist(), strict=True))
    assert {row.component: row.side_a for row in asked} == pytest.approx(expected)
    largest = max(asked, key=lambda row: abs(row.delta))
    assert found.ranked()[0].component == largest.component
    assert found.ranked()[0].size == pytest.approx(abs(largest.delta))
    assert ("soft-cap" in " ".join(found.notes)) == (name == "gemma2")


def test_a_direction_serves_as_well_as_a_target():
    a, b = pair("llama")
    direction = torch.randn(48, generator=torch.Generator().manual_seed(0))
    found = compare(a, b, direction=direction)
    assert found.totals[0] == pytest.approx(float(a.stream_final[-1].double() @ direction.double()))
    with pytest.raises(UsageError, match="one of the two"):
        compare(a, b, direction=direction, target=3)
    with pytest.raises(UsageError, match="needs a target"):
        compare(a, b, against=3)


def test_asked_positions_that_are_not_aligned_are_compared_all_the_same():
    model, _ = family("llama")
    a, b = mv.trace(model, [5, 6, 7, 8]), mv.trace(model, [5, 6, 7, 8, 9, 10])
    found = compare(a, b, target=4)
    assert found.asked == (3, 5)
    assert {row.aligned for row in found.of("share") if (row.position_a, row.position_b) == (3, 5)} == {"asked"}
    assert found.ranked()[0].size > 0


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_messages_are_matched_by_the_aligned_source_token(name):
    a, b = pair(name)
    found = keyed(compare(a, b, by="source"))
    rows_a, rows_b = ledger(a, "source"), ledger(b, "source")
    place = "X.L0H1" if name == "t5" else "L0H1"  # the encoder's tokens are those that were aligned
    last = len(a.tokens) - 1, len(b.tokens) - 1
    for key_a, key_b in {2: 2, 3: 4, 8: 9}.items():
        row = found[f"{place}<-{key_a}", "difference", *last]
        x, y = rows_a.row(f"{place}<-{key_a}")[last[0]], rows_b.row(f"{place}<-{key_b}")[last[1]]
        assert row.delta == pytest.approx(float((y - x).double().norm()), rel=1e-5)
    inserted = found[f"{place}<-b3", "norm", *last]
    assert inserted.aligned == "only in b"
    assert inserted.side_b == pytest.approx(float(rows_b.row(f"{place}<-3")[last[1]].norm()), rel=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_two_positions_of_one_prompt(name):
    trace = traced(name)
    rows = ledger(trace)
    found = compare_positions(trace, 2, -1)
    last = len(trace.tokens) - 1
    assert found.kind == "positions"
    assert {(row.position_a, row.position_b) for row in found.rows} == {(2, last)}
    for row in found.of("difference"):
        expected = rows.row(row.component)[last].double() - rows.row(row.component)[2].double()
        assert row.delta == pytest.approx(float(expected.norm()), abs=1e-6)
    assert compare_positions(trace, 3, 3).identical
    assert {row.delta for row in compare_positions(trace, 3, 3).rows} == {0.0}
    with pytest.raises(UsageError, match="position 99 does not exist"):
        compare_positions(trace, 0, 99)


def test_shares_at_two_positions_differ_by_the_logit():
    trace = traced("llama")
    found = compare_positions(trace, 2, 5, target=7)
    logits = trace.logits.double()[:, 7]
    assert found.totals == pytest.approx((float(logits[2]), float(logits[5])))
    size = max(abs(row.side_a) for row in found.of("share"))
    assert sum(r.delta for r in found.of("share")) == pytest.approx(float(logits[5] - logits[2]), abs=1e-4 * size)


def test_first_position_is_apart_in_the_ranking():
    model, _ = family("llama")
    a, b = mv.trace(model, [5, 6, 7, 8]), mv.trace(model, [9, 6, 7, 8])
    standing = {s.component: s for s in compare(a, b).ranked()}["embed"]
    embed_a, embed_b = ledger(a).row("embed"), ledger(b).row("embed")
    assert standing.first == pytest.approx(float((embed_b[0] - embed_a[0]).norm()), rel=1e-6)
    assert standing.size == 0.0
    assert compare_positions(a, 0, 2).ranked()[0].size > 0  # nothing else to rank


def test_kv_heads_and_columns_of_the_records():
    a, b = pair("llama")
    records = compare(a, b).records()
    assert {tuple(record) for record in records} == {COLUMNS}
    heads = {(r["layer"], r["head"]): r["kv_head"] for r in records if r["head"] is not None}
    assert heads == {(layer, head): head // 3 for layer in range(2) for head in range(6)}
    assert {r["layer"] for r in records if r["component"] == "embed"} == {None}
    assert {r["layer"] for r in records if r["component"] == "L1.mlp"} == {1}


def test_different_models_of_one_shape_are_matched_by_name():
    """GPT-2 and GPT-NeoX have the same layers and heads here; only GPT-2 has an embedding of positions."""
    a = mv.trace(family("gpt2")[0], families.tokens(6))
    b = mv.trace(family("gpt_neox")[0], families.tokens(6))
    found = compare(a, b)
    assert {row.aligned for row in found.rows if row.component == "pos_embed"} == {"only in a"}
    row = next(r for r in found.of("difference") if r.component == "L1H2" and r.position_a == 4)
    expected = (ledger(b).row("L1H2")[4].double() - ledger(a).row("L1H2")[4].double()).norm()
    assert row.delta == pytest.approx(float(expected), rel=1e-6)


def test_a_pre_norm_and_a_post_norm_model_of_one_shape():
    generator = torch.Generator().manual_seed(0)
    shapes = {"W_Q": (2, 6, 3), "W_K": (2, 6, 3), "W_V": (2, 6, 3), "W_O": (2, 3, 6), "W_in": (6, 8), "W_out": (8, 6)}
    layer = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    W_E = torch.randn(9, 6, generator=generator)
    models = [mv.from_arrays(W_E=W_E, layers=[layer, layer], norm="layer", placement=p) for p in ("pre", "post")]
    a, b = (mv.trace(model, [1, 2, 3, 4]) for model in models)
    found = compare(a, b)
    row = next(r for r in found.of("difference") if r.component == "L0H1" and r.position_a == 3)
    assert row.delta == pytest.approx(float((ledger(b).row("L0H1") - ledger(a).row("L0H1"))[3].norm()), rel=1e-6)
    assert found.error < 1e-5


def test_what_has_no_rows_is_refused_with_a_sentence():
    a, b = pair("llama")
    with pytest.raises(UsageError, match="neurons have no rows to compare"):
        compare(a, b, by="neuron")
    with pytest.raises(UsageError, match="not a grain"):
        compare(a, b, by="heads")
    with pytest.raises(UsageError, match="has no share; it has norm, difference, cosine"):
        compare(a, b).ranked("share")
    with pytest.raises(UsageError, match="position 40 does not exist"):
        compare(a, b, target=3, position=40)
    with pytest.raises(UsageError, match="prompts= has no meaning when two traces"):
        compare(a, b, prompts=["x"])
    with pytest.raises(UsageError, match="give model="):
        compare("one", "two")
    with pytest.raises(UsageError, match="cannot be compared"):
        compare(a, family("llama")[0])
