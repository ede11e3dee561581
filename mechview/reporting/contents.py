"""What the page shows, as values: rows of the head table, metrics of the overview, data of the cards.

Reads frames and arrays only. Text stays text here; it is escaped once, where HTML is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from mechview.heads.notes import NOTES
from mechview.reporting.card_contents import card_data, effect_data
from mechview.reporting.gather import Gathered, HeadView, PromptView
from mechview.reporting.nulls import gaussian_spectrum
from mechview.reporting.numerals import column_texts, written
from mechview.reporting.packing import STEPS, coded, number, numbers
from mechview.reporting.stream_contents import stream_data

SIDES = ("pattern", "message")
MEASURES = ("top_singular_value", "norm", "stable_rank", "effective_rank", "parity_error")
HEADINGS = {
    "top_singular_value": "σ₁", "norm": "norm", "stable_rank": "stable rank",
    "effective_rank": "eff. rank", "parity_error": "parity error",
}  # fmt: skip
TOP_PAIRS = 5


def places(heads: pd.DataFrame, roles: Mapping[str, str] = MappingProxyType({})) -> list[dict[str, Any]]:
    """One entry a head, in the order of the frame; `role` is its role line, empty where none was looked for."""
    first = heads.drop_duplicates("label")
    return [
        {
            "label": row.label, "stack": str(row.stack), "layer": int(row.layer), "head": int(row.head),
            "kv": int(row.kv_head), "offset": None if pd.isna(row.offset) else int(row.offset),
            "role": roles.get(row.label, ""),
        }
        for row in first.itertuples()
    ]  # fmt: skip


def table_columns(gathered: Gathered) -> list[dict[str, Any]]:
    """Columns of the head table: texts aligned by decimals, values to sort by, the null in the heading."""
    columns = []
    for side in SIDES:
        for measure in MEASURES:
            rows = gathered.heads[gathered.heads["metric"] == f"{side}_{measure}"]
            values = rows["value"].to_numpy(dtype=float)
            error = measure == "parity_error"
            texts = [written(v) for v in values] if error else column_texts(values)
            if error and gathered.parity is None:
                texts = ["–"] * len(values)
            columns.append(
                {"side": side, "heading": HEADINGS[measure], "title": NOTES[f"{side}_{measure}"].definition,
                 "null": _null_text(rows), "texts": texts, "keys": [str(number(v, 9)) for v in values]}
            )  # fmt: skip
    return columns + score_columns(gathered)


def score_columns(gathered: Gathered) -> list[dict[str, Any]]:
    """Columns of the metrics that roles rest on; none where roles were not looked for."""
    columns = []
    for name, rows in score_rows(gathered):
        values = rows["value"].to_numpy(dtype=float)
        texts = [text if there else "–" for text, there in zip(column_texts(values), ~np.isnan(values), strict=True)]
        columns.append(
            {"side": "scores", "heading": NOTES[name].title, "title": NOTES[name].definition, "null": _null_range(rows),
             "texts": texts, "keys": [str(number(v, 9)) for v in values]}
        )  # fmt: skip
    return columns


def score_rows(gathered: Gathered) -> list[tuple[str, pd.DataFrame]]:
    """Rows of each metric that exists for some head, in the order of the head table."""
    if gathered.scores is None:
        return []
    labels = [place["label"] for place in places(gathered.heads)]
    groups = gathered.scores.groupby("metric", observed=True, sort=False)
    found = [(str(name), rows.set_index("label").reindex(labels)) for name, rows in groups]
    return [(name, rows) for name, rows in found if rows["value"].notna().any()]


def _null_range(rows: pd.DataFrame) -> str:
    """The nulls of a metric, which differ from layer to layer."""
    means = rows["null_mean"].dropna()
    return "" if means.empty else f"null {means.min():.2f} to {means.max():.2f}"


def _null_text(rows: pd.DataFrame) -> str:
    mean, sd = float(rows["null_mean"].iloc[0]), float(rows["null_sd"].iloc[0])
    return "" if np.isnan(mean) else f"null {mean:.1f} ± {sd:.2f}"


def metrics(gathered: Gathered) -> list[dict[str, Any]]:
    """What the overview can be coloured by: weights first, then what heads did on each prompt."""
    found = []
    for name in gathered.heads["metric"].cat.categories if gathered.parity is not None else _without_errors(gathered):
        rows = gathered.heads[gathered.heads["metric"] == name]
        kind = "log" if name.endswith("parity_error") else "plain"
        found.append(_metric(name, "from weights", rows, kind))
    ordered = sorted(found, key=lambda m: list(NOTES).index(m["name"]))
    labels = [place["label"] for place in places(gathered.heads)]
    for name, rows in score_rows(gathered):
        ordered.append(
            _metric(
                name,
                "on test prompts",
                rows,
                "signed" if (rows["value"] < 0).any() else "plain",
                rows["value"].notna().to_numpy(),
            )
        )
    for n, view in enumerate(gathered.prompts):
        for name, rows in view.summaries.groupby("metric", observed=True, sort=False):
            aligned = rows.set_index("label").reindex(labels)
            exists = aligned["n"].fillna(0).to_numpy() > 0
            ordered.append(_metric(str(name), f"on prompt {n}", aligned, "plain", exists))
        share = pd.Series({head.label: head.share for head in view.heads}).reindex(labels)
        frame = pd.DataFrame({"value": share, "null_mean": np.nan})
        ordered.append(_metric("write_share", f"on prompt {n}", frame, "signed"))
    return ordered


def _without_errors(gathered: Gathered) -> list[str]:
    return [name for name in gathered.heads["metric"].cat.categories if not name.endswith("parity_error")]


def _metric(name: str, group: str, rows: pd.DataFrame, kind: str, exists: np.ndarray | None = None) -> dict[str, Any]:
    """One entry of the overview's menu; a value that does not `exist` is null, which is not NaN."""
    null = rows["null_mean"].to_numpy(dtype=float)
    sd = rows["null_sd"].to_numpy(dtype=float) if "null_sd" in rows else np.full(len(rows), np.nan)
    there = np.ones(len(rows), dtype=bool) if exists is None else exists
    values = [number(value) if is_there else None for value, is_there in zip(rows["value"], there, strict=True)]
    return {
        "name": name, "title": NOTES[name].title, "unit": NOTES[name].unit, "about": NOTES[name].definition, "group": group,
        "kind": kind, "values": values, "null": _known(null), "sd": _known(sd),
    }  # fmt: skip


