"""The text that the bundled models are trained on, and the batches made of it.

Two public-domain corpora: the six novels of Jane Austen and the King James Bible.
`plain` gives them one form (no hard line breaks inside a paragraph, no editor's note),
and `training_text` takes out every held-out chapter, whichever file it is given: the
full corpora or the excerpt in `data/text`. A batch mixes stretches of text with rows in
which one segment is repeated to the end, which is what teaches a small model to copy
from its context (Olsson et al. 2022, "In-context learning and induction heads").

Conventions: ids are int64, every row starts with BOS (id 0), chance is `generator=`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DATA = Path(__file__).resolve().parents[1]
TEXT = DATA / "text"
EXCERPTS = (TEXT / "austen-excerpt.txt", TEXT / "kjv-excerpt.txt")
HELD_OUT = (TEXT / "austen-heldout.txt", TEXT / "kjv-heldout.txt")
BOS_ID = 0

EDITORS_NOTE = re.compile(r"^A NOTE ON THE TEXT$.*?^Persuasion$", re.MULTILINE | re.DOTALL)
WRAPPED_AT = 80  # characters: a file whose lines are all shorter was wrapped by hand
TELLTALE = 200  # characters: a held-out paragraph this long may not occur in training text


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def plain(text: str) -> str:
    """The text with paragraphs on one line each; applying it twice changes nothing."""
    text = EDITORS_NOTE.sub("Persuasion", text)
    if max(map(len, text.splitlines())) <= WRAPPED_AT:
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    lines = (re.sub(r" {2,}", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def training_text(path: Path) -> str:
    """One training file in its plain form, without the held-out chapters.

    Raises:
        ValueError: a long held-out paragraph is still there, in some other form.
    """
    text = plain(path.read_text(encoding="utf-8"))
    for held_out in (file.read_text(encoding="utf-8") for file in HELD_OUT):
        text = text.replace(held_out, "")
        leaked = [line for line in held_out.splitlines() if len(line) >= TELLTALE and line in text]
        if leaked:
            raise ValueError(f"{path.name} still holds held-out text: {leaked[0][:60]!r}")
    return text


@dataclass(frozen=True)
class Mixture:
    """What a batch is made of.

    Attributes:
        rows: sequences in a batch.
        length: tokens in a sequence, BOS included.
        repeated: share of the rows that are made of repeated segments; half of these rows
            have segments of tokens drawn at random, half have stretches of text.
        copies: how often a segment follows itself before another takes over. Many copies
            are easy to learn from; two leave one place to find, and so make heads sharp.
        shortest, longest: range of the segment's length, in tokens.
    """

    rows: int
    length: int
    repeated: float
    copies: int
    shortest: int
    longest: int


def stretch(ids: Tensor, length: int, generator: torch.Generator) -> Tensor:
    start = int(torch.randint(len(ids) - length, (1,), generator=generator))
    return ids[start : start + length]


def segment(ids: Tensor, mixture: Mixture, vocab: int, random: bool, generator: torch.Generator) -> Tensor:
    size = int(torch.randint(mixture.shortest, mixture.longest + 1, (1,), generator=generator))
    if random:
        return torch.randint(BOS_ID + 1, vocab, (size,), generator=generator)
    return stretch(ids, size, generator)


def repeated_row(ids: Tensor, mixture: Mixture, vocab: int, random: bool, generator: torch.Generator) -> Tensor:
    """Segments, each as often as the mixture says, cut at the end of the row."""
    row = torch.empty(0, dtype=torch.int64)
    while len(row) < mixture.length - 1:
        row = torch.cat([row, segment(ids, mixture, vocab, random, generator).repeat(mixture.copies)])
    return row[: mixture.length - 1]


def batch(ids: Tensor, mixture: Mixture, vocab: int, generator: torch.Generator) -> Tensor:
    """One batch of token ids [row, position]; each row is BOS, then text or repeated segments."""
    copies = round(mixture.rows * mixture.repeated)
    rows = [repeated_row(ids, mixture, vocab, row % 2 == 0, generator) for row in range(copies)]
    rows += [stretch(ids, mixture.length - 1, generator) for _ in range(mixture.rows - copies)]
    return torch.nn.functional.pad(torch.stack(rows), (1, 0), value=BOS_ID)
