"""Reports shared by the tests: gathered once from `toy`, and one whose every text is hostile."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import cycle, islice

import mechview as mv
from mechview.reporting.comparing import compare_models, compare_prompts
from mechview.reporting.gather import Gathered, gather
from mechview.reporting.memory_page import render_memory
from mechview.reporting.memory_section import MemoryTables
from mechview.reporting.page import render
from mechview.reporting.sections import Sections
from mechview.reporting.spin_section import SpinTables
from mechview.spins.layers.claims import claims
from mechview.tables import analogies_frame, gates_frame, thermo_frame
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


OTHER = PROMPT.replace("morning", "light")


@cache
def sections(other: str = OTHER, spins: bool = True) -> Sections:
    """Every section, measured as little as can be: prompts and checkpoints compared, few draws, one permuted copy."""
    model, settings = mv.load("toy"), SETTINGS | {"roles": False}
    views = (
        compare_prompts(model, [mv.trace(model, PROMPT)], [other], settings, 0),
        compare_models(model, mv.load("toy", revision="step-001000"), [PROMPT, OTHER], settings, 0),
    )
    memory = mv.memory(model, [PROMPT], copies=1, causal=False)
    tables = MemoryTables(memory.frame(), gates_frame(memory), analogies_frame(memory), memory.notes, memory.error)
    return Sections(views, spin_tables() if spins else None, tables)


@cache
def spin_tables() -> SpinTables:
    model = mv.load("toy")
    found = mv.fit_spins(model, quick=True, whole=False, length=32, draws=2, train=4, test=4)
    return SpinTables(claims(model, found).frame(), found.frame(), thermo_frame(found), "fitted for a test")


@cache
def whole(other: str = OTHER) -> Gathered:
    return dataclasses.replace(gathered(), sections=sections(other))


@cache
def whole_page() -> str:
    return render(whole())


@cache
def memory_page() -> str:
    return render_memory(sections().memory, gathered().manifest)