def _known(values: np.ndarray) -> list[Any] | None:
    """Numbers, null where there is none; null for all where there is none at all."""
    return None if np.isnan(values).all() else [None if np.isnan(v) else number(v) for v in values]


def page_data(gathered: Gathered, scores: bool, steps: int = STEPS) -> dict[str, Any]:
    """Everything the page's script draws from; weights are kept to `1 / steps`."""
    shape = gathered.manifest["shape"]
    null = gaussian_spectrum(shape["d_model"], shape["d_head"], gathered.manifest["arguments"]["seed"])
    heads = places(gathered.heads, gathered.roles)
    labels = [head["label"] for head in heads]
    effects = gathered.details.effects if gathered.details else ()
    return {
        "heads": heads,
        "metrics": metrics(gathered),
        "details": card_data(gathered.details, labels),
        "spectra": {side: _spectra(gathered.svd, side) for side in SIDES},
        "null": {"mean": numbers(null["mean"], 4), "sd": numbers(null["sd"], 3)},
        "parity": gathered.parity is not None,
        "prompts": [
            _prompt(view, scores, steps) | {"effects": effect_data(effects[n], labels) if n < len(effects) else None}
            for n, view in enumerate(gathered.prompts)
        ],
    }


def _spectra(svd: pd.DataFrame, side: str) -> list[list[Any]]:
    rows = svd[svd["side"] == side]
    return [numbers(values["sigma"], 4) for _, values in rows.groupby("label", sort=False)]


def _prompt(view: PromptView, scores: bool, steps: int) -> dict[str, Any]:
    return {
        "tokens": {stack: _tokens(rows) for stack, rows in view.tokens.groupby("stack", observed=True)},
        "scores_from": view.scores_from,
        "bias": {site: number(share) for site, share in view.bias_shares.items()},
        "steps": steps,
        "views": {head.label: _view(head, scores, steps) for head in view.heads},
        "stream": stream_data(view.stream),
    }


def prompt_names(gathered: Gathered) -> list[str]:
    """How each prompt is called in the menu: its number and how it starts."""
    starts = ["".join(view.tokens["shown"].iloc[:10]).replace("·", " ") for view in gathered.prompts]
    return [f"{n}: {start[:48]}" for n, start in enumerate(starts)]


def _tokens(rows: pd.DataFrame) -> list[list[Any]]:
    """Text shown, its exact text, and whether it is special."""
    return [[row.shown, row.text, bool(row.special)] for row in rows.itertuples()]


def _view(head: HeadView, scores: bool, steps: int) -> dict[str, Any]:
    seen = ~np.isneginf(head.score)
    finite = head.score[np.isfinite(head.score)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    return {
        "w": coded(head.weight, seen, 0.0, 1.0, steps),
        "s": coded(head.score, seen, low, high) if scores else None,
        "range": [number(low, 9), number(high, 9)],
        "value": numbers(head.value_norm, 4),
        "write": numbers(head.write_norm, 4),
        "share": number(head.share),
        "top": top_pairs(head, seen),
        "rest": top_pairs(head, seen & (np.arange(seen.shape[1]) > 0)),
    }


def top_pairs(head: HeadView, allowed: np.ndarray, count: int = TOP_PAIRS) -> list[list[Any]]:
    """The largest weights among the allowed cells, with their exact scores, NaN first: the picture in numbers.

    Queries that see one key only are passed over: their weight is 1 whatever the head does.
    """
    choosing = allowed & (np.isneginf(head.score).sum(axis=1, keepdims=True) < head.score.shape[1] - 1)
    order = np.where(choosing, np.where(np.isnan(head.weight), np.inf, head.weight), -1.0)
    flat = np.argsort(-order, axis=None, kind="stable")[: min(count, int(choosing.sum()))]
    pairs = [divmod(int(place), head.weight.shape[1]) for place in flat]
    return [[q, k, number(head.weight[q, k]), number(head.score[q, k])] for q, k in pairs]
