"""A chart with its heading, its explanation and its legend: what one template draws in every section."""

from __future__ import annotations

from dataclasses import dataclass

from mechview.reporting.svg import Chart


@dataclass(frozen=True)
class Key:
    """One entry of a legend; `kind` is a class of the style sheet."""

    name: str
    kind: str


@dataclass(frozen=True)
class Drawing:
    """`about` is for everybody; what the chart says to those who do not see it is its own."""

    heading: str
    about: str
    chart: Chart
    legend: tuple[Key, ...] = ()
