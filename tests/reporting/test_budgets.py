"""Sizes of pages, and what they do before they can be used: 144 heads on prompts of up to 512 tokens.

How long a page takes to open depends on the machine (`python -m tests.benchmarks --only pages` measures it); what is
asserted here is what that time is spent on: bytes to parse, bytes inflated, elements made, pictures drawn.
"""

from __future__ import annotations

import pytest
from large import from_weights, with_prompt

from mechview.reporting.build import fitted, light_size
from mechview.reporting.gather import Gathered

LIMIT = 20_000_000


@pytest.fixture(scope="module")
def weights_only() -> Gathered:
    return from_weights()


def megabytes(page: str) -> float:
    return len(page.encode("utf-8", "backslashreplace")) / 1e6


def test_a_page_of_weights_alone_stays_below_one_and_a_half_megabytes(weights_only):
    page = fitted(weights_only, LIMIT)
    assert megabytes(page) <= 1.5
    assert len(weights_only.details.cards) == 144
    assert all(view.tokens is not None for view in weights_only.details.cards.values())
    assert "were left out as well" not in page


@pytest.mark.parametrize(("length", "most"), [(128, 2.5), (512, 12.0)])
def test_pages_of_a_prompt_stay_light(weights_only, length, most):
    found = with_prompt(weights_only, length)
    page = fitted(found, LIMIT)
    assert megabytes(page) <= most
    assert "prompts were left out" not in page
    assert "Scores before softmax were left out" in page
    assert light_size(found) <= most * 1e6


def test_short_prompts_keep_scores_and_fine_steps(weights_only):
    page = fitted(with_prompt(weights_only, 32), LIMIT)
    assert "left out to keep the page small" not in page
    assert "kept to steps of" not in page


COUNTED = """
  window.inflated = 0;
  const Original = window.DecompressionStream;
  window.DecompressionStream = class {
    constructor(kind) {
      const inner = new Original(kind);
      const counter = new TransformStream({ transform(chunk, out) { window.inflated += chunk.byteLength; out.enqueue(chunk); } });
      return { writable: inner.writable, readable: inner.readable.pipeThrough(counter) };
    }
  };
"""


@pytest.mark.page
def test_the_largest_page_does_little_before_it_can_be_used(browser, weights_only, tmp_path):
    path = tmp_path / "large.html"
    path.write_text(fitted(with_prompt(weights_only, 512), LIMIT), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.add_init_script(COUNTED)
    tab.goto(path.as_uri())
    tab.wait_for_selector("#stream-host canvas")
    maps = 144 * 512 * 512
    assert tab.locator("#grid .cell").count() == 144
    assert 0 < tab.evaluate("inflated") < maps / 100, "only the stream's grids are inflated, no head's attention"
    assert tab.evaluate("[...document.querySelectorAll('.thumb')].filter(canvas => canvas.width > 1).length") == 0
    assert tab.locator(".card-body > *").count() == 0
    assert tab.evaluate("document.querySelectorAll('*').length") < 12_000
    tab.locator("#L11H11 > summary").click()
    tab.wait_for_selector("#L11H11 .attention canvas")
    assert tab.evaluate("inflated") < maps / 3, "this head and the thumbnails in view, not the others"
    tab.close()
