"""Reports shared by the tests: gathered once from `toy`, and one whose every text is hostile."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import cycle, islice

import mechview as mv
from mechview.reporting.gather import Gathered, gather
from mechview.reporting.page import render
from reports_text import HOSTILE

PROMPT = "And the evening and the morning were the first day. And the evening and the morning"
SETTINGS = {"fold": True, "offset": 0, "bos": "auto", "keep_text": True}
EVERYTHING = {"layers": None, "heads": None}


@cache
def gathered() -> Gathered:
    return gather(mv.load("toy"), [PROMPT], EVERYTHING, SETTINGS, None)


@cache
def hostile() -> Gathered:
    """The same numbers, but every token, the model's name, a warning and the command are hostile."""
    found = gathered()
    view = found.prompts[0]
    texts = list(islice(cycle(HOSTILE), len(view.tokens)))
    tokens = view.tokens.assign(shown=texts, text=texts)
    manifest = found.manifest | {"model": HOSTILE[0], "command": HOSTILE[1], "warnings": list(HOSTILE)}
    return dataclasses.replace(found, manifest=manifest, prompts=(dataclasses.replace(view, tokens=tokens),))


@cache
def page(which: str = "plain") -> str:
    return render(hostile() if which == "hostile" else gathered())
