"""One page about memory alone: an LSTM's cells and a transformer's stream side by side, with verdicts.

The section is the report's own, in the report's look. The page holds no script: its charts are inline SVG, its
policy allows one style sheet by hash and no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from mechview.exports import json_text
from mechview.reporting.memory_section import MemoryTables, memory_section
from mechview.reporting.page import environment, joined, policy
from mechview.reporting.section_notes import MEMORY_NOTES

STYLES = ("base.css", "sections.css")


def render_memory(found: MemoryTables, manifest: Mapping[str, Any]) -> str:
    """The page, from the three tables of `mechview memory`."""
    style = joined(STYLES)
    values = {
        "policy": policy("", style), "style": Markup(style), "title": str(found.analogies["model"].iloc[0]),
        "memory": memory_section(found), "notes": MEMORY_NOTES, "manifest": json_text(manifest),
    }  # fmt: skip
    return str(environment().get_template("memory.html").render(**values))
