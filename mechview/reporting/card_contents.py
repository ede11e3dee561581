"""What a card shows beyond numbers of its own, as JSON values; each head's are deflated until its card is opened.

A token of the vocabulary is `[text as shown, id]`. Eigenvalues are scaled to norm 1, so that they can lie over those
of random heads. Partners are the strongest of each input by distance from the null, with value, null and z.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from mechview.reporting.details import CardView, Details
from mechview.reporting.packing import number, numbers

PARTNERS = 5
NULL_POINTS = 320  # random eigenvalues drawn under a head's own
NOTHING: Mapping[str, Any] = MappingProxyType({})


def packed(values: Any) -> str:
    """JSON values as deflated text, which the page inflates when it needs them."""
    text = json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def card_data(found: Details | None, labels: list[str]) -> dict[str, Any]:
    """Packed cards by label, random eigenvalues by layer, and why parts are absent."""
    if found is None:
        return {"cards": {}, "random": {}, "absent": {"all": "Left out to keep the page small."}, "totals": False}
    partners, spectra = _partners(found.composition), _spectra(found.eig)
    return {
        "cards": {
            label: packed(
                _card(found.cards.get(label))
                | {"eig": spectra.get(label), "from": partners["dst"].get(label), "to": partners["src"].get(label)}
            )
            for label in labels
        },
        "random": _random(found.eig),
        "compared": found.composition is not None,
        "absent": found.absent,
        "totals": found.totals,
    }


def _card(view: CardView | None) -> dict[str, Any]:
    if view is None:
        return {"listed": False}
    return {
        "listed": True,
        "pairs": None if view.pairs is None else _pairs(view.pairs, ("q", "k", "score")),
        "tokens": None if view.tokens is None else _pairs(view.tokens, ("src", "dst", "logit")),
        "accuracy": None if view.diagonal is None else _accuracy(view.diagonal),
        "readings": {side: _components(frame) for side, frame in view.readings.items()},
        "offsets": None if view.offsets is None else _offsets(view.offsets),
        "missing": list(view.missing),
    }


def _pairs(frame: pd.DataFrame, names: tuple[str, str, str]) -> dict[str, Any]:
    """Highest and lowest pairs, with their distance from the mean of all pairs in standard deviations."""
    row, column, value = names
    found: dict[str, Any] = {"high": [], "low": [], "error": number(frame["completeness_error"].iloc[0], 2)}
    columns = [f"{row}_token", f"{row}_id", f"{column}_token", f"{column}_id", value, "z", "sign"]
    for shown, own, other, its, score, z, sign in frame[columns].itertuples(index=False):
        entry = [[shown, int(own)], [other, int(its)], number(score, 4), number(z, 3)]
        found["high" if sign > 0 else "low"].append(entry)
    return found


def _accuracy(frame: pd.DataFrame) -> list[list[Any]]:
    columns = ["among", "top", "value", "null_mean", "null_sd", "tokens"]
    return [
        [str(among), int(top), number(value), number(mean), number(sd), int(tokens)]
        for among, top, value, mean, sd, tokens in frame[columns].itertuples(index=False)
    ]


def _components(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One entry a component: its two ends, each with the lists of both signs and how alike their tokens are."""
    found = []
    for index, rows in frame.groupby("index", sort=True):
        first = rows.iloc[0]
        ends = {str(end): _ends(part) for end, part in rows.groupby("end", observed=True, sort=False)}
        found.append(
            {"index": int(str(index)), "sigma": number(first["sigma"], 4), "share": number(first["share"], 3),
             "degenerate": bool(first["degenerate"]), "ends": ends}
        )  # fmt: skip
    return found


def _ends(rows: pd.DataFrame) -> dict[str, Any]:
    lists = {}
    for sign, part in rows.groupby("sign", sort=False):
        told = part.sort_values("rank")
        coherence = (part["coherence"].iloc[0], part["random_mean"].iloc[0], part["random_sd"].iloc[0])
        tokens = [[shown, int(own)] for shown, own in told[["token", "token_id"]].itertuples(index=False)]
        lists["+" if int(str(sign)) > 0 else "-"] = {"tokens": tokens, "coherence": numbers(coherence, 3)}
    return lists


def _offsets(frame: pd.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {name: numbers(frame[name], 4) for name in ("norm", "cosine", "cosine_null")}
    return found | {"offset": [int(value) for value in frame["offset"]]}


def _spectra(eig: pd.DataFrame | None) -> Mapping[str, Any]:
    if eig is None:
        return NOTHING
    own = eig[eig["draw"].isna()]
    return {
        str(label): {"re": numbers(rows["re"], 3), "im": numbers(rows["im"], 3), "score": number(rows["score"].iloc[0], 4),
                     "layer": f"{rows['stack'].iloc[0]} {rows['layer'].iloc[0]}"}
        for label, rows in own.groupby("label", observed=True, sort=False)
    }  # fmt: skip


def _random(eig: pd.DataFrame | None) -> dict[str, str]:
    """Eigenvalues of some random heads of each layer, and mean and spread of the scores of all of them."""
    if eig is None:
        return {}
    found = {}
    drawn = eig[eig["draw"].notna()].drop_duplicates(["stack", "layer", "draw", "index"])
    for (stack, layer), rows in drawn.groupby(["stack", "layer"], observed=True, sort=False):
        scores = rows.drop_duplicates("draw")["score"]
        draws = max(1, NULL_POINTS // max(1, int(rows["index"].max()) + 1))
        kept = rows[rows["draw"] < draws]
        found[f"{stack} {layer}"] = packed(
            {"re": numbers(kept["re"], 3), "im": numbers(kept["im"], 3), "draws": min(draws, len(scores)),
             "score": [number(scores.mean(), 3), number(scores.std(), 3), len(scores)]}
        )  # fmt: skip
    return found


def _partners(composition: pd.DataFrame | None) -> dict[str, dict[str, Any]]:
    """For each head, by kind, the strongest senders (`dst`: it is the receiver) and receivers (`src`)."""
    found: dict[str, dict[str, Any]] = {"src": {}, "dst": {}}
    if composition is None:
        return found
    ordered = composition.assign(order=composition["z"].fillna(np.inf)).sort_values(
        "order", ascending=False, kind="stable"
    )
    for side, other in (("src", "dst"), ("dst", "src")):
        for (label, kind), rows in ordered.groupby([f"{side}_label", "kind"], observed=True, sort=False):
            columns = [f"{other}_label", "value", "null", "z"]
            kept = rows[columns].head(PARTNERS).itertuples(index=False)
            found[side].setdefault(str(label), {})[str(kind)] = [
                [str(name), number(value, 4), number(null, 4), number(z, 3)] for name, value, null, z in kept
            ]
            found[side][str(label)].setdefault("of", {})[str(kind)] = len(rows)
    return found


def effect_data(effects: pd.DataFrame | None, labels: list[str]) -> dict[str, Any] | None:
    """Direct and total effect of the heads on the page, on one logit."""
    if effects is None:
        return None
    rows = effects.set_index("component")
    first = effects.iloc[0]
    return {
        "token": str(first["token"]), "position": int(first["position"]), "clean": number(first["clean"]),
        "error": number(first["error"], 2),
        "heads": {label: numbers(rows.loc[label, ["direct", "total"]], 4) for label in labels if label in rows.index},
    }  # fmt: skip
