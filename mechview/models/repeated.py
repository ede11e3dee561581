"""Repeated random tokens, drawn from whatever vocabulary a model has.

Words repeated in a list (the table `repeats`) still have meanings; random tokens have none, so that only the
repetition can say what comes next (Olsson et al. 2022, arXiv:2209.11895). A row keeps numbers from 0 to 1, not ids:
number `u` is the ordinary token at place `u` of a model's vocabulary, special and added tokens left out, so one small
table serves every model, and each gets the same prompts on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mechview.errors import PromptError


@dataclass(frozen=True)
class Repeated:
    """`draws`: one number a token of the period, then one for the token that breaks the repetition.

    `shown` tokens of the second period are in the prompt; the answer is the next, `wrong` the place of another one.
    """

    draws: tuple[float, ...]
    shown: int
    wrong: int

    def __str__(self) -> str:
        return f"{self.period} random tokens, and {self.shown} of them again"

    @property
    def period(self) -> int:
        return len(self.draws) - 1

    def check(self) -> None:
        """Raises PromptError: places outside the period, or an answer that is also the wrong one."""
        inside = 0 < self.shown < self.period and 0 <= self.wrong < self.period
        if not inside or self.wrong == self.shown or not all(0 <= u < 1 for u in self.draws):
            raise PromptError("draws are numbers from 0 to 1, shown and wrong two different places of the period")

    def tokens(self, model: Any) -> dict[str, Any]:
        """The parts of a case for one model: `prompt` and `corrupted` as ids, `target` and `against` as one id."""
        *words, spare = distinct(self.draws, ordinary_ids(model))
        broken = [*words[: self.shown - 1], spare, *words[self.shown :]]
        first, again = beginning(model), words[: self.shown]
        return {
            "prompt": [*first, *words, *again],
            "target": words[self.shown],
            "against": words[self.wrong],
            "corrupted": [*first, *broken, *again],
        }


def ordinary_ids(model: Any) -> list[int]:
    """Ids that are text: no special or added token, and no empty row at the end of the embedding."""
    tokenizer, size = model.tokenizer, model.shape.d_vocab
    if tokenizer is None:
        return list(range(size))
    added = {*getattr(tokenizer, "all_special_ids", ()), *getattr(tokenizer, "added_tokens_decoder", ())}
    return [n for n in range(min(size, len(tokenizer))) if n not in added]


def beginning(model: Any) -> list[int]:
    """The token that this model's tokenizer puts before every text, where it does."""
    first = getattr(model.tokenizer, "bos_token_id", None)
    if first is None:
        return []
    return [first] if list(model.tokenizer("a", verbose=False)["input_ids"])[:1] == [first] else []


def distinct(draws: Sequence[float], ids: Sequence[int]) -> list[int]:
    """One id a number, each another one: a place that is taken gives way to the next.

    Raises:
        PromptError: fewer ids than numbers.
    """
    if len(ids) < len(draws):
        raise PromptError(f"{len(draws)} different tokens are needed; this vocabulary has {len(ids)} ordinary ones")
    places: list[int] = []
    for u in draws:
        place = int(u * len(ids))
        while place in places:
            place = (place + 1) % len(ids)
        places.append(place)
    return [ids[place] for place in places]
