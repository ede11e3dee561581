"""One page about memory: an LSTM's cells and a transformer's stream side by side, with verdicts.

Reads frames only. The page holds no script: its charts are inline SVG, its policy allows one style sheet by
hash and no request. Text of prompts stands in it only where it may be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from mechview.exports import json_text
from mechview.reporting.page import _environment, _joined, _read, policy
from mechview.reporting.svg import Chart, Line, heatmap, lines
from mechview.reporting.wording import written

STYLES = ("base.css", "memory.css")
SHOWN_GATES = {"lstm": ("input", "forget", "output"), "transformer": ("pattern", "coherence", "forget")}
KINDS = ("pattern", "message", "third", "fourth", "fifth", "sixth")


def render_memory(
    memory: pd.DataFrame,
    gates: pd.DataFrame,
    analogies: pd.DataFrame,
    manifest: Mapping[str, Any],
    notes: list[str],
    error: float,
) -> str:
    """The page, from the three tables of `mechview memory`."""
    style = _joined(STYLES)
    values = {
        "policy": policy("", style), "style": Markup(style), "title": str(analogies["model"].iloc[0]),
        "notes": notes, "error": written(error), "analogies": analogy_rows(analogies),
        "charts": charts(memory, gates), "summaries": summary_rows(memory), "manifest": json_text(manifest),
    }  # fmt: skip
    return _environment().from_string(_read("memory.html")).render(**values)


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


def charts(memory: pd.DataFrame, gates: pd.DataFrame) -> list[tuple[str, str, Chart, list[Line]]]:
    """Heading, explanation, drawing and legend of each chart that there are numbers for."""
    found = [depth_map(memory), time_retention(memory), half_lives(memory), lag_chart(memory)]
    drawn = [one for one in found if one is not None]
    sides = [side for side in ("lstm", "transformer") if (gates["side"] == side).any()]
    return drawn + [gate_chart(gates, side) for side in sides]


Entry = tuple[str, str, Chart, list[Line]]


def depth_map(memory: pd.DataFrame) -> Entry | None:
    rows = memory[(memory["quantity"] == "retention") & (memory["over"] == "depth")]
    if rows.empty:
        return None
    names = list(dict.fromkeys(rows["place"]))
    wide = rows.pivot(index="place", columns="later", values="value").reindex(index=names, columns=names)
    values = [
        [None if c < r else float(v) for c, v in enumerate(row)] for r, row in enumerate(wide.to_numpy(dtype=float))
    ]
    about = (
        "What is left of each write after each later one. White is all of it, blue less, orange more than was written."
    )
    return "Retention over depth (transformer)", about, heatmap(values, names, -1.0, 1.0, 3.0, about), []


def time_retention(memory: pd.DataFrame) -> Entry | None:
    rows = memory[(memory["quantity"] == "retention") & (memory["over"] == "time")]
    if rows.empty:
        return None
    found = _by_place(rows, "lag")
    about = "Mean over channels of what is left of a write after so many steps."
    return "Retention over time (LSTM)", about, lines(found, about, "steps", "share left", top=1.0), found


def half_lives(memory: pd.DataFrame) -> Entry | None:
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
    return "Half-lives", about, lines(found, about, "half-life", "share shorter", log_x=True, top=1.0), found


def _groups(rows: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """An LSTM's layers apart; all writes of a transformer together."""
    keys = rows["place"].where(rows["side"] == "lstm", "writes")
    return [(key, part) for key, part in rows.groupby([rows["side"].astype(str), keys], sort=False)]


def lag_chart(memory: pd.DataFrame) -> Entry | None:
    rows = memory[(memory["quantity"] == "lag_mass")]
    if rows.empty:
        return None
    found = _by_place(rows, "lag")
    about = (
        "Where the mass lies: of an LSTM the retained input gate (R∘i), of a transformer attention without its first "
        "key, and attention spread evenly; each sums to 1."
    )
    return "Mass against lag", about, lines(found, about, "lag (tokens)", "share of the mass"), found


def _by_place(rows: pd.DataFrame, column: str) -> list[Line]:
    found = []
    for n, ((side, place), part) in enumerate(rows.groupby(["side", "place"], observed=True, sort=False)):
        part = part.sort_values(column)
        kind = "even" if place == "even attention" else KINDS[n % len(KINDS)]
        x, y = part[column].astype(float), part["value"]
        found.append(Line(f"{side} {place}", list(x), list(y), kind))
    return found


def gate_chart(gates: pd.DataFrame, side: str) -> Entry:
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
    return f"Gates over the text ({side})", about, lines(found, about, "", "gate", ticks=ticks), found
