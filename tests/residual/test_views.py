"""Frames and figures of the residual stream hold the numbers of their results, in the promised schemas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_ledger import traced

import mechview as mv
from mechview.tables import check_schema


def test_a_ledgers_frame_has_a_row_for_every_component_and_position():
    parts = mv.ledger(traced("llama"), "head")
    frame = check_schema(parts.frame(), "contrib")
    assert len(frame) == len(parts.components) * len(parts.total)
    at = frame[(frame["component"] == "L1H2") & (frame["pos"] == 3)].iloc[0]
    assert at["norm"] == pytest.approx(float(parts.row("L1H2")[3].norm()), rel=1e-6)
    assert (at["layer"], at["head"], at["first"]) == (1, 2, False)
    before = parts.trace.stream(1, "pre")[3].double()
    row = parts.row("L1H2")[3].double()
    assert at["cos_stream"] == pytest.approx(float(row @ before / row.norm() / before.norm()), abs=1e-5)
    assert frame[frame["component"] == "embed"]["head"].isna().all()
    assert frame[frame["component"] == "embed"]["cos_stream"].isna().all()
    assert (frame["completeness_error"] == parts.error).all()


@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_shares_of_an_update_sum_to_one_over_its_sublayer(name):
    frame = mv.ledger(traced(name), "head").frame()
    attention = frame[frame["component"].str.match(r"L1(H\d|\.attn_bias)")]
    np.testing.assert_allclose(attention.groupby("pos")["share_of_update"].sum(), 1.0, atol=1e-4)


def test_shares_and_lens_keep_their_numbers_in_frames(toy):
    trace = mv.trace(toy, "the man and the man and the")
    shares = mv.shares(trace, " man", " woman"[:4])
    frame = check_schema(shares.frame(), "contrib")
    assert frame["value"].sum() == pytest.approx(shares.total, abs=1e-4)
    assert frame["target"].nunique() == 1
    lens = mv.lens(trace, " man")
    table = check_schema(lens.frame(), "lens")
    last = table[(table["point"] == "final") & (table["pos"] == table["pos"].max())].iloc[0]
    assert last["prob"] == pytest.approx(float(trace.logits[-1].softmax(-1)[lens.target]), rel=1e-4)
    assert last["top_id"] == int(trace.logits[-1].argmax())
    assert table["model"].unique().tolist() == ["toy"]


def test_a_scores_frame_sums_to_the_score(toy):
    found = mv.score_ledger(mv.trace(toy, "the man and the man"), layer=1, head=1, query=-1, key=2)
    frame = check_schema(found.frame(), "score_ledger")
    assert frame["value"].sum() == pytest.approx(found.total, abs=1e-4)
    assert len(frame) == len(found.components) ** 2 + 1


def test_figures_show_what_frames_hold(toy):
    trace = mv.trace(toy, "the man and the man and the")
    shares = mv.shares(trace, " man")
    bars = shares.figure().data[0]
    assert bars.y[-1] == pytest.approx(shares.total)
    assert sum(bars.y[:-1]) == pytest.approx(shares.total, abs=1e-4)
    heat = mv.ledger(trace).figure()
    assert "without position 0" in heat.layout.title.text
    assert heat.data[0].z.shape == (len(mv.ledger(trace).components), len(trace.tokens))
    lens = mv.lens(trace, " man").figure()
    assert [line.name for line in lens.data] == ["probability of the target", "KL to the model's output, nats"]
    score = mv.score_ledger(trace, layer=1, head=1, query=-1, key=2).figure()
    assert score.data[0].zmid == 0


def test_position_zero_does_not_set_the_colours():
    parts = mv.ledger(traced("llama"))
    values = parts.values.clone()
    values[:, 0] *= 1000
    from dataclasses import replace

    heat = replace(parts, values=values).figure().data[0]
    assert heat.zmax == pytest.approx(float(values[:, 1:].norm(dim=-1).max()), rel=1e-6)
    assert torch.isfinite(values).all()


def test_comparisons_effects_and_patches_have_frames_and_figures(toy):
    clean, other = "the man and the woman and the man and the", "the man and the king and the man and the"
    found = mv.compare(clean, other, model=toy, target=" woman")
    frame = check_schema(found.frame(), "compare")
    assert len(frame) == len(found.rows)
    assert found.figure().data[0].colorbar.title.text == found.leading[0]
    effects = mv.effects(toy, clean, " man", components=["L1H1", "L1H2"])
    table = check_schema(effects.frame(), "effects")
    np.testing.assert_allclose(table["difference"], table["direct"] - table["total"], atol=1e-9)
    assert [bars.name for bars in effects.figure().data] == ["direct effect", "total effect"]
    patching = mv.patch(toy, clean, other, " woman")
    rows = check_schema(patching.frame(), "patching")
    np.testing.assert_allclose(rows["change"], rows["value"] - rows["corrupted"], atol=1e-9)
    assert max(patching.figure().data[0].y) == pytest.approx(rows["normalised"].max())


def test_identical_sides_say_so_in_the_figure(toy):
    found = mv.compare("the man", "the man", model=toy)
    assert found.identical
    assert "identical" in found.figure().layout.title.text
    assert "identical" not in mv.compare("the man", "the king", model=toy).figure().layout.title.text
    assert "identical" in mv.compare(toy, toy).figure().layout.title.text
    assert (found.frame()["delta"].dropna() == 0).all()
