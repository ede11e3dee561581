"""One HTML file that fetches nothing: templates of the package, filled by jinja2 with everything escaped.

The content security policy allows exactly one script and one style sheet, by hash, and no request. Data
stand in a JSON block that cannot be left; the script only ever sets text, never markup.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mechview.exports import json_text
from mechview.heads.notes import NOTES
from mechview.reporting import wording
from mechview.reporting.contents import page_data, places, prompt_names, table_columns
from mechview.reporting.gather import Gathered
from mechview.reporting.packing import STEPS, script_json

STYLES = ("base.css", "report.css", "cards.css")
SCRIPTS = (
    "format.js", "data.js", "pointing.js", "axes.js", "charts.js", "filter.js", "overview.js", "table.js", "attention.js", "stream.js",
    "circuits.js", "partners.js", "cards.js", "printing.js", "keys.js", "main.js",
)  # fmt: skip


def render(gathered: Gathered, *, scores: bool = True, steps: int = STEPS) -> str:
    """The page of a report, with or without scores before softmax, weights kept to `1 / steps`."""
    style, script = _joined(STYLES), _joined(SCRIPTS)
    return (
        _environment()
        .from_string(_read("report.html"))
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
        "notes": NOTES,
        "citation": wording.citation(gathered.manifest),
        "manifest": json_text(gathered.manifest),
    }


def policy(script: str, style: str) -> str:
    """What the page may do: run this script, use this style, nothing else."""
    return (
        f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def source_hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@cache
def _joined(names: tuple[str, ...]) -> str:
    return "\n" + "\n".join(_read(name) for name in names)


def _read(name: str) -> str:
    return resources.files("mechview.reporting").joinpath("page", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
