"""Keys, addresses, filters, pins and the stream section, in a real browser."""

from __future__ import annotations

import dataclasses
import re

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import HOSTILE, gathered, hostile, page

from browsing import colours, open_card
from mechview.reporting.page import render

pytestmark = pytest.mark.page


def labels_shown(tab) -> list[str]:
    return tab.locator("#head-table tbody tr:visible th a").all_text_contents()


def metric(name: str) -> dict[str, float]:
    """Values by head, from the frames that the page was made of."""
    frames = (gathered().heads, gathered().scores, gathered().prompts[0].summaries)
    rows = next(rows for frame in frames if len(rows := frame[frame["metric"] == name]))
    return dict(zip(rows["label"], rows["value"], strict=True))


CASES = {
    "layer>=1": lambda label: label.startswith("L1"),
    "layer=0 and head>=2": lambda label: label in ("L0H2", "L0H3"),
    "not layer=0": lambda label: label.startswith("L1"),
    "L0H1 or (layer=1 and not head<3)": lambda label: label in ("L0H1", "L1H3"),
    "layer>=1 and induction>0.4": lambda label: label.startswith("L1") and metric("induction")[label] > 0.4,
    "induction>0.9": lambda label: metric("induction")[label] > 0.9,
    "induction_mass>0.4": lambda label: metric("induction_mass")[label] > 0.4,
    "message_stable_rank<6.5": lambda label: metric("message_stable_rank")[label] < 6.5,
    "label!=L0H0": lambda label: label != "L0H0",
    "h2": lambda label: label.endswith("H2"),
}


def test_the_names_of_the_cases_tell_metrics_apart():
    assert {label for label, value in metric("induction").items() if value > 0.9} != {
        label for label, value in metric("induction_mass").items() if value > 0.9
    }


def test_a_quantity_measured_twice_is_named_with_its_group(visit):
    scores = gathered().scores
    rows = scores[scores["metric"] == "induction"].assign(metric="entropy")
    twice = dataclasses.replace(gathered(), scores=pd.concat([scores.astype({"metric": str}), rows]))
    tab = visit(render(twice))
    tab.locator("#find").fill("entropy>0.5")
    assert tab.locator("#find-error").text_content() == 'Not a filter: "entropy" could be test.entropy, prompt.entropy.'
    for name, values in (("test.entropy", metric("induction")), ("prompt.entropy", metric("entropy"))):
        tab.locator("#find").fill(f"{name}>0.5")
        assert labels_shown(tab) == [label for label, value in values.items() if value > 0.5]


@pytest.mark.parametrize("text", CASES)
def test_a_filter_keeps_the_heads_it_names(visit, text):
    tab = visit(page())
    tab.locator("#find").fill(text)
    every = list(metric("pattern_norm"))
    wanted = [label for label in every if CASES[text](label)]
    assert 0 < len(wanted) < len(every)
    assert labels_shown(tab) == wanted
    assert tab.locator("#find-error").text_content() == f"{len(wanted)} of 8 heads"


@pytest.mark.parametrize(
    "text", ["layer>=", "(layer=1", "nothing>1", "layer>1 layer", "pattern>1", "a;alert(1)", "layer>1)"]
)
def test_what_is_not_a_filter_is_said_and_hides_nothing(visit, text):
    tab = visit(page())
    tab.locator("#find").fill(text)
    assert tab.locator("#find-error").text_content().startswith("Not a filter: ")
    assert len(labels_shown(tab)) == 8


def test_no_text_breaks_the_filter(visit):
    tab = visit(page())

    @settings(max_examples=60, deadline=None, database=None)
    @given(st.text(max_size=24))
    def tried(text):
        found = tab.evaluate(
            "text => { try { return filterHeads(text).length } catch (error) { return error.constructor.name } }", text
        )
        assert found in (8, "Error")

    tried()


