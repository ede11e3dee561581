"""Small word lists that come with mechview, and tokens by their text: relations, and lists in order.

`data/words/relations.csv` holds pairs (`relation,source,target`), `data/words/ordinals.csv` lists in order
(`list,position,word`). A word takes part if it is one token, with a leading space where the tokenizer has such
tokens; what is left out is counted. Written for this repository.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from mechview.errors import UsageError
from mechview.models.bundled import data_folder


@dataclass(frozen=True)
class WordPair:
    """A source word and the word that the relation leads to."""

    source: str
    target: str


def relation_names() -> list[str]:
    return sorted(_relations())


def relation_pairs(name: str) -> tuple[WordPair, ...]:
    """The pairs of a bundled relation."""
    found = _relations()
    if name not in found:
        raise UsageError(f"{name!r} is not a relation; there are {', '.join(sorted(found))}")
    return tuple(found[name])


def ordinal_lists() -> dict[str, list[str]]:
    """Words in order, by the name of their list."""
    lists: dict[str, list[str]] = {}
    for row in _read("ordinals.csv"):
        lists.setdefault(row["list"], []).append(row["word"])
    return lists


def _relations() -> dict[str, list[WordPair]]:
    found: dict[str, list[WordPair]] = {}
    for row in _read("relations.csv"):
        found.setdefault(row["relation"], []).append(WordPair(row["source"], row["target"]))
    return found


def _read(name: str) -> list[dict[str, str]]:
    with (data_folder() / "words" / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def single_token(word: str, tokenizer: object) -> int | None:
    """The id of a word that is one token, as it stands inside a sentence; None for a word of several."""
    for text in (f" {word}", word):
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # type: ignore[operator]
        if len(ids) == 1 and ids[0] != getattr(tokenizer, "unk_token_id", None):
            return int(ids[0])
    return None


def token_id(token: str | int, tokenizer: object, size: int) -> int:
    """The id of one token given as text or id.

    Raises:
        UsageError: a text that is not one token, or an id outside the vocabulary.
    """
    if isinstance(token, str):
        if tokenizer is None:
            raise UsageError("this model has no tokenizer; give tokens by id")
        ids = tokenizer(token, add_special_tokens=False, verbose=False)["input_ids"]  # type: ignore[operator]
        if len(ids) != 1:
            raise UsageError(f"{token!r} is {len(ids)} tokens, not one; a leading space often matters")
        token = int(ids[0])
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
        raise UsageError(f"token id {token!r} does not exist: the vocabulary has ids 0 to {size - 1}")
    return token


def known_tokens(words: Sequence[str], tokenizer: object) -> list[int | None]:
    """Ids of words, None for those of several tokens.

    Raises:
        UsageError: the model has no tokenizer to read words with.
    """
    if tokenizer is None:
        raise UsageError("this model has no tokenizer: give pairs of token ids instead of words")
    return [single_token(word, tokenizer) for word in words]
