"""Write `data/index.toml`: every file in `data/` with its sha256, licence, source and command.

    python data/make/index.py

Each file takes its licence, source and command from the first rule whose pattern matches its
path. A file that no rule knows stops the script: nothing enters `data/` without a source.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from corpus import DATA, sha256

INDEX = DATA / "index.toml"
PUBLIC_DOMAIN = "public domain"
EXCERPT = "python data/make/excerpt.py --austen austen.txt --kjv kjv.txt"


@dataclass(frozen=True)
class Rule:
    """Files of one origin; `pattern` is a path relative to `data/`, `*` crossing folders."""

    pattern: str
    licence: str
    source: str
    command: str


RULES = (
    Rule("make/*", "MIT", "written for this repository", "written by hand"),
    Rule("LICENSES.md", "MIT", "written for this repository", "written by hand"),
    Rule("words/*", "MIT", "written for this repository", "written by hand"),
    Rule("text/austen-*", PUBLIC_DOMAIN, "Jane Austen, the six novels (corpus austen.txt)", EXCERPT),
    Rule("text/kjv-*", PUBLIC_DOMAIN, "The Bible, King James Version (corpus kjv.txt)", EXCERPT),
    Rule("prompts/*", "MIT", "written for this repository", "python data/make/prompts.py"),
    Rule(
        "toy/*",
        "MIT",
        "trained by this repository on the corpora austen.txt and kjv.txt",
        "python data/make/toy.py --text austen.txt kjv.txt --seed 0",
    ),
    Rule(
        "twin/*",
        "MIT",
        "an LSTM trained by this repository on the batches that toy saw",
        "python data/make/twin.py --text austen.txt kjv.txt --seed 0",
    ),
)

CORPORA = (
    {
        "name": "austen.txt",
        "bytes": 4_025_033,
        "sha256": "ae4140c6e5ab543cc81f68358120258f0935ac9e27a30f44a7a564b349307867",
        "licence": PUBLIC_DOMAIN,
        "source": "Jane Austen: Emma, Mansfield Park, Northanger Abbey, Persuasion, "
        "Pride and Prejudice, Sense and Sensibility; plain text, in this order",
    },
    {
        "name": "kjv.txt",
        "bytes": 4_137_850,
        "sha256": "b5c4940bcfeee072c0935b5200d0f9d88a00a0199cb0961d16133458fcdfae5d",
        "licence": PUBLIC_DOMAIN,
        "source": "The Bible, King James Version; plain text, one verse a line",
    },
)

HEADER = """# Every file in data/ and where it comes from. Written by data/make/index.py; do not edit.
# `corpus` entries are the full texts, which are not shipped: `--text` takes them.
"""


def data_files() -> list[Path]:
    """All files under data/ but the index itself and what Python or an editor leaves behind."""
    visible = (p for p in DATA.rglob("*") if p.is_file() and p != INDEX)
    return sorted(p for p in visible if not any(part.startswith((".", "__")) for part in p.relative_to(DATA).parts))


def rule_for(path: str) -> Rule:
    for rule in RULES:
        if fnmatch(path, rule.pattern):
            return rule
    raise SystemExit(f"{path} has no rule in data/make/index.py: add its licence, source and command")


def entry(path: Path) -> dict[str, str | int]:
    name = path.relative_to(DATA).as_posix()
    rule = rule_for(name)
    return {
        "path": name,
        "bytes": path.stat().st_size,
        "sha256": sha256(path),
        "licence": rule.licence,
        "source": rule.source,
        "command": rule.command,
    }


def toml_table(name: str, fields: dict[str, str | int]) -> str:
    rows = (f"{key} = {json.dumps(value)}" for key, value in fields.items())  # JSON's form of a string is TOML's too
    return f"[[{name}]]\n" + "\n".join(rows) + "\n"


def main() -> None:
    entries = [entry(path) for path in data_files()]
    tables = [toml_table("corpus", corpus) for corpus in CORPORA] + [toml_table("file", fields) for fields in entries]
    INDEX.write_text("\n".join([HEADER, *tables]), encoding="utf-8")
    print(f"{len(entries)} files, {sum(fields['bytes'] for fields in entries):,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
