"""What the cards say of heads: the page holds the numbers of the frames, and shows them as text."""

from __future__ import annotations

import dataclasses
import json
import zlib
from base64 import b64decode

import numpy as np
import pytest
from reports import EVERYTHING, PROMPT, SETTINGS, gathered

import mechview as mv
from mechview.errors import HeadError, UsageError
from mechview.heads.composition import compositions
from mechview.reporting.build import fitted
from mechview.reporting.contents import page_data
from mechview.reporting.gather import gather
from mechview.reporting.page import render
from mechview.reporting.wording import filter_example
from reports_text import HOSTILE

HEAD = "L1H1"


def unpacked(text: str):
    return json.loads(zlib.decompress(b64decode(text)))


def card(found, label=HEAD):
    return unpacked(page_data(found, True)["details"]["cards"][label])


def opened(visit, found, address=f"#{HEAD}", **how):
    tab = visit(render(found), address=address, **how)
    tab.wait_for_selector(f"#{HEAD} [data-panel=weights]")
    return tab


def test_partners_are_the_strongest_rows_of_the_composition_table():
    for kind, found in compositions(mv.load("toy"), shuffles=0).items():
        frame = found.frame()
        mine = frame[frame["dst_label"] == HEAD].sort_values("z", ascending=False)
        shown = card(gathered())["from"][kind]
        assert [row[0] for row in shown] == list(mine["src_label"])[:5]
        np.testing.assert_allclose([row[1:] for row in shown], mine[["value", "null", "z"]].head(5), rtol=6e-3)
        fed = frame[frame["src_label"] == "L0H3"].sort_values("z", ascending=False)
        assert [row[0] for row in card(gathered(), "L0H3")["to"][kind]] == list(fed["dst_label"])[:5]


def test_token_lists_and_spectra_are_those_of_the_library():
    model, shown = mv.load("toy"), card(gathered())
    pairs = mv.pattern_pairs(model, layer=1, head=1, k=8, each=1).frame().query("sign > 0")
    assert [[p[0][1], p[1][1]] for p in shown["pairs"]["high"]] == pairs[["q_id", "k_id"]].to_numpy().tolist()
    tokens = mv.message_tokens(model, layer=1, head=1, k=8, each=1).frame().query("sign < 0")
    np.testing.assert_allclose([p[2] for p in shown["tokens"]["low"]], tokens["logit"], rtol=1e-3)
    own = gathered().details.eig.query("label == @HEAD and draw.isna()")
    np.testing.assert_allclose(shown["eig"]["re"], own["re"], rtol=6e-3, atol=1e-12)
    assert shown["offsets"]["cosine"][0] == pytest.approx(1.0)


def test_effects_are_direct_alone_until_totals_are_asked_for():
    model = mv.load("toy")
    frame = gathered().details.effects[0].set_index("component")
    assert frame["total"].isna().all()
    found = gather(model, [PROMPT], EVERYTHING, SETTINGS | {"effects": True, "roles": False}, None)
    measured = found.details.effects[0].set_index("component")
    heads = [place for place in measured.index if "H" in place]
    np.testing.assert_allclose(measured.loc[heads, "direct"], frame.loc[heads, "direct"], rtol=1e-3, atol=1e-4)
    assert measured.loc[heads, "total"].notna().all()
    assert measured["error"].iloc[0] < 1e-4
    shown = page_data(found, True)["prompts"][0]["effects"]["heads"]
    np.testing.assert_allclose(shown[HEAD], measured.loc[HEAD, ["direct", "total"]].astype(float), rtol=1e-3)


def test_cards_without_token_lists_say_which_were_asked_for():
    found = gather(mv.load("toy"), [], EVERYTHING, SETTINGS | {"cards": ["1.1"]}, None)
    assert list(found.details.cards) == [HEAD]
    assert card(found, "L0H0")["listed"] is False
    assert card(found)["listed"] is True
    assert found.details.absent["cards"] == "Token lists were asked for L1H1 only."
    with pytest.raises(HeadError, match="layer 7 does not exist"):
        gather(mv.load("toy"), [], EVERYTHING, SETTINGS | {"cards": ["L7H0"]}, None)
    with pytest.raises(UsageError, match="L1H1 has no card"):
        gather(mv.load("toy"), [], EVERYTHING | {"heads": ["L0H0"]}, SETTINGS | {"cards": ["L1H1"]}, None)


def test_a_page_too_large_drops_the_details_last_and_says_so():
    found = dataclasses.replace(gathered(), prompts=())
    full = len(fitted(found, 10**7).encode())
    page = fitted(found, full - 1)
    assert "partners of the heads were left out as well" in page
    assert len(page.encode()) < full
    assert "were left out as well" not in fitted(found, full)


