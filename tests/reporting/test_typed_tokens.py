"""Tokens stay text, whatever they hold: drawn over all of Unicode, and shown in the form that tells them apart.

Each place of the page that shows a token is fed with the same texts: the strip, the maps' labels, the aligned tokens of
a comparison, the charts of memory, and Plotly's figures, whose pseudo-HTML means nothing.
"""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import HOSTILE, gathered, sections
from test_report_page import Parsed

from mechview.figures import attention_map, plain_text
from mechview.reporting.compare_section import comparison_section
from mechview.reporting.page import render
from mechview.reporting.sections import Sections
from mechview.tables import attention_frame, tokens_frame
from mechview.tokens import shorten, show

EVERYTHING = st.text(st.characters(), max_size=12)  # lone surrogates and private use among them
AWKWARD = st.sampled_from(
    [
        *HOSTILE,
        "",
        " ",
        "\n",
        "\t",
        "\ud800",
        "\\xe6",
        "x" * 400,
        "<br>",
        "<a href='x'>y</a>",
        "&#60;",
        "\u202e",
        "\x1b[0m",
    ]
)
TEXTS = st.lists(EVERYTHING | AWKWARD, min_size=1, max_size=8)


def with_tokens(texts: list[str]):
    """The report of the tests, every token replaced by these, as the tokenizer's texts would come."""
    found, view = gathered(), gathered().prompts[0]
    count = len(view.tokens)
    raw = [texts[n % len(texts)] for n in range(count)]
    shown = [shorten(show(text)) for text in raw]
    compared, memory = sections(spins=False).comparisons[0], sections(spins=False).memory
    sides = tuple(tuple(shown[n % count] for n in range(len(side))) for side in compared.tokens)
    gates = memory.gates.assign(token=[shown[pos % count] for pos in memory.gates["pos"]])
    return (
        dataclasses.replace(
            found,
            prompts=(
                dataclasses.replace(view, tokens=view.tokens.assign(shown=shown, text=pd.Series(raw, dtype=object))),
            ),
            sections=Sections(
                (dataclasses.replace(compared, tokens=sides),), None, dataclasses.replace(memory, gates=gates)
            ),
        ),
        raw,
        shown,
    )


@cache
def tags_of_plain() -> list[str]:
    return [tag for tag, _ in Parsed(render(with_tokens(["plain"])[0])).tags]


@settings(max_examples=25, deadline=None)
@given(TEXTS)
def test_no_token_becomes_markup_and_none_is_changed(texts):
    report, raw, shown = with_tokens(texts)
    page = render(report).encode("utf-8", "backslashreplace").decode("utf-8")
    found = Parsed(page)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    tokens = data["prompts"][0]["tokens"]["decoder"]
    assert [token[0] for token in tokens] == shown
    assert [token[1] for token in tokens] == raw
    assert [tag for tag, _ in found.tags] == tags_of_plain(), "the same elements as with a plain word"
    steps = comparison_section(report.sections.comparisons[0]).steps
    words = found.texts["bdi"]
    expected = [side for step in steps for side in (step.a, step.b)]
    assert any(words[n : n + len(expected)] == expected for n in range(len(words)))


@given(EVERYTHING | AWKWARD)
def test_what_is_shown_is_visible_and_tells_texts_apart(text):
    shown = show(text)
    assert shown.isprintable()
    assert shown.encode("utf-8")
    assert not set(shown) & {" ", "\n", "\t", "\u202e", "\u200b", "\x1b"}
    assert (shown == "∅") == (text in ("", "∅"))
    assert len(shorten(shown)) <= 40


@given(st.lists(EVERYTHING | AWKWARD, min_size=1, max_size=6))
def test_plotly_gets_no_markup_and_no_formula(texts):
    for text in texts:
        plain = plain_text(show(text))
        assert not set(plain) & set("<>$")
        assert re.sub(r"&(amp|lt|gt|#36);", "", plain).count("&") == 0
        back = plain.replace("&lt;", "<").replace("&gt;", ">").replace("&#36;", "$").replace("&amp;", "&")
        assert back == show(text)


def test_repeats_stay_apart_in_figures_and_keep_their_order(toy):
    import mechview as mv

    seen = mv.trace(toy, "the the the <b> the")
    figure = attention_map(attention_frame(mv.attend(seen, heads=[(1, 2)])), tokens_frame(seen))
    labels = list(figure.layout.xaxis.ticktext)
    assert len(set(labels)) == len(labels) == len(seen.tokens)
    assert [int(label.rsplit(None, 1)[1]) for label in labels] == list(range(len(labels)))
    assert "<b>" not in " ".join(labels)


@pytest.mark.page
def test_the_pages_own_script_keeps_any_text_as_text(visit):
    tab = visit(render(with_tokens(list(HOSTILE))[0]))
    probe = """text => {
      const element = tokenElement([text, text, false], 3);
      document.body.append(element);
      const inside = element.querySelector("bdi");
      const found = [inside.textContent, inside.children.length, element.children.length, element.title];
      element.remove();
      return found;
    }"""

    @settings(max_examples=150, deadline=None)
    @given(EVERYTHING | AWKWARD)
    def typed(text):
        shown = show(text)
        assert tab.evaluate(probe, shown) == [
            shorten(shown),
            0,
            2,
            f"{json.dumps(shown, ensure_ascii=False)}, position 3",
        ]

    typed()


@pytest.mark.page
def test_tokens_are_isolated_whole_on_hover_and_numbered(visit):
    texts = ["שלום", "abc", "x" * 400, "", " a", "abc"]
    report, raw, shown = with_tokens(texts)
    tab = visit(render(report))
    strip = tab.locator("#prompt-text .token")
    assert strip.locator("bdi").evaluate_all("all => all.map(one => one.textContent)") == shown
    assert strip.locator("sup").evaluate_all("all => all.map(one => one.textContent)") == [
        str(n) for n in range(len(shown))
    ]
    assert set(strip.evaluate_all("all => all.map(one => getComputedStyle(one).unicodeBidi)")) == {"isolate"}
    assert json.loads(strip.nth(2).get_attribute("title").removesuffix(", position 2")) == raw[2]
    assert [shown[3], shown[4], shown[2][-1]] == ["∅", "·a", "…"]
    aligned = tab.locator(".aligned bdi").evaluate_all("all => all.map(one => one.textContent)")
    assert {"שלום", "∅", "·a"} <= set(aligned)