def test_keys_move_between_cards_and_pin_them(visit):
    tab = visit(page(), address="#L0H1")
    tab.wait_for_selector("#L0H1[open] .attention canvas")
    tab.locator("#L0H1 > summary").focus()
    tab.keyboard.press("ArrowDown")
    tab.wait_for_selector("#L1H1[open]")
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector("#L1H2[open]")
    assert tab.locator(".tile[open]").count() == 1
    tab.keyboard.press("p")
    assert tab.locator(".tile.pinned").get_attribute("id") == "L1H2"
    tab.locator("#find").fill("pinned")
    assert labels_shown(tab) == ["L1H2"]
    tab.locator("#head-table .pin[aria-pressed=true]").click()
    assert labels_shown(tab) == []


def test_slash_filters_and_question_mark_helps(visit):
    tab = visit(page())
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "find"
    tab.keyboard.type("?/")
    assert tab.locator("#find").input_value() == "?/"
    tab.keyboard.press("Escape")
    tab.keyboard.press("?")
    assert tab.locator("#help").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator("#help").is_visible()


@pytest.fixture(scope="module")
def two_prompts() -> str:
    view = gathered().prompts[0]
    second = dataclasses.replace(view, tokens=view.tokens.assign(shown="x"))
    return render(dataclasses.replace(gathered(), prompts=(view, second)))


def test_an_address_names_head_panel_and_prompt(visit, two_prompts):
    tab = visit(two_prompts, address="#L1H1/pattern?p=1")
    tab.wait_for_selector("#L1H1[open] .attention canvas")
    assert tab.evaluate("promptNumber") == 1
    assert {menu.input_value() for menu in tab.locator(".prompt-menu").all()} == {"1"}
    tab.wait_for_function(
        "() => Math.abs(document.querySelector('#L1H1 [data-panel=pattern]').getBoundingClientRect().top) < 200"
    )
    tab.evaluate("location.hash = '#L0H0?p=0'")
    tab.wait_for_selector("#L0H0[open] .attention canvas")
    assert tab.evaluate("promptNumber") == 0


@pytest.mark.parametrize("address", ["#%22%3E%3Cb%3E", "#L9H9/pattern?p=7", "#L1H1/nothing?p=99", "#__proto__/x"])
def test_an_address_of_nothing_changes_nothing(visit, address):
    tab = visit(page(), address=address)
    assert tab.evaluate("promptNumber") == 0
    assert tab.locator("main b").count() == 0


def test_a_click_holds_the_crosshair(visit):
    tab = visit(page())
    card = open_card(tab, "L1H2")
    canvas = card.locator(".attention canvas")
    box = canvas.bounding_box()
    canvas.click(position={"x": 5, "y": box["height"] - 5})
    held = card.locator(".readout").text_content()
    canvas.hover(position={"x": box["width"] / 2, "y": box["height"] - 5})
    assert card.locator(".readout").text_content() == held
    canvas.click(position={"x": box["width"] / 2, "y": box["height"] - 5})
    assert card.locator(".readout").text_content() != held


def test_open_cards_share_one_crosshair(visit):
    tab = visit(page())
    first, second = open_card(tab, "L1H2"), open_card(tab, "L1H1")
    first.locator(".attention canvas").focus()
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("ArrowRight")
    queries = [card.locator(".readout .token").all_text_contents() for card in (first, second)]
    assert queries[0] == queries[1]


def test_rescaled_weights_leave_the_first_key_out_and_sum_to_one(visit):
    tab = visit(page())
    open_card(tab, "L1H2")
    shown = tab.evaluate("""() => {
      const panel = [...OPEN_PANELS][0];
      panel.mode = "rescaled";
      return panel.queries.map((_, q) => panel.keys.map((__, k) => (panel.shown(q, k) === -Infinity ? null : panel.shown(q, k))));
    }""")
    weight = gathered().prompts[0].heads[6].weight
    rest = weight[:, 1:].sum(axis=1)
    assert all(row[0] is None for row in shown)
    kept = [q for q in range(1, len(rest)) if rest[q] > 2.5e-3]
    assert kept
    for q in kept:
        assert [value or 0.0 for value in shown[q][1:]] == pytest.approx(weight[q, 1:] / rest[q], abs=0.02)
        assert sum(value or 0.0 for value in shown[q]) == pytest.approx(1.0, abs=1e-6)
    assert all(value is None for q in range(len(rest)) if rest[q] < 1.5e-3 for value in shown[q])


