"""Planted truth from weights alone: copiers, suppressors, readers and writers whose scores must be 1, 0 or -1."""

from __future__ import annotations

import math

import pytest
import torch
from hand_made import D, head, layer, model, unit

import mechview as mv
from mechview.errors import UsageError

ALL = range(D)


def wide(**sides):
    return head(**sides, width=D)


def scores(found, metric: str = "copy") -> dict[str, float]:
    return {row.label: row.value for row in found.rows if row.metric == metric}


@pytest.fixture(scope="module")
def copiers():
    """One layer: a copier, a suppressor, one that copies four tokens only, one that does nothing."""
    suppressor = wide(value=ALL, output=ALL)
    suppressor["W_O"] = -suppressor["W_O"]
    return model(layer(wide(value=ALL, output=ALL), suppressor, wide(value=(0, 1, 2, 3), output=(0, 1, 2, 3)), wide()))


def test_a_copier_scores_one_a_suppressor_minus_one_and_an_idle_head_nothing(copiers):
    found = mv.copying(copiers)
    assert [round(h.score.value, 12) for h in found.heads] == [1.0, -1.0, 1.0, 0.0]
    for number, expected in enumerate((1.0, 0.0, 0.25, 0.0)):
        circuit = mv.message_tokens(copiers, layer=0, head=number)
        assert [one.value for one in circuit.accuracy] == [expected, expected]
    top = {"k": 1, "space": "embed"}
    assert scores(mv.copy_scores(copiers, **top)) == {"L0H0": 1.0, "L0H1": 0.0, "L0H2": 0.25, "L0H3": 0.0}
    lowered = scores(mv.copy_scores(copiers, **top), "copy_suppression")
    assert lowered == {"L0H0": 0.0, "L0H1": 1.0, "L0H2": 0.0, "L0H3": 0.0}


def test_the_sum_of_heads_is_read_as_one(copiers):
    both = mv.message_tokens(copiers, heads=["L0H0", "L0H1"])
    assert both.label == "L0H0+L0H1"
    assert float(both.high.score.abs().max()) == 0.0
    assert both.accuracy[0].value == 0.0


def test_pairs_of_a_planted_pattern_are_found_with_their_score():
    """Query token n looks at key token n + 1 with score scale * n."""
    made = wide(key=ALL)
    made["W_Q"] = torch.diag(torch.arange(D, dtype=torch.float64)) @ torch.eye(D, dtype=torch.float64).roll(1, 1)
    found = mv.pattern_pairs(model(layer(made)), layer=0, head=0, k=3)
    assert found.high.row.tolist() == [15, 14, 13]
    assert found.high.column.tolist() == [0, 15, 14]
    torch.testing.assert_close(found.high.score, torch.tensor([15.0, 14.0, 13.0], dtype=torch.float64) / math.sqrt(D))
    assert found.completeness < 1e-12
    assert found.error < 1e-15
    asked = mv.pattern_pairs(model(layer(made)), layer=0, head=0, k=1, queries=[4])
    assert (asked.high.row.tolist(), asked.high.column.tolist()) == ([4], [5])


def two_layers(writer, *readers):
    return model(layer(*[writer] * len(readers)), layer(*readers))


@pytest.fixture(scope="module")
def met():
    """The writer of coordinates 0..3 meets heads that read them by query, by key, by value, and by none."""
    writer = head(value=(8, 9, 10, 11), output=(0, 1, 2, 3))
    here, elsewhere = (0, 1, 2, 3), (12, 13, 14, 15)
    return two_layers(
        writer,
        head(query=here, key=elsewhere, value=elsewhere, output=elsewhere),
        head(query=elsewhere, key=here, value=elsewhere, output=elsewhere),
        head(query=elsewhere, key=elsewhere, value=here, output=elsewhere),
        head(query=(8, 9, 10, 11), key=(8, 9, 10, 11), value=(8, 9, 10, 11), output=here),
    )


