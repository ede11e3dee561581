"""Text as a terminal may show it: one line, nothing that a terminal would obey."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text on one line, control characters and lone surrogates written out."""
    return " ".join("".join(_safe(char) for char in line) for line in text.splitlines()).strip()


def _safe(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
