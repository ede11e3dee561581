"""Every step of the lens is split over who wrote in between, exactly, for every family with a linear head."""

from __future__ import annotations

import pytest
import torch
from test_ledger import TRACED, traced

import mechview as mv
from mechview.errors import UnsupportedError, UsageError
from mechview.residual.readout import before_cap, unembed

LINEAR = [name for name in TRACED if not name.startswith(("bert", "albert"))]  # their heads are not linear


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("by", ["layer", "head"])
def test_steps_sum_to_the_changes_of_the_reading_and_all_of_them_to_the_logit(name, by):
    trace = traced(name)
    found = mv.lens_changes(trace, 5, 6, position=-2, by=by)
    ends = trace.weights.ends()
    own = before_cap(trace.logits[-2, [5, 6]], ends)
    assert float(found.readings[-1]) == pytest.approx(float(own[0] - own[1]), abs=1e-9)
    assert sum(row.value for row in found.rows) == pytest.approx(float(own[0] - own[1]), abs=1e-4)
    assert found.error < 1e-5
    early = before_cap(unembed(trace.stream(1, "pre")[-2:-1].double(), ends), ends)[0]
    assert float(found.readings[found.points.index("L1.pre")]) == pytest.approx(float(early[5] - early[6]), rel=1e-4)


@pytest.mark.parametrize("by", ["bias", "neuron", "source"])
def test_other_grains_add_up_too(by):
    found = mv.lens_changes(traced("gpt2"), 5, by=by)
    assert found.error < 1e-5
    assert {row.component for row in found.step("L1.mid")} > {"rescaling"}


def test_without_a_norm_nothing_is_rescaled_and_a_step_is_the_write_along_the_unembedding():
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g)  # noqa: E731
    layer = {"W_Q": draw(2, 8, 4), "W_K": draw(2, 8, 4), "W_V": draw(2, 8, 4), "W_O": draw(2, 4, 8)}
    model = mv.from_arrays(W_E=draw(10, 8), W_U=(W_U := draw(8, 10)), layers=[layer])
    trace = mv.trace(model, [1, 2, 3])
    found = mv.lens_changes(trace, 4)
    rescaled = [row.value for row in found.rows if row.component == "rescaling"]
    assert max(map(abs, rescaled)) < 1e-5
    rows = {row.component: row.value for row in found.rows}
    head = trace.head_writes(0)[1, -1].double() @ W_U[:, 4].double()
    assert rows["L0H1"] == pytest.approx(float(head), abs=1e-5)


def test_rescaling_is_what_a_larger_norm_does_to_what_stood_there():
    trace = traced("llama")
    found = mv.lens_changes(trace, 5, position=3)
    stream, eps = [trace.stream(1, at)[3].double() for at in ("pre", "mid")], trace.weights.ends().final_norm.eps
    rho = [float((x.square().mean() + eps).sqrt()) for x in stream]
    reading = float(found.readings[found.points.index("L1.pre")])
    (row,) = (row for row in found.step("L1.mid") if row.component == "rescaling")
    assert row.value == pytest.approx(reading * (rho[0] / rho[1] - 1), abs=1e-6)


def test_its_frame_holds_every_row_and_its_figure_the_reading(toy):
    found = mv.lens_changes(mv.trace(toy, "the man and the woman and the man"), " and", " the")
    frame = found.frame()
    assert len(frame) == len(found.rows)
    for point, rows in frame.groupby("point"):
        assert rows["value"].sum() == pytest.approx(rows["change"].iloc[0], abs=1e-4), point
    line = found.figure().data[-1]
    assert list(line.y) == pytest.approx(found.readings.tolist())
    bars = [bar for bar in found.figure().data if bar.type == "bar"]
    assert sum(sum(bar.y) for bar in bars) == pytest.approx(float(found.readings[-1]), abs=1e-4)


def test_what_has_no_such_split_is_a_sentence(minilm):
    with pytest.raises(UnsupportedError, match="no unembedding"):
        mv.lens_changes(mv.trace(minilm, "a short sentence"), 5)
    with pytest.raises(UnsupportedError, match="not linear"):
        mv.lens_changes(traced("bert"), 5)
    with pytest.raises(UsageError, match="which token"):
        mv.lens_changes(traced("gpt2"), None)
    with pytest.raises(UsageError, match="not a grain"):
        mv.lens_changes(traced("gpt2"), 5, by="words")
    with pytest.raises(UsageError, match="position 99 does not exist"):
        mv.lens_changes(traced("gpt2"), 5, position=99)
    with pytest.raises(UsageError, match="follows one token; 2 were given"):
        mv.lens(traced("gpt2"), [5, 6])
