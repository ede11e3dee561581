"""The report in words: facts of the header, the verdict of the checks, and how numbers are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mechview.reporting.gather import Gathered
from mechview.reporting.numerals import written

NORMS = {"folded": "folded into the factors", "raw": "left out of the factors (raw)"}
STACK_WORDS = {"decoder": "decoder", "encoder": "encoder", "cross": "cross-attention"}


@dataclass(frozen=True)
class Verdict:
    """How the checks came out: `state` is passed, failed or none."""

    state: str
    headline: str
    sentence: str


def verdict(parity: pd.DataFrame | None) -> Verdict:
    """The worst comparison of the factors with the model, in words."""
    if parity is None:
        return Verdict(
            "none", "Not checked against the model", "The model was not run: numbers come from weights alone."
        )
    worst = parity.loc[parity["error"].fillna(np.inf).idxmax()]
    where = f" of {worst['label']}" if isinstance(worst["label"], str) and worst["label"] else ""
    failed = int((~parity["passed"]).sum())
    nan = int(parity["error"].isna().sum())
    counted = (
        f"{failed} of {len(parity)} comparisons are above" if failed else f"all {len(parity)} comparisons are below"
    )
    sentence = (
        f"Worst relative error {written(worst['error'])} ({worst['quantity']}{where}); {counted} "
        f"{worst['tolerance']:g}, on {worst['n_tokens']} tokens of all prompts, against the {worst['backend']}."
    ) + (f" {nan} are NaN." if nan else "")
    return Verdict("failed", "Parity failed", sentence) if failed else Verdict("passed", "Parity passed", sentence)


def parity_rows(parity: pd.DataFrame | None) -> list[dict[str, str]]:
    """The worst comparison of each quantity."""
    rows = []
    for quantity, found in [] if parity is None else parity.groupby("quantity", observed=True, sort=False):
        worst = found.loc[found["error"].fillna(np.inf).idxmax()]
        label = worst["label"] if isinstance(worst["label"], str) and worst["label"] else "whole model"
        state = "passed" if found["passed"].all() else "failed"
        rows.append(
            {"quantity": str(quantity), "count": str(len(found)), "error": written(worst["error"]), "where": label, "state": state}
        )  # fmt: skip
    return rows


def subtitle(manifest: dict[str, Any]) -> str:
    shape = manifest["shape"]
    layers = f"{shape['n_layers']} layers" + (
        f" and {n} encoder layers" if (n := shape.get("n_encoder_layers")) else ""
    )
    groups = "" if shape["n_kv_heads"] == shape["n_heads"] else f" sharing {shape['n_kv_heads']} key/value heads"
    return f"{shape['family']} · {layers} × {shape['n_heads']} heads{groups} · d_model {shape['d_model']}, d_head {shape['d_head']}"


def facts(gathered: Gathered) -> list[tuple[str, str]]:
    """What somebody needs to know, or to repeat, about this page."""
    about = gathered.manifest
    arguments = about["arguments"]
    bos = [f"{arguments['bos']}"] + [f"prompt {n}: {_bos(view.bos)}" for n, view in enumerate(gathered.prompts)]
    found = [
        ("Model", about["model"]),
        ("Revision", about["revision"] or "none recorded"),
        ("Weights sha256", about["weights_sha256"] or "none (live weights)"),
        ("Tokenizer sha256", about["tokenizer_sha256"] or "none"),
        ("Numbers", f"read {about['dtype_read']}, computed {about['dtype_computed']}"),
        ("Norm gains", NORMS[about["norms"]]),
        ("Pattern offset", _offset(gathered.heads)),
        ("BOS policy", "; ".join(bos)),
        ("Scores", gathered.prompts[0].scores_from if gathered.prompts else "none"),
        ("Seed", str(arguments["seed"])),
        ("Time and memory", f"{about.get('seconds', 0):.1f} s, peak {about['peak_memory_mb']:.0f} MB"),
        ("Made", f"{about.get('date', 'undated')} with mechview {about['mechview']}"),
        ("Command", about["command"]),
    ]
    return [(term, str(value)) for term, value in found]


def _bos(added: bool) -> str:
    return "one was added" if added else "none was added"


def _offset(heads: pd.DataFrame) -> str:
    offsets = heads["offset"].dropna()
    return f"q_pos − k_pos = {offsets.iloc[0]} (rotary)" if len(offsets) else "none needed"


def warnings(gathered: Gathered) -> list[str]:
    """Everything a reader should be told first: remarks, warnings of the run, and counts of NaN."""
    measured = gathered.heads[~gathered.heads["metric"].astype(str).str.endswith("parity_error")]
    wrong = measured[~np.isfinite(measured["value"])]
    names = ", ".join(dict.fromkeys(wrong["label"].iloc[:200]))
    found = [f"{len(wrong)} numbers of the head table are NaN or infinite, in {names}."] if len(wrong) else []
    for number, view in enumerate(gathered.prompts):
        bad = {head.label: count for head in view.heads if (count := int((~np.isfinite(head.weight)).sum()))}
        if bad:
            found.append(
                f"{sum(bad.values())} attention weights of prompt {number} are NaN or infinite, in {', '.join(bad)}."
            )
    return [*gathered.remarks, *found, *gathered.manifest.get("warnings", [])]


def filter_example(gathered: Gathered) -> str:
    """A filter that this page can answer and that finds some heads: what the filter's field suggests."""
    heads = gathered.heads.drop_duplicates("label")
    layer = int(heads["layer"].median())
    found = gathered.scores if gathered.scores is not None else gathered.heads
    for name in ("induction", "previous_token", "message_stable_rank", "pattern_stable_rank"):
        rows = found[(found["metric"] == name) & (found["layer"] >= layer)]
        top = float(rows["value"].max()) if len(rows) else 0.0
        if np.isfinite(top) and top > 0:
            return f"layer>={layer} and {name}>{float(f'{top / 2:.1g}'):g}"
    return f"layer>={layer}"


def citation(manifest: dict[str, Any]) -> str:
    """One sentence that says what this page is, enough to make it again with the command of the header."""
    revision = f", revision {manifest['revision']}" if manifest["revision"] else ""
    weights = f", weights sha256 {manifest['weights_sha256'][:16]}" if manifest["weights_sha256"] else ""
    when = f", {manifest['date'][:10]}" if "date" in manifest else ""
    return f"Head report of {manifest['model']}{revision}{weights}, made with mechview {manifest['mechview']}{when}."


BRACES = str.maketrans({"\\": "\\textbackslash{}", "{": "\\{", "}": "\\}"} | {char: f"\\{char}" for char in "#$%&_"})


def bibtex(manifest: dict[str, Any]) -> str:
    """The same as an entry for a bibliography."""
    digest = manifest["weights_sha256"]
    facts = [manifest["revision"] and f"revision {manifest['revision']}", digest and f"weights sha256 {digest}"]
    note = "; ".join(str(fact).translate(BRACES) for fact in facts if fact)
    fields = {
        "title": f"Head report of {str(manifest['model']).translate(BRACES)}",
        "howpublished": f"mechview {manifest['mechview']}",
        "year": manifest.get("date", "")[:4],
        "note": note,
    }
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
    return f"@misc{{mechview-report,\n{lines}}}\n"
