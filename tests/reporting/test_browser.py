"""The page in a real browser: it renders, it answers, it is silent, and it asks the network for nothing."""

from __future__ import annotations

import re

import pytest
from reports import HOSTILE, gathered, page
from test_report_page import broken

from browsing import colours, open_card
from mechview.reporting.page import render

pytestmark = pytest.mark.page


def test_every_section_is_drawn(visit):
    tab = visit(page())
    for section in ("overview", "table", "cards", "stream", "checks", "method"):
        assert tab.locator(f"#{section}").bounding_box()["height"] > 100
    assert tab.locator("#grid .cell").count() == 8
    assert tab.locator("#prompt-text .token").count() == len(gathered().prompts[0].tokens)
    assert tab.evaluate("document.querySelector('.thumb').width") == 1, "a thumbnail far below is not drawn yet"
    tab.locator(".tile").first.scroll_into_view_if_needed()
    tab.wait_for_function("() => document.querySelector('.thumb').width > 1")
    assert colours(tab, ".thumb") > 5


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_sideways(visit, width):
    tab = visit(page(), width)
    open_card(tab, "L1H2")
    assert tab.evaluate("document.documentElement.scrollWidth") == width


def test_sorting_follows_the_heading(visit):
    tab = visit(page())
    heading = tab.locator("#head-table thead button[data-column='4']")
    column = "rows => rows.map(row => Number(row.cells[4].dataset.key))"
    heading.click()
    falling = tab.locator("#head-table tbody tr").evaluate_all(column)
    heading.click()
    rising = tab.locator("#head-table tbody tr").evaluate_all(column)
    assert falling == sorted(falling, reverse=True) != rising == sorted(rising)
    assert tab.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_finding_hides_other_heads(visit):
    tab = visit(page())
    tab.locator("#find").fill("L1H")
    assert tab.locator("#head-table tbody tr:visible").count() == 4


def test_the_table_can_be_saved(visit):
    tab = visit(page())
    with tab.expect_download() as download:
        tab.locator("#csv").click()
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("head,kv_head,offset,pattern")
    norm = gathered().heads.query("label == 'L1H2' and metric == 'pattern_norm'")["value"].item()
    row = next(line for line in lines if line.startswith("L1H2")).split(",")
    assert float(row[4]) == pytest.approx(norm, rel=1e-8)


def test_the_menu_recolours_the_overview(visit):
    tab = visit(page())
    looks = "cells => cells.map(cell => [cell.textContent, cell.style.background].join())"
    before = tab.locator("#grid .cell").evaluate_all(looks)
    tab.locator("#metric").select_option(label="message: effective rank")
    after = tab.locator("#grid .cell").evaluate_all(looks)
    assert before != after
    assert "null 14.9" in tab.locator("#legend").text_content()
    assert "Roy" not in tab.locator("#metric-about").text_content()
    tab.locator("#grid .cell").nth(5).hover()
    assert tab.locator("#grid-readout").text_content().startswith("L1H1: message: effective rank")


def test_a_cell_opens_its_card_by_keyboard(visit):
    tab = visit(page())
    tab.locator("#grid .cell").first.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#L1H1[open] .attention canvas")
    assert tab.evaluate("location.hash") == "#L1H1"


def test_an_address_opens_its_card(visit):
    tab = visit(page(), address="#L0H3")
    tab.wait_for_selector("#L0H3[open] .attention canvas")
    assert tab.locator(".tile[open]").count() == 1


def test_a_card_shows_spectra_write_and_attention(visit):
    tab = visit(page())
    card = open_card(tab, "L1H2")
    tab.wait_for_selector("#L1H2 [data-panel=weights]")
    charts = card.locator("[data-panel]:has(.chart)").evaluate_all("found => found.map(p => p.dataset.panel)")
    assert charts == ["write", "distance", "entropy", "pattern", "offsets", "message", "eigenvalues"]
    assert card.locator("[data-panel=pattern] .dot.pattern").count() == 16
    assert card.locator("[data-panel=write] .bar").count() == len(gathered().prompts[0].tokens)
    assert colours(tab, "#L1H2 .attention canvas") > 20
    assert card.locator("[data-panel=largest] li").count() == 10


