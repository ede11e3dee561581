"""Memory as a section of a page: analogies with their verdicts, retention, half-lives, lags, gates.

Reads the three tables of `mechview memory`. The report and the page of its own (`memory_page`) show the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from mechview.reporting.drawings import Drawing, Key
from mechview.reporting.numerals import written
from mechview.reporting.svg import Line, heatmap, lines

SHOWN_GATES = {"lstm": ("input", "forget", "output"), "transformer": ("pattern", "coherence", "forget")}
KINDS = ("pattern", "message", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class MemoryTables:
    """The tables `memory`, `gates` and `analogies`, what a reader must know, and the completeness error."""

    memory: pd.DataFrame
    gates: pd.DataFrame
    analogies: pd.DataFrame
    notes: tuple[str, ...] = ()
    error: float = float("nan")


@dataclass(frozen=True)
class MemorySection:
    """What a template needs."""

    analogies: list[dict[str, str]]
    drawings: list[Drawing]
    strongest: list[dict[str, str]]
    notes: tuple[str, ...]
    error: str


def memory_section(found: MemoryTables) -> MemorySection:
    """All that is shown of memory."""
    return MemorySection(
        analogy_rows(found.analogies), charts(found.memory, found.gates), summary_rows(found.memory), found.notes,
        written(found.error),
    )  # fmt: skip


def analogy_rows(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Each analogy under each mapping, numbers written out."""
    numbers = ("lstm", "transformer", "lo", "hi", "null_tokens", "null_weights")
    return [
        {name: written(row[name]) if not np.isnan(row[name]) else "–" for name in numbers}
        | {name: str(row[name]) for name in ("claim", "mapping", "statistic", "verdict", "meaning")}
        for row in frame.to_dict("records")
    ]


def summary_rows(memory: pd.DataFrame) -> list[dict[str, str]]:
    """The judged numbers of single writes and heads that their nulls do not explain, strongest first."""
    judged = memory[(memory["verdict"] == "informative") & (memory["place"] != "all")]
    gap = (judged["value"] - judged["null_weights"]).abs() / judged["null_weights_sd"].clip(lower=1e-12)
    rows = judged.loc[gap.sort_values(ascending=False).index[:24]]
    columns = ("value", "lo", "hi", "null_tokens", "null_weights")
    return [
        {name: written(row[name]) if not np.isnan(row[name]) else "–" for name in columns}
        | {"place": str(row["place"]), "quantity": str(row["quantity"]).replace("_", " ")}
        | {"later": "" if pd.isna(row["later"]) else str(row["later"])}
        for row in rows.to_dict("records")
    ]


def charts(memory: pd.DataFrame, gates: pd.DataFrame) -> list[Drawing]:
    """Each chart that there are numbers for."""
    found = [depth_map(memory), time_retention(memory), half_lives(memory), lag_chart(memory)]
    drawn = [one for one in found if one is not None]
    sides = [side for side in ("lstm", "transformer") if (gates["side"] == side).any()]
    return drawn + [gate_chart(gates, side) for side in sides]


def depth_map(memory: pd.DataFrame) -> Drawing | None:
    rows = memory[(memory["quantity"] == "retention") & (memory["over"] == "depth")]
    if rows.empty:
        return None
    names = list(dict.fromkeys(rows["place"]))
    wide = rows.pivot(index="place", columns="later", values="value").reindex(index=names, columns=names)
    values = [
        [None if c < r else float(v) for c, v in enumerate(row)] for r, row in enumerate(wide.to_numpy(dtype=float))
    ]
    about = (
        "What is left of each write after each later one. The ground's colour is all of it, blue less (-1 and below at the "
        "strongest), orange more than was written (3 and above at the strongest)."
    )
    lost = rows[rows["place"] != rows["later"]].nsmallest(3, "value")
    least = ", ".join(f"{one.place} after {one.later} {written(one.value)}" for one in lost.itertuples())
    chart = heatmap(values, names, f"{about} Least is left of {least}.", scale=(-1.0, 1.0, 3.0))
    return Drawing("Retention over depth (transformer)", about, chart)