def test_the_waterfall_ends_at_the_models_logit(visit):
    tab = visit(page())
    fall = gathered().prompts[0].stream.waterfall
    assert sum(value for _, value in fall.bars) + fall.rest == pytest.approx(fall.total, rel=1e-6)
    tab.wait_for_selector("#stream .chart .sum")
    ends = "bars => bars.map(bar => Number(bar.getAttribute('x')) + Number(bar.getAttribute('width')))"
    reached = tab.locator("#stream .chart .rising, #stream .chart .sum").evaluate_all(ends)
    assert max(reached[:-1]) >= reached[-1] - 1
    words = tab.locator("#stream .chart title").first.text_content().replace("−", "-")
    assert float(re.search(r"total (-?\d+\.\d+)", words)[1]) == pytest.approx(fall.total, rel=2e-3)


def test_the_stream_pictures_read_single_cells(visit):
    tab = visit(page())
    view = gathered().prompts[0].stream
    tab.wait_for_selector("#stream canvas")
    canvas = tab.locator("#stream canvas").first
    canvas.focus()
    for _ in range(2):
        canvas.press("ArrowUp")
    words = tab.locator("#stream .readout").first.text_content()
    name = view.components[-3]
    assert words.startswith(f"{name} at")
    assert float(re.search(r"added (\d+\.?\d*)", words)[1]) == pytest.approx(view.norm[-3, -1], rel=2e-3)
    assert colours(tab, "#stream canvas") > 5
    tab.locator("#stream-metric").select_option("shares")
    canvas.press("ArrowLeft")
    shown = tab.locator("#stream .readout").first.text_content().replace("−", "-")
    assert float(re.search(r"logit (-?[\d.e-]+)", shown)[1]) == pytest.approx(view.shares[-3, -2], abs=2e-3)


def test_a_model_without_logits_says_why_there_are_no_shares(visit):
    view = gathered().prompts[0]
    bare = dataclasses.replace(view.stream, waterfall=None, shares=None, lens=None, missing=("No logit lens: none.",))
    tab = visit(render(dataclasses.replace(gathered(), prompts=(dataclasses.replace(view, stream=bare),))))
    tab.wait_for_selector("#stream .notices")
    assert tab.locator("#stream canvas").count() == 1
    assert tab.locator("#stream .notices").text_content() == "No logit lens: none."


def test_hostile_readings_stay_text(visit):
    found = hostile()
    view = found.prompts[0]
    lens = dataclasses.replace(
        view.stream.lens,
        top=tuple(
            tuple(HOSTILE[(r + c) % len(HOSTILE)] for c in range(len(row)))
            for r, row in enumerate(view.stream.lens.top)
        ),
    )
    fall = dataclasses.replace(view.stream.waterfall, target=HOSTILE[0])
    stream = dataclasses.replace(view.stream, lens=lens, waterfall=fall)
    tab = visit(render(dataclasses.replace(found, prompts=(dataclasses.replace(view, stream=stream),))))
    tab.wait_for_selector("#stream .token")
    assert tab.locator("#stream .token").first.text_content() == HOSTILE[0]
    assert tab.locator("#stream b, #stream img, #stream script").count() == 0


def test_pinned_cards_are_what_is_printed(visit):
    tab = visit(page())
    open_card(tab, "L1H2")
    open_card(tab, "L1H1")
    tab.evaluate("pin('L1H2')")
    tab.emulate_media(media="print")
    assert tab.locator("#L1H2").is_visible()
    assert not tab.locator("#L1H1").is_visible()
    assert not tab.locator("#find").is_visible()


def test_copies_hold_the_rows_that_are_shown(visit):
    tab = visit(page())
    tab.locator("#find").fill("layer=1")
    csv, markdown = tab.evaluate("[csvText(), markdownText()]")
    assert [line.split(",")[0] for line in csv.splitlines()] == ["head", "L1H0", "L1H1", "L1H2", "L1H3"]
    assert markdown.splitlines()[1].startswith("| --- | ---: |")
    assert [line.split(" | ")[1:] for line in markdown.splitlines()[2:]] == [
        [*line.split(",")[1:-1], line.split(",")[-1] + " |"] for line in csv.splitlines()[1:]
    ]
