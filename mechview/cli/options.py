"""The options that verbs share: one spelling and one help text each."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Bos(StrEnum):
    """What is done about a beginning-of-sequence token."""

    auto = "auto"
    yes = "yes"
    no = "no"


class Dtype(StrEnum):
    """Number types of a forward pass."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Format(StrEnum):
    """Formats of tables and of factors."""

    json = "json"
    csv = "csv"
    parquet = "parquet"
    md = "md"
    tex = "tex"
    safetensors = "safetensors"
    npz = "npz"
    png = "png"
    svg = "svg"
    pdf = "pdf"
    html = "html"


def _option(names: str, help: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(*names.split(), help=help, metavar=metavar)


ModelName = Annotated[str, typer.Argument(metavar="[MODEL]", help="Model to open.", show_default=False)]
First = Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Model to open; toy unless given.")]
Second = Annotated[str | None, typer.Argument(metavar="[HEAD]", help="A head: L5H1, 5.1, (5, 1), E.L5H1, X.L5H1.")]

Layers = Annotated[str | None, _option("--layers", "Layers: 0,3 or 0:4 for 0 to 3.", "LAYERS")]
Heads = Annotated[str | None, _option("--heads", "Heads, as L5H1,L7H3.", "HEADS")]
Layer = Annotated[int | None, _option("--layer", "Layer of the head, with --head.", "N")]
Head = Annotated[int | None, _option("--head", "Number of the head, with --layer.", "N")]
Offset = Annotated[
    int | None, _option("--offset", "q_pos - k_pos at which a rotary pattern is taken; 0 unless given.", "N")
]
Fold = Annotated[bool, _option("--fold/--raw", "Fold the norms around attention into the maps.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the draws behind nulls.", metavar="N")]

Revision = Annotated[
    str | None, _option("--revision", "Commit, branch or tag; a checkpoint of a bundled model.", "REVISION")
]
DtypeName = Annotated[Dtype, _option("--dtype", "Number type of the forward pass.")]
Device = Annotated[str, _option("--device", "Device of the forward pass: cpu, cuda, cuda:1, mps.", "DEVICE")]
Offline = Annotated[bool, _option("--offline", "Never ask the network.")]

Prompts = Annotated[list[str] | None, _option("-p --prompt", "Text to run; repeatable.", "TEXT")]
PromptFile = Annotated[
    Path | None,
    _option(
        "--prompts", "File of prompts (one a line, .jsonl, .csv), or a bundled table: ioi, facts, repeats.", "FILE"
    ),
]
Ids = Annotated[list[str] | None, _option("--ids", "A prompt as token ids, 1,2,3; repeatable.", "IDS")]
Chat = Annotated[bool, _option("--chat", "Put each prompt into the model's chat template.")]
BosChoice = Annotated[Bos, _option("--bos", "Beginning-of-sequence token: as the tokenizer does, one, or none.")]

RoleFlag = Annotated[
    bool | None,
    typer.Option("--roles/--no-roles", help="Run the model and look for roles of heads.", show_default="on up to 0.3 G parameters"),
]  # fmt: skip
Out = Annotated[Path | None, _option("-o --out", "File to write; its suffix chooses the format.", "FILE")]
Form = Annotated[
    Format | None,
    _option(
        "--format",
        "json, csv, parquet, md, tex; of factors safetensors, npz; of figures png, svg, pdf, html.",
        "FORMAT",
    ),
]
Json = Annotated[bool, _option("--json", "Print JSON with schema version and manifest.")]
Quiet = Annotated[bool, _option("-q --quiet", "No progress and no warnings.")]
DryRun = Annotated[bool, _option("--dry-run", "Print tokens, passes, operations and bytes; run nothing.")]
Force = Annotated[bool, _option("-f --force", "Replace an existing file.")]