@pytest.mark.parametrize(("kind", "reader"), [("Q", 0), ("K", 1), ("V", 2)])
def test_composition_is_one_where_written_is_read_and_zero_elsewhere(met, kind, reader):
    """The last reader reads what the writer reads: mixing the writer's two sides up would score it 1."""
    found = mv.compose(met, kind)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[:, reader] = 1 / 2  # |M1 P2| / |M1||P2| = sqrt(4) / (2 * 2)
    torch.testing.assert_close(found.values[0, :, 1, :], expected, rtol=1e-12, atol=0)
    assert found.values[1].isnan().all()
    assert found.values[:, :, 0].isnan().all()
    kernel = mv.compose(met, kind, definition="kernel")
    torch.testing.assert_close(kernel.values[0, :, 1, :], 2 * expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_direction_written_and_read_scores_exactly_one(dtype):
    made = two_layers(head(value=(8,), output=(0,)), head(query=(0,), key=(1,), value=(2,), output=(3,)))
    arrays = dict(W_E=torch.eye(D, dtype=dtype))
    narrow = mv.from_arrays(**arrays, layers=[
        {name: getattr(made.weights.attention(n), name).to(dtype) for name in ("W_Q", "W_K", "W_V", "W_O")} for n in (0, 1)
    ])  # fmt: skip
    assert mv.compose(narrow, "Q").values[0, 0, 1, 0] == 1.0
    assert mv.compose(narrow, "K").values[0, 0, 1, 0] == 0.0
    assert mv.compose(narrow, "V").values[0, 0, 1, 0] == 0.0


def test_groups_keep_their_own_keys_and_values():
    """Heads 0, 1 read group 0 (coordinate 0), heads 2, 3 group 1 (coordinate 4): h // 2, not h % 2."""
    writer = layer(*[head(value=(8,), output=(0,))] * 4, groups=2)
    reader = layer(
        *[head(query=(12,), key=(0,), value=(0,), output=(5,))] * 2,
        *[head(query=(12,), key=(4,), value=(4,), output=(5,))] * 2,
        groups=2,
    )
    made = model(writer, reader)
    for kind in ("K", "V"):
        assert mv.compose(made, kind).values[0, 0, 1].tolist() == [1.0, 1.0, 0.0, 0.0]
    frame = mv.compose(made, "K").frame()
    assert frame["dst_kv_head"].tolist()[:4] == [0, 0, 1, 1]


def test_a_symmetric_grouped_pattern_is_symmetric_only_in_its_own_group():
    """Head h's query reads what its group's key reads; pairing heads with the wrong group gives 0."""
    heads = [head(query=(4 * g, 4 * g + 1), key=(4 * g, 4 * g + 1), value=(0,), output=(0,)) for g in (0, 0, 1, 1)]
    found = mv.geometry(model(layer(*heads, groups=2)))
    assert [row.value for row in found.rows if row.metric == "pattern_symmetry"] == [1.0] * 4


def test_directionality_is_positive_where_the_key_side_stands_out():
    key_heavy = head(query=(0, 1, 2, 3), key=(0,), value=(0,), output=(0,))
    key_heavy["W_Q"] = torch.ones(D, 4, dtype=torch.float64)
    query_heavy = {**key_heavy, "W_Q": key_heavy["W_K"], "W_K": key_heavy["W_Q"]}
    rows = mv.geometry(model(layer(key_heavy, query_heavy))).rows
    assert [row.value for row in rows if row.metric == "pattern_directionality"] == [1.0, -1.0]


def test_folded_gains_and_centring_decide_what_is_read():
    """A gain of zero on the coordinate that is written cuts the path; raw, the path is there."""
    writer = head(value=(8,), output=(0,))
    reader = head(query=(0,), key=(12,), value=(12,), output=(13,))
    gain = torch.ones(D, dtype=torch.float64)
    gain[0] = 0.0
    cut = model(layer(writer), layer(reader, ln1=gain), norm="rms")
    assert mv.compose(cut, "Q").values[0, 0, 1, 0] == 0.0
    assert mv.compose(cut, "Q", fold=False).values[0, 0, 1, 0] == 1.0
    centred = model(layer(writer), layer(reader, ln1=torch.ones(D, dtype=torch.float64)), norm="layer")
    assert mv.compose(centred, "Q").values[0, 0, 1, 0] == pytest.approx(math.sqrt(1 - 1 / D), abs=1e-12)


def test_biases_enter_scores_only_when_asked_for():
    made = wide(query=ALL, key=ALL)
    with_bias = layer(made, b_Q=torch.full((1, D), 3.0, dtype=torch.float64))
    plain, biased = (
        mv.pattern_pairs(model(with_bias), layer=0, head=0, biases=b, queries=[2], k=1) for b in (False, True)
    )
    assert float(plain.high.score) == pytest.approx(1 / math.sqrt(D))
    assert float(biased.high.score) == pytest.approx(4 / math.sqrt(D))


@pytest.fixture(scope="module")
def planted_offset():
    """A rotary head whose query is its key turned by three positions: its kernel peaks at offset 3."""
    from mechview.models.positions import rotation

    rotary = {"base": 100.0}
    plain = model(layer(head(query=(0, 1, 2, 3), key=(0, 1, 2, 3))), position="rotary", rotary=rotary)
    turn = rotation(plain.weights.attention(0).rotary, -3, 4)
    one = head(query=(0, 1, 2, 3), key=(0, 1, 2, 3), value=(0,), output=(0,))
    one["W_Q"] = one["W_Q"] @ turn
    return model(layer(one), position="rotary", rotary=rotary, W_E=torch.eye(D, dtype=torch.float64) + 1.0)


def test_a_planted_offset_is_where_kernel_and_symmetry_peak(planted_offset):
    found = mv.offset_curves(planted_offset, layer=0, head=0, offsets=list(range(8)))
    assert int(found.kernel.argmax()) == 3
    assert int(found.same.argmax()) == 3
    assert float(found.symmetry[3]) == pytest.approx(1.0)
    torch.testing.assert_close(found.norm, torch.full_like(found.norm, 2.0))
    turned = mv.pattern_pairs(planted_offset, layer=0, head=0, offset=3, k=1)
    straight = mv.pattern_pairs(planted_offset, layer=0, head=0, offset=0, k=1)
    assert float(turned.high.score) > float(straight.high.score)
    assert turned.offset == 3


def test_a_successor_and_a_relation_head_are_found_and_a_copier_is_not():
    moved = wide(value=ALL)
    moved["W_O"] = torch.eye(D, dtype=torch.float64).roll(1, 1)
    made = model(layer(moved, wide(value=ALL, output=ALL)))
    assert scores(mv.successor_scores(made, {"tokens": list(range(10))}), "successor") == {"L0H0": 1.0, "L0H1": 0.0}
    found = mv.relation_scores(made, [(n, n + 1) for n in range(8)], k=1)
    assert scores(found, "relation_own") == {"L0H0": 1.0, "L0H1": 0.0}
    assert found.of("L0H0", "relation_own").null_mean == 0.0


def test_readings_name_the_planted_tokens_and_flag_equal_components():
    made = head(value=(3, 5, 7), output=(10, 11, 12))
    made["W_V"] = made["W_V"] * torch.tensor([3.0, 2.0, 2.0, 0.0], dtype=torch.float64)
    found = mv.svd_readings(model(layer(made)), layer=0, head=0, components=3, k=1, rows="raw", centre=False)
    first = {(part.end, part.sign): int(part.ids) for part in found.lists if part.index == 0}
    assert first["read", 1] == 3
    assert first["written", 1] == 10
    assert {part.index: part.degenerate for part in found.lists} == {0: False, 1: True, 2: True}


def test_components_and_virtual_heads_follow_the_planted_path(met):
    parts = mv.compose_components(met, "Q", layer=1, head=0)
    torch.testing.assert_close(parts.values[0, 0], torch.full((4,), 0.5, dtype=torch.float64))
    assert parts.degenerate[0].all()
    assert mv.virtual_head(met, (0, 0), (1, 2)).frobenius() == pytest.approx(2.0)
    assert mv.virtual_head(met, (0, 0), (1, 0)).frobenius() == 0.0
    angles = mv.principal_angles(met, (0, 0), (1, 0), "Q")
    torch.testing.assert_close(angles.angles, torch.zeros(4, dtype=torch.float64))
    right = mv.principal_angles(met, (0, 0), (1, 1), "Q")
    torch.testing.assert_close(right.angles, torch.full((4,), 90.0, dtype=torch.float64))
    with pytest.raises(UsageError, match="does not come before"):
        mv.virtual_head(met, (1, 0), (0, 0))


def test_writes_in_a_post_norm_model_pass_the_norms_between():
    """The gain of the norm after attention silences the coordinate that was written."""
    writer = layer(head(value=(8,), output=(0,)), ln1=(2 - 2 * unit(0)[:, 0], None))
    reader = layer(head(query=(0,), key=(12,), value=(12,), output=(13,)))
    made = model(writer, reader, norm="rms", placement="post")
    assert mv.compose(made, "Q").values[0, 0, 1, 0] == 0.0
    assert mv.compose(made, "Q", fold=False).values[0, 0, 1, 0] == 1.0
