"""The tokenizer of a folder; where one is there and cannot be read, that is remembered and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


def read_tokenizer(folder: Path) -> tuple[Any | None, str | None]:
    """The tokenizer, or None; and why one that is there cannot be read."""
    if not any((folder / name).is_file() for name in FILES):
        return None, None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False), None
    except Exception as error:  # a malformed tokenizer provokes many kinds of errors
        return None, f"{' '.join(repr(error).split())[:120]}"
