"""Sections that are asked for: comparisons add up and are stamped, saved results are read back, notes follow."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from reports import EVERYTHING, OTHER, PROMPT, SETTINGS, gathered, memory_page, sections, spin_tables, whole, whole_page
from test_report_page import Parsed

import mechview as mv
from mechview.errors import UsageError
from mechview.exports import table_bytes
from mechview.reporting import build
from mechview.reporting import sections as asking
from mechview.reporting.compare_section import comparison_section
from mechview.reporting.comparing import compare_prompts
from mechview.reporting.gather import gather
from mechview.reporting.memory_section import memory_section
from mechview.reporting.page import notes_of, render
from mechview.reporting.saved import saved_memory, saved_spin
from mechview.reporting.section_notes import COMPARISON_NOTES, MEMORY_NOTES, SPIN_NOTES, STREAM_NOTES
from mechview.reporting.sections import Extras, Sections, extras
from mechview.reporting.spin_section import spin_section
from mechview.reporting.svg import Line, lines


@pytest.fixture(scope="module")
def prompts():
    return sections().comparisons[0]


@pytest.fixture(scope="module")
def models():
    return sections().comparisons[1]


def bars_of(drawing) -> dict[str, float]:
    """Names and numbers of a chart, from what it says to those who do not see it."""
    said = drawing.chart.about.rsplit(": ", 1)[1].removesuffix(".").replace("−", "-")
    return {name: float(value) for name, value in (part.rsplit(" ", 1) for part in said.split(", "))}


def drawing_of(view, heading: str):
    return next(one for one in comparison_section(view).drawings if one.heading == heading)


def test_the_fall_goes_from_the_models_own_value_to_the_other(toy, prompts):
    a, b = mv.trace(toy, PROMPT), mv.trace(toy, OTHER)
    target, before = (int(seen.logits[-1].argmax()) for seen in (b, a))
    against = None if target == before else before
    shares = [mv.shares(seen, target, against, by="head") for seen in (a, b)]
    bars = bars_of(drawing_of(prompts, "From a to b"))
    assert bars["a"] == pytest.approx(shares[0].total, rel=1e-3)
    assert bars["b"] == pytest.approx(shares[1].total, rel=1e-3)
    steps = {name: value for name, value in bars.items() if name not in "ab"}
    assert sum(steps.values()) == pytest.approx(bars["b"] - bars["a"], abs=2e-3)
    known = dict(zip(shares[0].components, (shares[1].values - shares[0].values).tolist(), strict=True))
    assert {name: pytest.approx(known[name], abs=1e-3) for name in steps if name in known} == {
        name: value for name, value in steps.items() if name in known
    }
    assert len(steps) > 5


def test_the_grid_is_the_norm_of_the_difference_of_writes(toy):
    ids = [token.id for token in mv.trace(toy, PROMPT).tokens]
    other = [*ids[:6], ids[6] + 1, *ids[7:]]
    a, b = mv.trace(toy, ids), mv.trace(toy, other)
    view = compare_prompts(toy, [a], [other], SETTINGS, 0)
    apart = (b.head_writes(1) - a.head_writes(1)).double().norm(dim=-1)[:, 1:]
    root = apart.square().mean(1).sqrt()
    words = [shape.title for shape in drawing_of(view, "Writes of heads apart").chart.shapes if shape.kind == "rect"]
    shown = {word.split(": ")[0]: float(word.split(": ")[1]) for word in words}
    assert [shown[f"L1H{head}"] for head in range(4)] == pytest.approx(root.tolist(), rel=6e-3)
    assert len(shown) == 8


def test_the_strip_holds_every_token_once_in_order_with_its_position(toy, prompts):
    steps = comparison_section(prompts).steps
    for side, text in (("a", PROMPT), ("b", OTHER)):
        tokens = [token.shown for token in mv.trace(toy, text).tokens]
        drawn = [(getattr(step, f"pos_{side}"), getattr(step, side)) for step in steps]
        assert [one for one in drawn if one[0] is not None] == list(enumerate(tokens))
    marks = [step.mark for step in steps]
    assert {"=", "-", "~"} == set(marks)
    assert all((step.pos_a is None) == (step.mark == "+") for step in steps)
    assert [step.shade for step in steps if step.mark == "-"] == ["alone"] * marks.count("-")
    assert max(int(step.shade.removeprefix("ramp")) for step in steps if step.shade.startswith("ramp")) == 8


def test_equal_prompts_are_stamped_identical_and_others_are_not(prompts):
    same = sections(PROMPT, spins=False).comparisons[0]
    assert comparison_section(same).stamp.startswith("identical")
    assert not comparison_section(prompts).stamp
    page = render(dataclasses.replace(gathered(), sections=Sections((same,))))
    assert "identical: every difference is exactly 0" in page
    assert "identical" not in " ".join(Parsed(whole_page()).texts["h3"])
    assert set(bars_of(drawing_of(same, "From a to b")).values()) - {0.0} == {
        bars_of(drawing_of(same, "From a to b"))["a"]
    }


def test_several_prompts_give_intervals_around_their_change(models):
    rows = comparison_section(models).rows
    assert {row["quantity"] for row in rows} == {"norm"}
    for row in rows[:8]:
        lo, delta, hi = (float(row[name].replace("−", "-")) for name in ("lo", "delta", "hi"))
        assert lo <= delta <= hi
    whiskers = [
        shape
        for shape in drawing_of(models, "Largest changes").chart.shapes
        if shape.attributes.get("class") == "whisker"
    ]
    assert len(whiskers) >= 8
    one = comparison_section(sections().comparisons[0])
    assert {row["lo"] for row in one.rows} == {"–"}
    assert "they need at least two on each side" in whole_page()


def test_prompts_on_both_sides_are_compared_in_turn(toy):
    texts = [PROMPT, PROMPT.replace("first", "third")]
    traces = [mv.trace(toy, text) for text in texts]
    view = compare_prompts(toy, traces, [text.replace("morning", "light") for text in texts], SETTINGS, 0)
    rows = view.changes.set_index("component")
    writes = [
        [float(mv.trace(toy, text).head_writes(1)[3, -1].double().norm()) for text in group]
        for group in (texts, [text.replace("morning", "light") for text in texts])
    ]
    assert rows.loc["L1H3", "delta"] == pytest.approx(np.mean(writes[1]) - np.mean(writes[0]), rel=1e-4)
    assert "sign permutation" in view.method


def test_nan_in_a_comparison_is_drawn_as_nan(prompts):
    frame = prompts.frame.copy()
    asked = (frame["quantity"] == "share") & (frame["position_a"] == prompts.asked[0]) & (frame["component"] == "L1H2")
    frame.loc[asked, "delta"] = math.nan
    frame.loc[(frame["quantity"] == "difference") & (frame["component"] == "L0H1"), "delta"] = math.nan
    broken = dataclasses.replace(prompts, frame=frame)
    for heading in ("From a to b", "Writes of heads apart"):
        assert [shape.text for shape in drawing_of(broken, heading).chart.shapes].count("NaN") == 1
    assert any("NaN" in bar for bar in re.findall(r"L1H2 \S+", drawing_of(broken, "From a to b").chart.about))


def test_a_report_without_them_measures_and_shows_none(toy, tmp_path, monkeypatch):
    def wrong(*_, **__):
        raise AssertionError

    for name in ("compare_prompts", "compare_models", "_spins", "_memory", "saved_spin", "saved_memory"):
        monkeypatch.setattr(asking, name, wrong)
    path = build.report(toy, [PROMPT], out=tmp_path / "plain.html", roles=False)
    found = Parsed(path.read_text(encoding="utf-8"))
    names = {attributes.get("id") for attributes in found.attributes("section")}
    assert names == {"overview", "table", "cards", "stream", "checks", "method"}


def test_each_option_adds_its_section(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(asking, "_spins", lambda model, seed: spin_tables())
    path = build.report(
        toy, [PROMPT], out=tmp_path / "all.html", roles=False, compare=OTHER, compare_model=mv.load("toy", revision="step-000100"),
        spin=True, memory=True,
    )  # fmt: skip
    text = path.read_text(encoding="utf-8")
    names = {attributes.get("id") for attributes in Parsed(text).attributes("section")}
    assert {"comparison", "spin", "memory"} < names
    assert "toy (final) against toy (step-000100)" in text


def test_dropped_text_is_not_in_a_comparison(toy, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mechview", "report", "-p", "a secret plan", "--compare", "a quoxel plan"])
    asked = extras("a quoxel plan", None, False, True)
    found = gather(toy, ["a secret plan"], EVERYTHING, SETTINGS | {"keep_text": False, "roles": False}, None, asked)
    text = render(found)
    for word in ("secret", "quoxel", "quox"):
        assert word not in text
    assert comparison_section(found.sections.comparisons[0]).steps[1].a == "•"


def test_a_spin_model_that_does_not_exist_is_a_remark(toy, monkeypatch):
    from mechview.errors import UnsupportedError

    def refuse(*_):
        raise UnsupportedError("no rows here")

    monkeypatch.setattr(asking, "_spins", refuse)
    found = gather(toy, [], EVERYTHING, SETTINGS | {"roles": False}, None, Extras(spin=True))
    assert found.sections.spin is None
    assert "The spin correspondence was asked for, but cannot be measured: no rows here." in found.remarks


def test_a_comparison_needs_a_prompt(toy):
    with pytest.raises(UsageError, match="needs a prompt that was run"):
        gather(toy, [], EVERYTHING, SETTINGS, None, Extras(compare=("x",)))
    with pytest.raises(UsageError, match="spin=3 is neither"):
        extras(spin=3)


@pytest.fixture
def saved(tmp_path):
    """Saved results as `mechview spin --claims` and `mechview memory` write them."""
    about = gathered().manifest | {"command": "mechview spin toy --claims"}
    tables, memory = spin_tables(), sections().memory
    spin = tmp_path / "spin.json"
    spin.write_bytes(
        table_bytes(
            tables.claims, "json", about, "claims", lambda: {"spin_models": tables.models, "thermo": tables.thermo}
        )
    )
    kept = tmp_path / "memory.json"
    told = about | {"notes": list(memory.notes), "error": memory.error}
    kept.write_bytes(
        table_bytes(
            memory.memory, "json", told, "memory", lambda: {"gates": memory.gates, "analogies": memory.analogies}
        )
    )
    return spin, kept


def test_saved_results_come_back_as_they_were(saved):
    about = gathered().manifest
    spin, memory = saved_spin(saved[0], about, True), saved_memory(saved[1], about, True)
    tables, ours = spin_tables(), sections().memory
    assert spin.models.equals(tables.models)
    assert spin.thermo.equals(tables.thermo)
    assert spin.claims.equals(tables.claims)
    assert spin.made == "read from spin.json, made by mechview spin toy --claims"
    assert memory.memory.equals(ours.memory)
    assert np.isinf(memory.memory["value"]).any()
    assert memory.gates.equals(ours.gates)
    assert memory.error == ours.error
    assert memory.notes[1:] == ours.notes
    bare = saved_memory(saved[1], about, False)
    assert set(bare.gates["token"]) == {"•"}
    assert "toy --claims" not in bare.notes[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weights_sha256": "0" * 64}, r"is of toy \(final\), not of toy"),
        ({"weights_sha256": None, "revision": "step-000100"}, r"is of toy \(step-000100\), not of toy \(final\)"),
    ],
)
def test_saved_results_of_another_model_are_refused(saved, change, sentence):
    for path, read in zip(saved, (saved_spin, saved_memory), strict=True):
        document = json.loads(path.read_text())
        document["manifest"] |= change
        path.write_text(json.dumps(document))
        with pytest.raises(UsageError, match=sentence):
            read(path, gathered().manifest, True)


def test_files_that_are_no_saved_results_are_refused(saved, tmp_path):
    about = gathered().manifest
    other = tmp_path / "other.json"
    for text, sentence in (
        ("no", "is not JSON"),
        ("[]", "is not a result of mechview spin"),
        ('{"table": "claims", "manifest": {}}', "is of "),
    ):
        other.write_text(text)
        with pytest.raises(UsageError, match=sentence):
            saved_spin(other, about, True)
    with pytest.raises(UsageError, match="cannot be read"):
        saved_memory(tmp_path / "none.json", about, True)
    with pytest.raises(UsageError, match="is not a result of mechview memory"):
        saved_memory(saved[0], about, True)


def test_claims_come_first_those_that_say_something_at_the_top():
    section = spin_section(spin_tables())
    order = ["informative", "weak", "vacuous", "not-applicable"]
    places = [order.index(row["verdict"]) for row in section.claims]
    assert places == sorted(places)
    assert len(places) == len(spin_tables().claims)
    assert sum(int(part.split()[0]) for part in section.counts.split(", ")) == len(places)
    text = whole_page()
    assert (
        text.index('id="spin"')
        < text.index(section.claims[0]["claim"][:20])
        < text.index("The ladder")
        < text.index("Energy by depth")
    )


def test_panels_say_value_and_null_of_every_layer():
    frame = spin_tables().models
    row = frame[
        (frame["quantity"] == "M1 scalar Onsager")
        & (frame["metric"] == "raw")
        & (frame["layer"] == 1)
        & frame["decides"]
    ].iloc[0]
    panel = next(one for one in spin_section(spin_tables()).groups[0].panels if one.heading.startswith("M1"))
    said = panel.chart.about.replace("−", "-")
    value, null = re.search(r", 1 (\S+) \(null (\S+)\)", said).groups()
    assert float(value) == pytest.approx(row["value"], rel=0.05, abs=1e-9)
    assert float(null) == pytest.approx(row["null"], rel=0.05, abs=1e-9)
    circles = [shape for shape in panel.chart.shapes if shape.kind == "circle"]
    assert len(circles) == 2
    assert (circles[1].attributes["class"] == "full") == (row["verdict"] == "informative")


def test_memory_is_the_same_on_both_pages():
    section = memory_section(sections().memory)
    for text in (whole_page(), memory_page()):
        found = Parsed(text)
        for row in section.analogies:
            assert row["statistic"] in found.texts["td"]
        for drawing in section.drawings:
            assert text.count(f">{drawing.heading}<") == 1
    assert memory_page().count("<script") == 0
    values = sections().memory.memory.query("quantity == 'retention' and over == 'depth'")["value"]
    rects = [shape for shape in section.drawings[0].chart.shapes if shape.kind == "rect"]
    assert len(rects) == len(values)


def test_notes_are_those_of_the_sections_shown():
    everything = {**STREAM_NOTES, **COMPARISON_NOTES, **SPIN_NOTES, **MEMORY_NOTES}
    assert set(everything) <= set(notes_of(whole()))
    assert set(notes_of(gathered())) & set(everything) == set(STREAM_NOTES)
    for note in notes_of(whole()).values():
        assert note.title
        assert note.definition.endswith(".")
        assert note.source
        assert note.cannot.endswith(".")
    assert not {"compare_share", "spin_r2"} & set(notes_of(dataclasses.replace(gathered(), prompts=())))


def test_every_column_and_choice_of_the_page_has_a_note():
    from mechview.reporting.contents import metrics

    assert {metric["name"] for metric in metrics(whole())} <= set(notes_of(whole()))


def test_every_picture_has_a_text_alternative_with_numbers():
    found = Parsed(whole_page())
    pictures = [a for a in found.attributes("svg") if a.get("aria-hidden") != "true"]
    assert len(pictures) > 15
    for picture in pictures:
        assert picture["role"] == "img"
        assert re.search(r"\d", picture["aria-label"])


def test_sections_change_no_other_number():
    strip = re.compile(r'id="data">(.*?)</script>', re.DOTALL)
    assert strip.search(whole_page())[1] == strip.search(render(gathered()))[1]


def test_a_line_of_one_point_is_drawn_as_a_point():
    one = lines([Line("writes", [4.0, math.inf], [0.2, 0.4], "pattern")], "about", "x", "y")
    two = lines([Line("writes", [4.0, 5.0], [0.2, 0.4], "pattern")], "about", "x", "y")
    assert [sum(shape.kind == "circle" for shape in chart.shapes) for chart in (one, two)] == [1, 0]
