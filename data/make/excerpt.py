"""Make `data/text` from the two full corpora: a training excerpt and held-out chapters.

    python data/make/excerpt.py --austen austen.txt --kjv kjv.txt

The held-out text is the end of each corpus (the last chapters of "Sense and Sensibility";
the Revelation), cut at a line. The excerpt is eight blocks spread evenly over the rest, so
that it holds something of every novel and of both Testaments. Public domain, ASCII.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from corpus import TEXT, plain

HELD_OUT_CHARACTERS = 60_000
BLOCKS = 8
BLOCK_CHARACTERS = 50_000


def at_line(text: str, position: int) -> int:
    """The first beginning of a line at or after the position."""
    return 0 if position == 0 else text.index("\n", position - 1) + 1


def split(text: str) -> tuple[str, str]:
    """Training part and held-out part of a corpus in its plain form."""
    cut = at_line(text, len(text) - HELD_OUT_CHARACTERS)
    return text[:cut], text[cut:]


def excerpt(text: str) -> str:
    starts = [at_line(text, block * len(text) // BLOCKS) for block in range(BLOCKS)]
    return "".join(text[start : at_line(text, start + BLOCK_CHARACTERS)] for start in starts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--austen", type=Path, required=True, help="the six novels, one file")
    parser.add_argument("--kjv", type=Path, required=True, help="the King James Bible, one file")
    for name, path in vars(parser.parse_args()).items():
        training, held_out = split(plain(path.read_text(encoding="utf-8")))
        (TEXT / f"{name}-excerpt.txt").write_text(excerpt(training), encoding="utf-8")
        (TEXT / f"{name}-heldout.txt").write_text(held_out, encoding="utf-8")


if __name__ == "__main__":
    main()
