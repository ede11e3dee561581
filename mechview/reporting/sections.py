"""Sections that a report holds only when they are asked for: comparisons, the spin correspondence, memory.

Like `gather`, this reaches models. What was saved by `mechview spin` or `mechview memory` is read instead of
measured, and checked to be of the same model before anything long begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechview.errors import UnsupportedError, UsageError
from mechview.reporting.comparing import ComparisonView, compare_models, compare_prompts
from mechview.reporting.memory_section import MemoryTables
from mechview.reporting.saved import saved_memory, saved_spin
from mechview.reporting.spin_section import SpinTables

QUICK = "fitted for this page with few draws and without whole-model controls; mechview spin --claims measures more"


@dataclass(frozen=True)
class Extras:
    """What was asked for beyond heads and stream: prompts and a model to compare with, and two measurements.

    `spin` and `memory` are False, True, or the file of a saved result.
    """

    compare: tuple[Any, ...] = ()
    other: Any = None
    spin: bool | Path = False
    memory: bool | Path = False

    def told(self) -> dict[str, Any]:
        """The same as plain values, without the prompts' text."""
        named = None if self.other is None else str(self.other.source.name)
        spin, memory = (path.name if isinstance(path, Path) else path for path in (self.spin, self.memory))
        return {"compare": len(self.compare), "compare_model": named, "spin": spin, "memory": memory}


def extras(compare: Any = None, other: Any = None, spin: Any = False, memory: Any = False) -> Extras:
    """What a caller asked for, checked.

    Raises:
        UsageError: `spin` or `memory` is neither a bool nor the path of a file.
    """
    for name, value in (("spin", spin), ("memory", memory)):
        if not isinstance(value, bool | str | Path):
            raise UsageError(f"{name}={value!r} is neither True nor the path of a saved result")
    prompts = () if compare is None else (compare,) if isinstance(compare, str) else tuple(compare)
    listed = (list(prompts),) if prompts and all(isinstance(item, int) for item in prompts) else prompts
    spin, memory = (value if isinstance(value, bool) else Path(value) for value in (spin, memory))
    return Extras(listed, other, spin, memory)


@dataclass(frozen=True)
class Sections:
    """What was found; empty, or None, where it was not asked for or cannot be (`remarks` say why)."""

    comparisons: tuple[ComparisonView, ...] = ()
    spin: SpinTables | None = None
    memory: MemoryTables | None = None
    remarks: tuple[str, ...] = ()


def gather_sections(
    model: Any, prompts: Sequence[Any], traces: Sequence[Any], asked: Extras, settings: dict[str, Any], seed: int
) -> Sections:
    """Measure or read what was asked for.

    Raises:
        UsageError: a saved result of another model, or a comparison without a prompt.
    """
    remarks: list[str] = []
    about = _about(model, asked)
    spin = saved_spin(asked.spin, about, settings["keep_text"]) if isinstance(asked.spin, Path) else None
    memory = saved_memory(asked.memory, about, settings["keep_text"]) if isinstance(asked.memory, Path) else None
    found = [compare_prompts(model, traces, asked.compare, settings, seed)] if asked.compare else []
    if asked.other is not None:
        found.append(compare_models(model, asked.other, prompts if traces else (), settings, seed))
    if asked.spin is True:
        spin = _tried(lambda: _spins(model, seed), "The spin correspondence", remarks)
    if asked.memory is True:
        memory = _tried(lambda: _memory(model, prompts if traces else (), settings, seed), "Memory", remarks)
    return Sections(tuple(found), spin, memory, tuple(remarks))


def _about(model: Any, asked: Extras) -> dict[str, Any]:
    """What a saved result must agree with; hashing reads the weights, so only where it is needed."""
    from mechview.manifest import weights_digest

    saved = isinstance(asked.spin, Path) or isinstance(asked.memory, Path)
    digest = weights_digest(model.weights) if saved else None
    return {"model": model.source.name, "revision": model.source.revision, "weights_sha256": digest}


def _tried(make: Any, what: str, remarks: list[str]) -> Any:
    try:
        return make()
    except UnsupportedError as error:
        remarks.append(f"{what} was asked for, but cannot be measured: {error}.")
        return None


def _spins(model: Any, seed: int) -> SpinTables:
    from mechview.spins.layers.claims import claims
    from mechview.spins.layers.fit import fit_spins
    from mechview.tables import thermo_frame

    found = fit_spins(model, quick=True, seed=seed)
    return SpinTables(claims(model, found).frame(), found.frame(), thermo_frame(found), QUICK)


def _memory(model: Any, prompts: Sequence[Any], settings: dict[str, Any], seed: int) -> MemoryTables:
    from mechview.recurrent.memory import memory
    from mechview.tables import analogies_frame, gates_frame

    found = memory(model, list(prompts) or None, causal=False, bos=settings["bos"], seed=seed)
    gates = gates_frame(found)
    return MemoryTables(
        found.frame(), gates if settings["keep_text"] else gates.assign(token="•"), analogies_frame(found),
        found.notes, found.error,
    )  # fmt: skip
