"""Vocabularies of single characters, with the few methods of a tokenizer that mechview reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mechview.errors import PromptError


@dataclass(frozen=True)
class CharTokenizer:
    """One id a character. `first` is put before every text (textgenrnn's `<s>`), `pad` fills windows."""

    ids: Mapping[str, int] = field(repr=False)
    first: str | None = None
    pad: int | None = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        """Ids of a text.

        Raises:
            PromptError: a character that the vocabulary lacks.
        """
        unknown = next((char for char in text if char not in self.ids), None)
        if unknown is not None:
            raise PromptError(f"the character {unknown!r} is not among the {len(self.ids)} of this vocabulary")
        start = [] if self.first is None else [self.ids[self.first]]
        return {"input_ids": start + [self.ids[char] for char in text]}

    @cached_property
    def _texts(self) -> dict[int, str]:
        padded = {} if self.pad is None else {self.pad: "<pad>"}
        return padded | {number: char for char, number in self.ids.items()}

    @property
    def all_special_ids(self) -> list[int]:
        return [number for number in (self.pad, self.ids.get(self.first or "")) if number is not None]

    def convert_ids_to_tokens(self, number: int) -> str | None:
        return self._texts.get(number)
