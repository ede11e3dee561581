"""axe-core on whole pages: no serious or critical fault, in light and dark, on a desk and on a phone."""

from __future__ import annotations

from importlib import resources

import pytest
from reports import memory_page, page, whole_page

from browsing import open_card

pytestmark = pytest.mark.page
AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
GRAVE = ("serious", "critical")


def faults(tab) -> list[str]:
    """Rule, elements and reason of every grave violation."""
    tab.evaluate(AXE)
    found = tab.evaluate("() => axe.run(document, { resultTypes: ['violations'] }).then(found => found.violations)")
    assert isinstance(found, list)
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in found
        if fault["impact"] in GRAVE
        for node in fault["nodes"][:4]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_with_every_section_has_no_grave_fault(visit, width, scheme):
    tab = visit(whole_page(), width, scheme)
    open_card(tab, "L1H2")
    tab.locator("footer").scroll_into_view_if_needed()
    tab.locator("footer summary").click()
    assert faults(tab) == []


def test_the_help_has_no_grave_fault(visit):
    tab = visit(page())
    tab.locator("#help-open").click()
    assert faults(tab) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_memory_has_no_grave_fault(visit, scheme):
    assert faults(visit(memory_page(), 390, scheme)) == []


def test_a_page_with_faults_is_found_out(visit):
    bad = '<!doctype html><html><head><title>x</title></head><body><img src="data:,"><p style="color:#ccc">pale</p></body></html>'
    found = " ".join(faults(visit(bad)))
    assert "image-alt" in found
    assert "html-has-lang" in found
    assert "color-contrast" in found
