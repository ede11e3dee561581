"""One HTML file that fetches nothing: templates of the package, filled by jinja2 with everything escaped.

The content security policy allows exactly one script and one style sheet, by hash, and no request. Data
stand in a JSON block that cannot be left; the script only ever sets text, never markup. Plotly's script is not
put into pages: it makes functions of text, which the policy forbids, and weighs more than a page may.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from mechview.exports import json_text
from mechview.heads.notes import NOTES
from mechview.heads.registry import Metric
from mechview.reporting import wording
from mechview.reporting.compare_section import comparison_section
from mechview.reporting.contents import page_data, places, prompt_names, table_columns
from mechview.reporting.gather import Gathered
from mechview.reporting.memory_section import memory_section
from mechview.reporting.packing import STEPS, script_json
from mechview.reporting.section_notes import COMPARISON_NOTES, MEMORY_NOTES, SPECTRUM_NULL, SPIN_NOTES, STREAM_NOTES
from mechview.reporting.spin_section import spin_section

STYLES = ("base.css", "report.css", "cards.css", "sections.css")
SCRIPTS = (
    "format.js", "data.js", "pointing.js", "axes.js", "charts.js", "filter.js", "overview.js", "table.js", "attention.js", "stream.js",
    "circuits.js", "partners.js", "cards.js", "printing.js", "keys.js", "main.js",
)  # fmt: skip


def render(gathered: Gathered, *, scores: bool = True, steps: int = STEPS) -> str:
    """The page of a report, with or without scores before softmax, weights kept to `1 / steps`."""
    style, script = joined(STYLES), joined(SCRIPTS)
    return (
        environment()
        .get_template("report.html")
        .render(
            policy=policy(script, style),
            style=Markup(style),
            script=Markup(script),
            data=Markup(script_json(page_data(gathered, scores, steps))),
            **_words(gathered),
        )
    )


def _words(gathered: Gathered) -> dict[str, Any]:
    heads = places(gathered.heads, gathered.roles)
    return {
        "model": gathered.manifest["model"],
        "subtitle": wording.subtitle(gathered.manifest),
        "verdict": wording.verdict(gathered.parity),
        "parity_rows": wording.parity_rows(gathered.parity),
        "facts": wording.facts(gathered),
        "warnings": wording.warnings(gathered),
        "limits": gathered.limits,
        "heads": heads,
        "columns": table_columns(gathered),
        "example": wording.filter_example(gathered),
        "stacks": {stack: wording.STACK_WORDS[stack] for stack in dict.fromkeys(head["stack"] for head in heads)},
        "prompts": prompt_names(gathered),
        "notes": notes_of(gathered),
        "citation": wording.citation(gathered.manifest),
        "bibtex": wording.bibtex(gathered.manifest),
        "manifest": json_text(gathered.manifest),
    } | _sections(gathered)


def _sections(gathered: Gathered) -> dict[str, Any]:
    """What was asked for beyond heads and stream; None or empty otherwise."""
    found = gathered.sections
    return {
        "comparisons": [comparison_section(view) for view in found.comparisons],
        "spin": None if found.spin is None else spin_section(found.spin),
        "memory": None if found.memory is None else memory_section(found.memory),
    }


def notes_of(gathered: Gathered) -> dict[str, Metric]:
    """The notes of every number on this page: of the registry, and of the sections that it has."""
    found = gathered.sections
    return (
        dict(NOTES)
        | SPECTRUM_NULL
        | (STREAM_NOTES if gathered.prompts else {})
        | (COMPARISON_NOTES if found.comparisons else {})
        | (SPIN_NOTES if found.spin is not None else {})
        | (MEMORY_NOTES if found.memory is not None else {})
    )


def policy(script: str, style: str) -> str:
    """What the page may do: run this script, use this style, nothing else."""
    return (
        f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def source_hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@cache
def joined(names: tuple[str, ...]) -> str:
    return "\n" + "\n".join(_read(name) for name in names)


def _read(name: str) -> str:
    return resources.files("mechview.reporting").joinpath("page", name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Templates of the package by name; whatever they are given is escaped."""
    return Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
