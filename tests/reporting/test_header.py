"""The header says everything that somebody needs to make the page again, and the citation can be copied."""

from __future__ import annotations

import re

import pytest
from reports import HOSTILE, gathered, page
from test_report_page import Parsed

from mechview.manifest import recorded
from mechview.reporting.build import report
from mechview.reporting.wording import bibtex, citation, facts


def test_the_header_is_complete(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mechview", "report", "toy", "-p", "And the evening"])
    with recorded() as run:
        run.warnings.append("UserWarning: something happened")
        path = report(toy, ["And the evening"], out=tmp_path / "page.html", roles=False, run=run)
    found = Parsed(path.read_text(encoding="utf-8"))
    told = dict(zip(found.texts["dt"], found.texts["dd"], strict=False))
    sha = gathered().manifest["weights_sha256"]
    assert told["Model"] == "toy"
    assert told["Revision"] == "final"
    assert told["Weights sha256"] == sha
    assert re.fullmatch("[0-9a-f]{64}", told["Tokenizer sha256"])
    assert told["Numbers"].startswith("read float")
    assert told["Norm gains"] == "folded into the factors"
    assert told["BOS policy"] == "auto; prompt 0: one was added"
    assert told["Seed"] == "0"
    assert re.fullmatch(r"\d+\.\d s, peak \d+ MB", told["Time and memory"])
    assert re.match(r"20\d\d-\d\d-\d\dT", told["Made"])
    assert told["Command"] == "mechview report toy -p And the evening"
    assert any("something happened" in item for item in found.texts["li"])


def test_every_fact_is_in_the_manifest_too():
    names = {term for term, _ in facts(gathered())}
    assert {
        "Model",
        "Revision",
        "Weights sha256",
        "Norm gains",
        "BOS policy",
        "Seed",
        "Time and memory",
        "Command",
    } <= names


def test_the_citation_names_the_weights_and_the_version():
    about = gathered().manifest
    assert citation(about).startswith(
        f"Head report of toy, revision final, weights sha256 {about['weights_sha256'][:16]}, made with mechview"
    )
    entry = bibtex(about | {"model": "a_b{c}\\d", "date": "2030-01-02T00:00:00Z"})
    assert "title = {Head report of a\\_b\\{c\\}\\textbackslash{}d}" in entry
    assert "year = {2030}" in entry
    assert about["weights_sha256"] in entry
    assert entry.count("{") - entry.count("\\{") == entry.count("}") - entry.count("\\}")


@pytest.mark.page
@pytest.mark.parametrize("which", ["plain", "hostile"])
def test_the_citation_can_be_copied(visit, which):
    tab = visit(page(which))
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for name in ("citation", "bibtex"):
        tab.locator(f"#copy-{name}").click()
        tab.wait_for_function("name => document.getElementById(`copy-${name}`).textContent === 'Copied'", arg=name)
        copied = tab.evaluate("navigator.clipboard.readText()")
        assert copied.replace("\r\n", "\n") == tab.locator(f"#{name}").evaluate("one => one.textContent")
        assert "Head report of" in copied
    assert which == "plain" or HOSTILE[0] in tab.locator("#citation").text_content()
