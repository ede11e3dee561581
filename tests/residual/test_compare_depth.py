"""Models of different shape and tokenizer: whole layers by relative depth, text by offsets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import families
import mechview as mv
from conftest import family
from mechview.errors import UsageError
from mechview.residual.compare import compare
from mechview.residual.partners import layer_pairs
from mechview.residual.shares import shares


@pytest.fixture(scope="module")
def base():
    return family("llama")


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_depth_pairs_use_every_layer_in_order(count_a, count_b):
    pairs = layer_pairs(count_a, count_b)
    assert {a for a, _ in pairs} == set(range(count_a))
    assert {b for _, b in pairs} == set(range(count_b))
    assert pairs == sorted(pairs)
    assert layer_pairs(count_b, count_a) == [(b, a) for a, b in pairs]
    assert all(abs((a + 0.5) / count_a - (b + 0.5) / count_b) <= 0.5 / min(count_a, count_b) + 1e-12 for a, b in pairs)


@pytest.fixture(scope="module")
def deep():
    module = families.llama(num_hidden_layers=4, hidden_size=32, num_attention_heads=4).build(seed=2)
    return mv.wrap(module, name="deep")


def test_models_of_different_depth_are_compared_by_whole_layers(base, deep):
    model, _ = base
    found = compare(model, deep)
    assert found.kind == "models by depth"
    assert found.by == "layer"
    assert any("different shapes" in note for note in found.notes)
    assert {r.component for r in found.rows} == {"L0~0.attn", "L0~1.attn", "L1~2.attn", "L1~3.attn"}
    assert {r.aligned for r in found.rows} == {"depth"}
    assert {r.head for r in found.rows} == {None}
    row = next(r for r in found.of("message_norm") if r.component == "L1~2.attn")
    expected = np.mean([mv.head_factors(deep, layer=2, head=n).message.frobenius() for n in range(4)])
    assert row.side_b == pytest.approx(expected, rel=1e-6)
    assert row.delta == row.side_b - row.side_a
    with pytest.raises(UsageError, match="has no message; it has"):
        found.of("message")


def test_passes_of_models_of_different_shape(base, deep):
    model, _ = base
    a, b = mv.trace(model, families.tokens(6)), mv.trace(deep, families.tokens(6))
    found = compare(a, b, target=5)
    assert found.kind == "models by depth"
    assert {r.quantity for r in found.rows} == {"norm", "share"}
    coarse = shares(a, 5, by="layer"), shares(b, 5, by="layer")
    values = [dict(zip(s.components, s.values.tolist(), strict=True)) for s in coarse]
    row = next(r for r in found.of("share") if r.component == "L1~2.mlp" and r.position_a == 5)
    assert (row.side_a, row.side_b) == pytest.approx((values[0]["L1.mlp"], values[1]["L2.mlp"]))
    assert row.layer == 1
    assert next(r for r in found.rows if r.component == "embed").aligned == "same"
    assert not found.identical
    together = compare(model, deep, prompts=[families.tokens(6), families.tokens(7)], draws=20)
    assert {r.component for r in together.of("norm")} == {r.component for r in found.of("norm")}
    assert {r.aligned for r in together.of("norm") if r.layer is not None} == {"depth"}


@pytest.mark.real
def test_tokenizers_that_differ_are_said_and_aligned_by_text(toy, minilm):
    a, b = mv.trace(toy, "The king said nothing."), mv.trace(minilm, "The king said nothing.")
    found = compare(a, b)
    assert found.kind == "models by depth"
    assert found.aligned.by == "text"
    assert any("tokenizers differ" in note for note in found.notes)
    ends = [(a.tokens[p.a].text.strip(), b.tokens[p.b].text.strip()) for p in found.aligned.both]
    assert {("The", "the"), ("king", "king"), ("said", "said")} <= set(ends)
    assert all(x.lower().endswith(y.removeprefix("##")) or y.endswith(x.lower()) for x, y in ends[1:])
    together = compare(toy, minilm, prompts=["The king said nothing."])
    assert any("each model reads its own tokens" in note for note in together.notes)
    assert {r.aligned for r in found.rows} <= {
        "depth",
        "same",
        "same end",
        "inserted",
        "deleted",
        "only in a",
        "only in b",
    }