def test_marked_cells_lie_inside_their_null_band(visit):
    tab = visit(render(gathered()))
    for n, metric in enumerate(page_data(gathered(), True)["metrics"]):
        tab.locator("#metric").select_option(str(n))
        marked = {int(x) for x in tab.eval_on_selector_all(".cell.in-null", "cells => cells.map(c => c.dataset.n)")}
        rows = enumerate(zip(metric["values"], metric["null"] or [], metric["sd"] or [], strict=False))
        inside = {h for h, (v, m, s) in rows if None not in (v, m, s) and abs(float(v) - m) <= 2 * s}
        assert marked == inside
        assert ("inside the null" in tab.locator("#legend").inner_text()) == (metric["sd"] is not None)


def test_key_value_groups_are_bracketed(visit):
    found = gathered()
    heads = found.heads.assign(kv_head=found.heads["head"] // 2)
    tab = visit(render(dataclasses.replace(found, heads=heads)))
    assert tab.locator(".bracket").all_inner_texts() == ["kv 0", "kv 1"]
    edges = tab.evaluate(
        """() => [...document.querySelectorAll(".bracket")].map(b => b.getBoundingClientRect()).map((b, n) => {
          const cells = [...document.querySelectorAll(".cell")].slice(2 * n, 2 * n + 2).map(c => c.getBoundingClientRect());
          return [b.left <= cells[0].left + 9, b.right >= cells[1].right - 1, b.right <= cells[1].right + 1];
        })"""
    )
    assert edges == [[True] * 3] * 2
    assert visit(render(found)).locator(".bracket").count() == 0


@pytest.mark.parametrize("prompts", [True, False])
def test_the_suggested_filter_finds_heads_of_this_page(visit, prompts):
    found = gathered() if prompts else dataclasses.replace(gathered(), prompts=(), scores=None)
    tab = visit(render(found))
    tab.locator("#find").fill(tab.locator("#find").get_attribute("placeholder"))
    told = tab.locator("#find-error").inner_text()
    assert told.endswith("of 8 heads")
    assert not told.startswith("0 ")
    assert ("stable_rank" in filter_example(found)) is not prompts


def test_panels_show_their_numbers_and_partners_lead_on(visit):
    tab = opened(visit, gathered())
    shown = card(gathered())
    names = tab.eval_on_selector_all(f"#{HEAD} [data-panel]", "found => found.map(p => p.dataset.panel)")
    assert {"pairs", "pattern-components", "offsets", "eigenvalues", "tokens", "neighbours", "effect"} <= set(names)
    assert len(names) == len(set(names))
    dots = tab.locator(f"#{HEAD} .plane .dot")
    assert dots.count() == len(shown["eig"]["re"])
    assert tab.locator(f"#{HEAD} [data-panel=pairs] li").count() == len(shown["pairs"]["high"])
    assert "--effects" in tab.locator(f"#{HEAD} [data-panel=effect]").inner_text()
    assert tab.locator(f"#{HEAD} svg[role=img]:not(:has(> title))").count() == 0
    first = shown["from"]["K"][0][0]
    tab.locator(f"#{HEAD} [data-panel=neighbours] a", has_text=first).first.click()
    tab.wait_for_selector(f"#{first}[open] [data-panel=neighbours]")


def test_hostile_vocabulary_stays_text(visit):
    found = gathered()
    view = found.details.cards[HEAD]
    texts = [HOSTILE[n % len(HOSTILE)] for n in range(len(view.pairs))]
    evil = dataclasses.replace(view, pairs=view.pairs.assign(q_token=texts, k_token=texts))
    cards = {**found.details.cards, HEAD: evil}
    found = dataclasses.replace(found, details=dataclasses.replace(found.details, cards=cards))
    tab = opened(visit, found)
    shown = tab.eval_on_selector_all(
        f"#{HEAD} [data-panel=pairs] bdi", "found => found.map(b => [b.textContent, b.children.length])"
    )
    wanted = [text for text, sign in zip(texts, view.pairs["sign"], strict=True) if sign > 0 for _ in range(2)]
    assert [text for text, _ in shown] == [text if len(text) <= 40 else text[:39] + "…" for text in wanted]
    assert {children for _, children in shown} == {0}


def test_a_pinned_card_is_open_on_paper_only(visit):
    tab = visit(render(gathered()))
    tab.locator(f"#table [data-pin={HEAD}]").click()
    tab.wait_for_selector(f"#{HEAD} [data-panel=weights]", state="attached")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert tab.locator(f"#{HEAD} [data-panel=eigenvalues]").is_visible()
    assert tab.locator(f"#{HEAD} .attention canvas").bounding_box()["width"] > 100
    assert not tab.locator("#L0H0").is_visible()
    tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert tab.locator(f"#{HEAD}").get_attribute("open") is None
