"""The base of every answer: what it can be turned into, found in registries that are loaded on first use.

Numbers know nothing of pandas or plotly. `tables` and `figures` register functions for the result types
they can show; `.frame()` and `.figure()` look them up, so imports keep pointing one way.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mechview.errors import UsageError
from mechview.reprs import short_repr

Maker = Callable[[Any], Any]
FRAMES: dict[str, Maker] = {}
FIGURES: dict[str, Maker] = {}


@dataclass(frozen=True, kw_only=True)
class Result:
    """An answer with its checks. `manifest` says how it was made, as plain JSON values."""

    manifest: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __init_subclass__(cls) -> None:
        """Every result shows itself on one line; a dataclass would print all its numbers."""
        super().__init_subclass__()
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = short_repr  # type: ignore[method-assign, assignment]

    def frame(self) -> Any:
        """The answer as a tidy pandas frame of the schema that `mechview schema` prints."""
        return _maker(FRAMES, "mechview.tables", self)(self)

    def figure(self) -> Any:
        """The answer as a plotly figure."""
        return _maker(FIGURES, "mechview.figures", self)(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the first rows, and a small picture where one can be drawn."""
        return str(importlib.import_module("mechview.figures.inline").shown(self))

    def to_xarray(self) -> Any:
        """The answer as an xarray dataset with named axes; needs the `notebook` extra."""
        try:
            importlib.import_module("xarray")
        except ImportError:
            raise UsageError("to_xarray() needs xarray: pip install 'mechview[notebook]'") from None
        return importlib.import_module("mechview.tables.labelled").dataset(self.frame())


def check_count(k: Any) -> int:
    """k, if it is how many rows somebody may ask for.

    Raises:
        UsageError: it is not a positive whole number.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UsageError(f"k={k!r} is not a number of rows; it must be a whole number of at least 1")
    return k


def frame_of(kind: type | str) -> Callable[[Maker], Maker]:
    """Register the function that turns results of this type into a frame."""
    return _register(FRAMES, kind)


def figure_of(kind: type | str) -> Callable[[Maker], Maker]:
    """Register the function that turns results of this type into a figure."""
    return _register(FIGURES, kind)


def _register(registry: dict[str, Maker], kind: type | str) -> Callable[[Maker], Maker]:
    """Kept by name, so that figures can be registered without importing what computes the numbers."""

    def add(maker: Maker) -> Maker:
        registry[kind if isinstance(kind, str) else kind.__name__] = maker
        return maker

    return add


def _maker(registry: dict[str, Maker], module: str, result: Result) -> Maker:
    importlib.import_module(module)
    name = type(result).__name__
    if name not in registry:
        raise UsageError(f"{name} has no such view")
    return registry[name]
