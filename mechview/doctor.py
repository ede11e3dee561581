"""What can be trusted about one model on this machine, and what cannot be had, with reasons.

Three independent comparisons: factors against the model's own patterns, writes and stream; this
capture's logits against the original library's; and, when asked, the TransformerLens bridge against
plain forward hooks on the original module. What a family does not have is listed as limits.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mechview.checks import TOLERANCE, Parity, ParityRow, parity, relative, worst_rows
from mechview.errors import UnsupportedError, UsageError
from mechview.manifest import PACKAGES, Run, manifest, package_version
from mechview.models.capture import Capture
from mechview.models.gguf import cache_folder
from mechview.models.limits import limits
from mechview.models.load import Model
from mechview.models.reader import NamedWeights
from mechview.models.tracing import Bos, Prompt, default_prompt, encode, trace
from mechview.results import Result, frame_of

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
