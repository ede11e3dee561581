"""Every result a user can get has a frame and a figure, wherever in the package its kind is defined."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import mechview as mv
from mechview.results import FIGURES, FRAMES, Result


def kinds(base: type = Result) -> set[type]:
    found = {kind for kind in base.__subclasses__() if kind.__module__.startswith("mechview.")}
    return found | {deeper for kind in found for deeper in kinds(kind)}


def test_no_kind_of_result_lacks_a_view():
    for module in pkgutil.walk_packages(mv.__path__, "mechview."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    names = {kind.__name__ for kind in kinds()}
    assert {"Ledger", "HeadFactors", "LstmTrace", "Cost", "Diagnosis"} <= names
    assert (names - set(FRAMES), names - set(FIGURES)) == (set(), set())


@pytest.mark.parametrize("offset_label", ["L1H1", "L0H3"])
def test_factors_show_the_singular_values_of_both_maps(toy, offset_label):
    layer, head = int(offset_label[1]), int(offset_label[3])
    factors = mv.head_factors(toy, layer=layer, head=head)
    frame = factors.frame()
    for side, low in (("pattern", factors.pattern(0)), ("message", factors.message)):
        values = frame[frame["side"] == side]["sigma"].tolist()
        assert values == pytest.approx(low.singular_values().tolist(), rel=1e-6)
    assert set(frame["label"]) == {offset_label}
    assert set(frame["model"]) == {"toy"}
    figure = factors.figure()
    assert [trace.name for trace in figure.data] == ["pattern", "message"]
    assert list(figure.data[1].y) == pytest.approx(factors.message.singular_values().tolist(), rel=1e-6)
    assert "kv_head" in repr(factors)


def test_an_estimate_draws_its_parts(toy):
    cost = mv.estimate(toy, [[5, 6, 7]], "resid")
    [bars] = cost.figure().data
    sizes = dict(zip(bars.y, bars.x, strict=True))
    assert sizes["peak"] == pytest.approx(cost.peak_bytes / 1e6)
    assert sizes["weights"] == pytest.approx(cost.weight_bytes / 1e6)


def test_a_diagnosis_draws_its_parity(toy):
    from mechview.doctor import diagnose

    found = diagnose(toy)
    drawn = sum(len(trace.x) for trace in found.figure().data)
    assert drawn == len(found.frame()) > 0


def test_one_prompt_through_an_lstm_has_gates_over_its_text():
    trace = mv.lstm_trace(mv.load_lstm("twin"), "the man and the")
    frame = trace.frame()
    assert frame["pos"].max() + 1 == len(trace.tokens)
    forget = frame[(frame["gate"] == "forget") & (frame["place"] == "L0")].sort_values("pos")
    assert forget["value"].tolist() == pytest.approx(trace.cells[0].forget_gate.mean(-1).tolist(), abs=1e-9)
    assert len(trace.figure().data) > 0
