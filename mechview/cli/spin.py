"""The verb `spin`: spin correspondences of a model, layer by layer, with nulls and verdicts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mechview.cli import options as o
from mechview.cli.asked import chosen, open_model, read_prompts
from mechview.cli.options import _option
from mechview.cli.output import Answer, emit, note, output, working
from mechview.cli.spin_text import claims_text, spin_text
from mechview.errors import PromptError, UsageError
from mechview.manifest import manifest

ClaimsToo = Annotated[bool, typer.Option("--claims", help="Print each claim of the articles, its test and verdict.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few draws and sequences; no whole-model controls.")]
Whole = Annotated[
    bool | None, typer.Option("--whole/--no-whole", help="Permuted, fresh and reordered models as controls too.")
]
Quantity = Annotated[list[str] | None, _option("--quantity", "Keep quantities that begin so; repeatable.", "NAME")]
Length = Annotated[int, typer.Option("--length", min=1, help="Tokens of a sequence.")]
Count = Annotated[int | None, typer.Option("--sequences", min=1, help="Sequences to fit on; half as many to test on.")]
Draws = Annotated[
    int | None, typer.Option("--draws", min=2, help="Draws of every null; 20 unless given, 5 with --quick.")
]
Text = Annotated[list[Path] | None, _option("--text", "A document to fit on; repeatable.", "FILE")]
Heldout = Annotated[list[Path] | None, _option("--heldout", "A document to test on; repeatable.", "FILE")]
Folder = Annotated[Path | None, _option("--folder", "Keeps finished layers; a rerun goes on from them.", "FOLDER")]


def spin(
    model: o.ModelName = "toy", claims: ClaimsToo = False, layers: o.Layers = None, quick: Quick = False,
    whole: Whole = None, quantity: Quantity = None, prompt: o.Prompts = None, prompts: o.PromptFile = None,
    text: Text = None, heldout: Heldout = None, length: Length = 128, sequences: Count = None, draws: Draws = None,
    folder: Folder = None, seed: o.Seed = 0, revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32,
    device: o.Device = "cpu", offline: o.Offline = False, out: o.Out = None, format: o.Form = None,
    json: o.Json = False, quiet: o.Quiet = False, force: o.Force = False,
) -> int:  # fmt: skip
    """Read each layer as a spin system: fits, thermodynamics, controls and verdicts.

    Fits are made on some documents and tested on others: the bundled texts, or --text and --heldout files;
    each -p or line of --prompts is a document too. With --folder an interrupted run goes on where it stopped.
    """
    to = output(out, format, json, quiet, force)
    counts: dict[str, Any] = {} if sequences is None else {"train": sequences, "test": max(3, sequences // 2)}
    settings: dict[str, Any] = dict(
        quick=quick, whole=whole, quantities=quantity, length=length, draws=draws, seed=seed, **counts
    )
    with working(f"fitting {model}", quiet) as run:
        from mechview.spins.layers.fit import fit_spins

        opened = open_model(model, revision, offline, device, dtype)
        wanted = chosen(opened.weights, layers, None)[0]
        fitted, tested = _documents(opened, prompt, prompts, text, heldout)
        told = (lambda line: note(line, quiet)) if sys.stderr.isatty() else None
        found = fit_spins(opened, fitted, heldout=tested, layers=wanted, folder=folder, told=told, **settings)
        judged = _claims(opened, found) if claims else None
    args: dict[str, Any] = dict(verb="spin", claims=claims, layers=layers, folder=folder, **settings)
    emit(_answer(found, judged, lambda: manifest(opened, run, **args)), to)
    return 0


def _claims(opened: Any, found: Any) -> Any:
    from mechview.spins.layers.claims import claims

    return claims(opened, found)


def _answer(found: Any, judged: Any, about: Any) -> Answer:
    if judged is not None:
        numbers = lambda: {"spin_models": found.frame(), **_beside(found)}  # noqa: E731
        return Answer("claims", judged.frame, lambda: claims_text(judged), about, beside=numbers)
    return Answer("spin_models", found.frame, lambda: spin_text(found), about, beside=lambda: _beside(found))


def _beside(found: Any) -> dict[str, Any]:
    from mechview import tables

    return {
        "thermo": tables.thermo_frame(found),
        "spin_weights": tables.spin_weights_frame(found),
        "spin_spectra": tables.spin_spectra_frame(found),
    }


def _documents(
    model: Any, prompt: list[str] | None, prompts: Path | None, text: list[Path] | None, heldout: list[Path] | None
) -> tuple[list[str] | None, list[str] | None]:
    """Documents to fit on and to test on; None for the bundled ones."""
    fitted = [*(prompt or ()), *(read_prompts(prompts, model) if prompts else ()), *map(read_text, text or ())]
    tested = [read_text(path) for path in heldout or ()]
    if tested and not fitted:
        raise UsageError("--heldout needs documents to fit on: --text, -p or --prompts")
    return fitted or None, tested or None


def read_text(path: Path) -> str:
    """A whole file as one document.

    Raises:
        PromptError: it cannot be read, or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start})") from None
