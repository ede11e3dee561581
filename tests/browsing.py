"""A real browser for tests of pages; without one they fail, with the line that installs it.

Fixtures `browser` and `visit`, and what tests do with a page: open a card, count the colours of a picture.
"""

from __future__ import annotations

import os
import shutil

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    if not CHROMIUM:
        pytest.fail("no Chromium for the page tests: apt-get install chromium, or set CHROMIUM to one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a page; afterwards nothing may have been asked of a network, and the console must be empty."""
    opened, noise = [], []

    def open_page(html: str, width: int = 1280, scheme: str = "light", address: str = ""):
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(tab)
        tab.on("console", lambda message: noise.append(message.text))
        tab.on("pageerror", lambda error: noise.append(str(error)))
        tab.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
        tab.on("request", lambda request: noise.append(request.url) if not _own(request.url) else None)
        tab.goto(path.as_uri() + address)
        return tab

    def _own(url: str) -> bool:
        return url.startswith(("file:", "data:", "blob:"))

    yield open_page
    for tab in opened:
        tab.close()
    assert noise == []


def open_card(tab, label: str):
    tab.locator(f"#{label} > summary").click()
    tab.wait_for_selector(f"#{label} .attention canvas")
    return tab.locator(f"#{label}")


def colours(tab, selector: str) -> int:
    """How many different colours a canvas shows; 1 or 0 is a blank one."""
    return tab.evaluate(
        """selector => {
          const canvas = document.querySelector(selector);
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const seen = new Set();
          for (let n = 0; n < data.length; n += 4) seen.add(data.slice(n, n + 4).join());
          return seen.size;
        }""",
        selector,
    )
