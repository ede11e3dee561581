"""What can be trusted about one model on this machine, and what cannot be had, with reasons.

Three independent comparisons: factors against the model's own patterns, writes and stream; this
capture's logits against the original library's; and, when asked, the TransformerLens bridge against
plain forward hooks on the original module. What a family does not have is listed as limits.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mechview.checks import TOLERANCE, Parity, ParityRow, parity, relative
from mechview.errors import UnsupportedError, UsageError
from mechview.manifest import PACKAGES, Run, manifest, package_version
from mechview.models.capture import Capture
from mechview.models.gguf import cache_folder
from mechview.models.limits import limits
from mechview.models.load import Model
from mechview.models.reader import NamedWeights
from mechview.models.tracing import Bos, Prompt, encode, trace
from mechview.results import Result, frame_of

DEFAULT_PROMPT = "When Mary and John went to the store, John gave a drink to Mary. When Mary and John"
PARTS = ("pattern", "z", "stream", "written")


@dataclass(frozen=True)
class Diagnosis(Result):
    """Everything `doctor` found. `refused` says why no forward pass was compared; None when it was.

    `parities` has one entry a prompt; `agreement` holds the worst difference of bridge and forward hooks
    per quantity, empty when that was not asked for or only one backend works (`agreement_note`).
    """

    environment: dict[str, Any]
    backend: str
    backend_why: str
    parities: tuple[Parity, ...]
    refused: str | None
    agreement: dict[str, float]
    agreement_note: str
    limits: tuple[str, ...]

    @property
    def passed(self) -> bool:
        agree = all(error < TOLERANCE for error in self.agreement.values())
        return agree and all(found.passed for found in self.parities)

    @property
    def worst(self) -> list[ParityRow]:
        """The worst row of each stack, layer and quantity, over heads and prompts, in order."""
        rows = (row for prompt in self.parities for row in prompt.rows)
        return worst_rows(rows, lambda row: (row.stack, row.layer, row.quantity))


def worst_rows(rows: Iterable[ParityRow], same: Callable[[ParityRow], tuple[Any, ...]]) -> list[ParityRow]:
    """Of rows with the same key the one with the largest error, a NaN being the largest."""
    found: dict[tuple[Any, ...], ParityRow] = {}
    for row in rows:
        if (key := same(row)) not in found or _size(row.error) > _size(found[key].error):
            found[key] = row
    return list(found.values())


def _size(error: float) -> float:
    return math.inf if math.isnan(error) else error


def worst_of(parities: Sequence[Parity]) -> Parity:
    """Parity on several prompts as one: the worst error of everything compared, the tokens together."""
    rows = worst_rows(
        (row for prompt in parities for row in prompt.rows),
        lambda row: (row.quantity, row.stack, row.layer, row.head),
    )
    return replace(parities[0], rows=tuple(rows), n_tokens=sum(prompt.n_tokens for prompt in parities))


def diagnose(
    model: Model,
    prompts: Sequence[Prompt] | None = None,
    *,
    bos: Bos = "auto",
    fold: bool = True,
    thorough: bool = False,
    run: Run | None = None,
) -> Diagnosis:
    """Compare a model with itself on some prompts and say what it cannot give.

    Args:
        prompts: a default sentence (or ids, for a model without a tokenizer) unless given.
        thorough: also run the other backend, where both work, and compare activations.
    """
    asked = list(prompts) if prompts else [default_prompt(model)]
    parities: list[Parity] = []
    agreement: dict[str, float] = {}
    refused, note = None, "not asked for; --thorough runs it"
    try:
        parities = [parity(model, trace(model, prompt, bos=bos), fold=fold) for prompt in asked]
        if thorough:
            agreement, note = backends_agree(model, asked[0], bos)
    except UnsupportedError as error:
        refused = str(error)
    backend, why = backend_of(model)
    return Diagnosis(
        environment=environment(), backend=backend, backend_why=why, parities=tuple(parities), refused=refused,
        agreement=agreement, agreement_note=note, limits=limits(model.weights),
        manifest=manifest(model, run, verb="doctor", bos=bos, fold=fold, thorough=thorough),
    )  # fmt: skip


def default_prompt(model: Model) -> Prompt:
    """A sentence whose second half repeats its first; for a model without a tokenizer, repeated ids."""
    if model.tokenizer is not None:
        return DEFAULT_PROMPT
    length = min(model.shape.n_ctx or 16, 16)
    return [(7 * (n % 8) + 3) % model.shape.d_vocab for n in range(length)]


def backend_of(model: Model) -> tuple[str, str]:
    """Where activations come from, and why."""
    if model.source.kind == "arrays":
        return "arrays", "the model is made of plain arrays and runs here"
    if model.uses_bridge:
        return "TransformerLens bridge", f"its adapter for {model.shape.family} gives the quantities by their names"
    if not getattr(model.weights, "has_head", True):
        return "forward hooks", "the checkpoint is a bare encoder without an unembedding, which the bridge requires"
    return "forward hooks", f"TransformerLens has no adapter for this {model.shape.family} that gives these quantities"


@torch.no_grad()
def backends_agree(model: Model, prompt: Prompt, bos: Bos) -> tuple[dict[str, float], str]:
    """Worst relative difference of bridge and forward hooks per quantity; empty with the reason if only one works."""
    if not model.uses_bridge or not isinstance(model.weights, NamedWeights):
        return {}, f"only one backend works for {model.shape.family}"
    from mechview.models.native import capture_native

    ids = torch.tensor(encode(model, prompt, bos), device=model.device)
    return compare_captures(model.capture(ids), capture_native(model.module, model.weights, ids)), "both were run"


def compare_captures(ours: Capture, reference: Capture) -> dict[str, float]:
    """Worst relative difference of two captures of one pass, per quantity."""
    worst = {
        part: max(
            relative(getattr(seen, part), getattr(reference.attention[site], part))
            for site, seen in ours.attention.items()
        )
        for part in PARTS
    }
    worst["mlp"] = max(relative(seen.written, reference.mlp[site].written) for site, seen in ours.mlp.items())
    worst["post"] = max(relative(seen, reference.post[site]) for site, seen in ours.post.items())
    if ours.logits is not None and reference.logits is not None:
        worst["logits"] = relative(ours.logits, reference.logits)
    return worst


def environment() -> dict[str, Any]:
    """Versions, devices, and the folders and variables that decide where models come from."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: package_version(name) or "not installed" for name in ("mechview", *PACKAGES)},
        "threads": torch.get_num_threads(),
        "devices": ", ".join(devices()),
        "cache of converted models": str(cache_folder()),
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "not set"),
    }


def devices() -> list[str]:
    found = ["cpu"] + [f"cuda:{n}" for n in range(torch.cuda.device_count())]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


@frame_of(Diagnosis)
def _frame(diagnosis: Diagnosis) -> Any:
    """Parity rows of every prompt, with the prompt's number."""
    if not diagnosis.parities:
        raise UsageError(f"there is no parity to show: {diagnosis.refused}")
    import pandas as pd

    frames = [found.frame().assign(prompt=n) for n, found in enumerate(diagnosis.parities)]
    return pd.concat(frames, ignore_index=True)
