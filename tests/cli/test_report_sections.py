"""`report` with sections at the command line: what each option adds, and what is refused before any work."""

from __future__ import annotations

import json
import re

import pytest

from mechview.cli import run

PROMPT, OTHER = "And the evening and the morning", "And the evening and the light"


@pytest.fixture
def page(tmp_path, capsys):
    def made(*options: str) -> str:
        path = tmp_path / "page.html"
        assert (
            run(["report", "toy", "-p", PROMPT, "--no-roles", "--out", str(path), "--force", "--quiet", *options]) == 0
        )
        capsys.readouterr()
        return path.read_text(encoding="utf-8")

    return made


def sections(text: str) -> list[str]:
    return re.findall(r'<section id="([a-z]+)"', text)


def test_each_option_adds_its_section_and_the_manifest_says_so(page, tmp_path, capsys):
    saved = tmp_path / "memory.json"
    assert run(["memory", "toy", "-p", PROMPT, "--copies", "0", "--no-causal", "--out", str(saved), "--quiet"]) == 0
    text = page("--compare", OTHER, "--compare-revision", "step-000100", "--memory-from", str(saved))
    assert sections(text) == ["overview", "table", "cards", "stream", "comparison", "memory", "checks", "method"]
    assert "toy (final) against toy (step-000100)" in text
    assert "read from memory.json, made by" in text
    assert "&#34;compare_model&#34;: &#34;toy&#34;" in text
    assert "&#34;memory&#34;: &#34;memory.json&#34;" in text


def test_the_same_prompt_is_stamped(page):
    assert 'class="stamp"' in page("--compare", PROMPT)
    assert 'class="stamp"' not in page("--compare", OTHER)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--memory", "--memory-from", "x.json"], "--memory measures and --memory-from reads: choose one"),
        (["--spin", "--spin-from", "x.json"], "--spin measures and --spin-from reads: choose one"),
        (["--dry-run", "--spin"], "--dry-run counts heads and stream alone"),
        (["--spin-from", "none.json"], "none.json cannot be read"),
    ],
)
def test_what_cannot_be_is_one_sentence(options, sentence, tmp_path, capsys):
    assert run(["report", "toy", "-p", PROMPT, "--out", str(tmp_path / "page.html"), *options]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_dropped_text_takes_the_second_prompt_along(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    arguments = [
        "report",
        "toy",
        "-p",
        "secret",
        "--compare",
        "quoxel",
        "--drop-text",
        "--no-roles",
        "-q",
        "--out",
        str(path),
    ]
    monkeypatch.setattr("sys.argv", ["mechview", *arguments])
    assert run(arguments) == 0
    text = path.read_text(encoding="utf-8")
    assert "quoxel" not in text
    assert text.count("[prompt not kept]") >= 2
    assert json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])["heads"]