def test_the_readout_tells_the_cell_that_is_pointed_at(visit):
    tab = visit(page())
    card = open_card(tab, "L1H2")
    head = gathered().prompts[0].heads[6]
    canvas = card.locator(".attention canvas")
    canvas.focus()
    for _ in range(40):
        canvas.press("ArrowLeft")
        canvas.press("ArrowUp")
    for key in ["ArrowDown"] * 6 + ["ArrowRight"] * 3:
        canvas.press(key)
    words = card.locator(".readout").text_content().replace("−", "-")
    weight, score, value = (float(text) for text in re.findall(r"(?:weight|score|norm) (-?[\d.]+\d)", words))
    assert weight == pytest.approx(head.weight[6, 3], rel=2e-3)
    assert score == pytest.approx(head.score[6, 3], rel=2e-3)
    assert value == pytest.approx(head.value_norm[3], rel=2e-3)
    canvas.press("ArrowUp")
    for _ in range(3):
        canvas.press("ArrowRight")
    assert "masked" in card.locator(".readout").text_content()


def test_shading_changes_the_map_and_the_strip_follows_a_token(visit):
    tab = visit(page())
    card = open_card(tab, "L1H2")
    picture = "canvas => canvas.toDataURL()"
    canvas = card.locator(".attention canvas")
    before = canvas.evaluate(picture)
    card.locator(".shading").select_option("sent")
    assert canvas.evaluate(picture) != before
    card.locator(".main .strip .token").nth(4).click()
    assert card.locator(".main .strip .token.chosen").count() == 1
    assert "4" in card.locator(".readout .token").first.text_content()


def test_hostile_texts_are_shown_as_typed(visit):
    tab = visit(page("hostile"))
    shown = tab.locator("#prompt-text .token").evaluate_all("tokens => tokens.map(t => t.firstChild.textContent)")
    assert set(shown) == set(HOSTILE)
    assert tab.locator("h1").text_content() == HOSTILE[0]
    card = open_card(tab, "L1H2")
    labels = (
        card.locator(".attention svg")
        .first.locator("text")
        .evaluate_all("all => all.map(t => t.firstChild.textContent)")
    )
    assert [label for label in HOSTILE if len(label) < 14 and label not in labels] == []
    assert tab.evaluate("typeof bad") == "undefined"
    assert tab.locator("main b, main img").count() == 0


def test_nan_is_visible_in_every_picture(visit):
    tab = visit(render(broken()))
    tab.locator("#metric").select_option(label="pattern: stable rank")
    assert tab.locator("#grid .cell.nan").text_content() == "NaN"
    assert "1 of 8 NaN or infinite" in tab.locator("#legend").text_content()
    card = open_card(tab, "L1H2")
    assert card.locator(".numbers .nan-text").first.text_content() == "NaN"
    assert {panel: card.locator(f"[data-panel={panel}] .chart text.nan-text").count() for panel in ("pattern", "message", "distance", "entropy")} == {
        "pattern": 1, "message": 0, "distance": 1, "entropy": 1,
    }  # fmt: skip
    wrong = tab.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--nan').trim()")
    channels = [int(wrong[n : n + 2], 16) for n in (1, 3, 5)]
    pixel = """([selector, wanted]) => {
      const canvas = document.querySelector(selector);
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      for (let n = 0; n < data.length; n += 4) if (wanted.every((c, m) => data[n + m] === c)) return true;
      return false;
    }"""
    assert tab.evaluate(pixel, ["#L1H2 .attention canvas", channels])
    tab.locator("#L1H1").scroll_into_view_if_needed()
    tab.wait_for_function("() => document.querySelector('#L1H1 .thumb').width > 1")
    assert not tab.evaluate(pixel, ["#L1H1 .thumb", channels])


def test_light_and_dark_differ_and_neither_is_blank(visit):
    light, dark = (visit(page(), scheme=scheme) for scheme in ("light", "dark"))
    ground = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(ground) != dark.evaluate(ground)
    pictures = [tab.screenshot() for tab in (light, dark)]
    assert pictures[0] != pictures[1]
    assert all(len(picture) > 20_000 for picture in pictures)


def test_a_change_of_scheme_repaints(visit):
    tab = visit(page())
    open_card(tab, "L1H2")
    before = tab.locator("#grid .cell").first.get_attribute("style")
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_function("style => document.querySelector('#grid .cell').getAttribute('style') !== style", arg=before)
    assert colours(tab, "#L1H2 .attention canvas") > 20


def test_the_head_table_is_complete_without_the_script(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(path.as_uri())
    assert tab.locator("#head-table tbody tr").count() == 8
    assert "switched off" in tab.content()
    context.close()