def time_retention(memory: pd.DataFrame) -> Drawing | None:
    rows = memory[(memory["quantity"] == "retention") & (memory["over"] == "time")]
    if rows.empty:
        return None
    found = _by_place(rows, "lag")
    about = "Mean over channels of what is left of a write after so many steps."
    return Drawing(
        "Retention over time (LSTM)",
        about,
        lines(found, _told(about, found), "steps", "share left", top=1.0),
        _keys(found),
    )


def half_lives(memory: pd.DataFrame) -> Drawing | None:
    rows = memory[(memory["quantity"] == "half_life") & (memory["place"] != "all")]
    found, censored = [], 0
    for n, ((side, group), part) in enumerate(_groups(rows)):
        values = np.sort(part["value"].to_numpy(dtype=float))
        finite = values[np.isfinite(values) & (values > 0)]
        censored += int(np.isinf(values).sum())
        share = (np.arange(len(finite)) + 1.0) / len(values)
        found.append(Line(f"{side} {group}", list(finite), list(share), KINDS[n % len(KINDS)]))
    about = (
        "Share of an LSTM's channels (steps) and of a transformer's writes (writes) whose half-life is shorter; "
        f"{censored} are censored: more than half is left at the end."
    )
    return Drawing(
        "Half-lives",
        about,
        lines(found, _told(about, found), "half-life", "share shorter", log_x=True, top=1.0),
        _keys(found),
    )


def _groups(rows: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """An LSTM's layers apart; all writes of a transformer together."""
    keys = rows["place"].where(rows["side"] == "lstm", "writes")
    return [(key, part) for key, part in rows.groupby([rows["side"].astype(str), keys], sort=False)]


def lag_chart(memory: pd.DataFrame) -> Drawing | None:
    rows = memory[(memory["quantity"] == "lag_mass")]
    if rows.empty:
        return None
    found = _by_place(rows, "lag")
    about = (
        "Where the mass lies: of an LSTM the retained input gate (R∘i), of a transformer attention without its first "
        "key, and attention spread evenly; each sums to 1."
    )
    return Drawing(
        "Mass against lag", about, lines(found, _told(about, found), "lag (tokens)", "share of the mass"), _keys(found)
    )


def _told(about: str, found: list[Line]) -> str:
    """The explanation with the first and the last value of every line."""
    ends = [f"{line.name} from {written(line.y[0])} to {written(line.y[-1])}" for line in found if len(line.y)]
    return f"{about} {'; '.join(ends)}."


def _keys(found: list[Line]) -> tuple[Key, ...]:
    return tuple(Key(line.name, line.kind) for line in found)


def _by_place(rows: pd.DataFrame, column: str) -> list[Line]:
    found = []
    for n, ((side, place), part) in enumerate(rows.groupby(["side", "place"], observed=True, sort=False)):
        part = part.sort_values(column)
        kind = "even" if place == "even attention" else KINDS[n % len(KINDS)]
        x, y = part[column].astype(float), part["value"]
        found.append(Line(f"{side} {place}", list(x), list(y), kind))
    return found


def gate_chart(gates: pd.DataFrame, side: str) -> Drawing:
    """Gates over the first prompt: means over layers, so that a deep model stays readable."""
    rows = gates[(gates["side"] == side) & (gates["prompt_id"] == gates["prompt_id"].min())]
    rows = rows[rows["gate"].isin(SHOWN_GATES[side])]
    tokens = rows.drop_duplicates("pos").sort_values("pos")
    step = max(1, len(tokens) // 40)
    ticks = list(zip(tokens["pos"].astype(float), tokens["token"], strict=True))[::step]
    found = []
    for n, (gate, part) in enumerate(rows.groupby("gate", observed=True, sort=False)):
        means = part.groupby("pos")["value"].mean().sort_index()
        found.append(Line(str(gate), list(means.index.astype(float)), list(means), KINDS[n % len(KINDS)]))
    about = {
        "lstm": "Means over all channels and layers of the three gates at each token.",
        "transformer": "Pattern: mean weight a token is read with by later ones; coherence: how much of what was gathered "
        "gets out; forget: the effective gate of the writes at this token. Means over heads and layers.",
    }[side]
    return Drawing(
        f"Gates over the text ({side})", about, lines(found, _told(about, found), "", "gate", ticks=ticks), _keys(found)
    )
