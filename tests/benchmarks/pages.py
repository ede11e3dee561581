"""How long a report takes to open: from the request to a page that answers, in headless Chromium.

`interactive` is when the page's script has run to its end (grid, table and cards answer from then on), `card` how long the
first head takes to be inflated and drawn after a click. The page is the largest that the budgets speak of: 144 heads.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mechview.reporting.build import fitted
from tests.browsing import FLAGS
from tests.reporting.large import from_weights, with_prompt


@dataclass(frozen=True)
class Opening:
    """Megabytes of the page, seconds until it answers, seconds of the first card, elements at the start."""

    length: int
    megabytes: float
    interactive: float
    card: float
    nodes: int


def openings(repeats: int, lengths: tuple[int, ...] = (128, 512)) -> list[Opening]:
    """The best of the repeats for each length of prompt."""
    from playwright.sync_api import sync_playwright

    found, weights = [], from_weights()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for length in lengths:
            path = Path(folder) / f"{length}.html"
            path.write_text(fitted(with_prompt(weights, length), 20_000_000), encoding="utf-8")
            rounds = [_opened(browser, path, length) for _ in range(repeats)]
            found.append(min(rounds, key=lambda one: one.interactive))
        browser.close()
    return found


def _opened(browser, path: Path, length: int) -> Opening:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(path.as_uri(), wait_until="domcontentloaded")
    ready = "() => performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    interactive, nodes = tab.evaluate(ready) / 1e3, tab.evaluate("document.querySelectorAll('*').length")
    started = tab.evaluate("performance.now()")
    tab.locator("#L0H0 > summary").click()
    tab.wait_for_selector("#L0H0 .attention canvas")
    card = (tab.evaluate("performance.now()") - started) / 1e3
    tab.close()
    return Opening(length, path.stat().st_size / 1e6, interactive, card, nodes)
