"""Prompts that tests of heads run on: seeded, special tokens left out, context and windows respected.

Random tokens carry no meaning, so whatever a head does on them comes from position or repetition. A
battery of a kind has one draw a seed: `repeats` (each of several periods, twice), `fourfold` (25 tokens
four times, Olsson et al. 2022), `random` (prompts without repetition), `text` (held-out bundled text) and
`names` (sentences with two names, Wang et al. 2022). Tokens of a draw are distinct, so that "the earlier
copy" is one place. What the tokenizer puts around a text stands around every prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

import torch

from mechview.errors import PromptError, UnsupportedError, UsageError
from mechview.heads.vocabulary import unused_ids
from mechview.models.bundled import data_folder
from mechview.models.load import Model
from mechview.models.reader import NamedWeights
from mechview.models.shape import layer_numbers
from mechview.models.tracing import Prompt, encode

LENGTHS = (25, 50)
FOURFOLD, COPIES = 25, 4
RANDOM_LENGTH, RANDOM_PROMPTS = 32, 4
TEXT_LENGTH = 64
SENTENCES, LEAST_NAMES = 4, 8
SHORTEST = 3
TEXTS = ("austen-heldout.txt", "kjv-heldout.txt")
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
FRAME = ("Then,", " and", " went to the store.")


@dataclass(frozen=True)
class TestPrompt:
    """One prompt. Ordinary tokens stand at `start` to `stop`; `period` is 0 where nothing is repeated.

    `places` are the positions that are asked about, where that is not all of them.
    """

    ids: tuple[int, ...]
    start: int
    stop: int
    period: int = 0
    places: tuple[int, ...] = ()

    __test__ = False


@dataclass(frozen=True)
class Batteries:
    """How prompts are drawn for one model.

    `tokens` are the ids that random prompts draw from (all but special ones unless given), `before` ids
    that stand before every prompt (what the tokenizer puts there unless given), `text` prompts to use
    instead of the bundled text.
    """

    model: Model
    seed: int = 0
    lengths: Sequence[int] | None = None
    bos: str = "auto"
    tokens: Sequence[int] | None = None
    before: Sequence[int] | None = None
    text: Sequence[Prompt] | None = None

    def draw(self, kind: str, number: int) -> list[TestPrompt]:
        """The prompts of draw `number` of a kind.

        Raises:
            UnsupportedError: the model has no room or no tokens for it, said in a sentence.
        """
        kinds = ("repeats", "fourfold", "random", "text", "names")
        mixed = (self.seed * 1_000_003 + number * 101 + kinds.index(kind)) % 2**63
        generator = torch.Generator().manual_seed(mixed)
        return getattr(self, f"_{kind}")(generator)

    @cached_property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Special ids before and after a text."""
        if self.before is not None:
            return tuple(self.before), ()
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return (), ()
        if self.bos != "auto":
            return tuple(encode(self.model, "a", self.bos)[:1] if self.bos == "yes" else ()), ()
        plain, full = (list(tokenizer("a", add_special_tokens=given)["input_ids"]) for given in (False, True))
        at = next((n for n in range(len(full)) if full[n : n + len(plain)] == plain), 0)
        return tuple(full[:at]), tuple(full[at + len(plain) :])

    @cached_property
    def ordinary(self) -> tuple[int, ...]:
        """Ids that are neither special, added, reserved nor single bytes that hardly any text needs."""
        if self.tokens is not None:
            return tuple(self.tokens)
        model = self.model
        config, tokenizer = getattr(model.weights, "config", None), model.tokenizer
        names = (
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "decoder_start_token_id",
            "sep_token_id",
            "cls_token_id",
        )
        found = [getattr(config, name, None) for name in names]
        special = {i for value in found for i in (value if isinstance(value, list) else [value])} | {*self.around[0]}
        if tokenizer is not None:
            special |= unused_ids(model.shape.d_vocab, tokenizer) | byte_ids(tokenizer)
            special |= set(getattr(tokenizer, "added_tokens_decoder", ()))
        return tuple(i for i in range(model.shape.d_vocab) if i not in special)

    @property
    def room(self) -> int | None:
        """Ordinary tokens that fit into a prompt."""
        if self.model.shape.n_ctx is None:
            return None
        return self.model.shape.n_ctx - sum(map(len, self.around)) - (1 if self.model.shape.n_encoder_layers else 0)

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """Periods of `repeats`: those asked for as far as they fit, and one that fits the narrowest window."""
        longest = self.longest(2)
        asked = self.lengths or LENGTHS
        wrong = next((n for n in asked if not 2 <= n <= longest), None)
        if self.lengths and wrong is not None:
            raise UsageError(f"a period of {wrong} tokens does not fit: choose 2 to {longest} for this model")
        found = {min(n, longest) for n in asked}
        narrow = min(windows(self.model), default=None)
        if not self.lengths and narrow is not None and 2 < narrow <= min(found):
            found.add(narrow - 1)
        return tuple(sorted(found))

    def longest(self, copies: int) -> int:
        """The longest run of distinct tokens that fits `copies` times.

        Raises:
            UnsupportedError: not even three do.
        """
        most = len(self.ordinary) if self.room is None else min(len(self.ordinary), self.room // copies)
        if most < SHORTEST:
            raise UnsupportedError(
                f"{self.model.name} has room for {most} different tokens {copies} times over: too few for this test"
            )
        return most

    def _repeats(self, generator: torch.Generator) -> list[TestPrompt]:
        return [self._wrapped(self._sample(n, generator) * 2, n) for n in self.periods]

    def _fourfold(self, generator: torch.Generator) -> list[TestPrompt]:
        period = min(FOURFOLD, self.longest(2))
        copies = COPIES if self.room is None else min(COPIES, self.room // period)
        return [self._wrapped(self._sample(period, generator) * copies, period)]

    def _random(self, generator: torch.Generator) -> list[TestPrompt]:
        length = min(RANDOM_LENGTH, self.longest(1))
        return [self._wrapped(self._sample(length, generator)) for _ in range(RANDOM_PROMPTS)]

    def _text(self, generator: torch.Generator) -> list[TestPrompt]:
        if self.text is not None:
            return [self._given(encode(self.model, prompt, self.bos)) for prompt in self.text]
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return self._random(generator)
        return [self._wrapped(plain(tokenizer, passage(name, generator))[: self._text_room]) for name in TEXTS]

    @property
    def _text_room(self) -> int:
        return TEXT_LENGTH if self.room is None else min(TEXT_LENGTH, self.room)

    def _names(self, generator: torch.Generator) -> list[TestPrompt]:
        if self.model.tokenizer is None:
            prompts = [self._wrapped(self._sample(min(LEAST_NAMES, self.longest(1)), generator)) for _ in range(2)]
            return [TestPrompt(p.ids, p.start, p.stop, 0, tuple(range(p.start, p.stop))) for p in prompts]
        names = self.names
        if len(names) < LEAST_NAMES:
            raise UnsupportedError(
                f"the vocabulary of {self.model.name} has {len(names)} names as single tokens: too few"
            )
        chosen = [names[n] for n in torch.randperm(len(names), generator=generator)[: 2 * SENTENCES].tolist()]
        return [self._sentence(*chosen[2 * n : 2 * n + 2]) for n in range(len(chosen) // 2)]

    @cached_property
    def names(self) -> tuple[int, ...]:
        """Ids of first names that are one token with the space before them."""
        words = resources.files("mechview.heads").joinpath("names.txt").read_text(encoding="utf-8").split()
        found = [plain(self.model.tokenizer, f" {word}") for word in words]
        return tuple(dict.fromkeys(ids[0] for ids in found if len(ids) == 1 and ids[0] in set(self.ordinary)))

    def _sentence(self, one: int, other: int) -> TestPrompt:
        parts = [plain(self.model.tokenizer, words) for words in FRAME]
        inner = [*parts[0], one, *parts[1], other, *parts[2]]
        made = self._wrapped(inner)
        first = made.start + len(parts[0])
        return TestPrompt(made.ids, made.start, made.stop, 0, (first, first + 1 + len(parts[1])))

    def _given(self, ids: list[int]) -> TestPrompt:
        """A prompt of the caller's, whatever special tokens stand around it."""
        before, after = self.around
        start = len(before) if tuple(ids[: len(before)]) == before else 0
        stop = len(ids) - (len(after) if after and tuple(ids[-len(after) :]) == after else 0)
        return TestPrompt(tuple(ids), start, stop)

    def _sample(self, count: int, generator: torch.Generator) -> list[int]:
        order = torch.randperm(len(self.ordinary), generator=generator)[:count]
        return [self.ordinary[n] for n in order.tolist()]

    def _wrapped(self, inner: list[int], period: int = 0) -> TestPrompt:
        before, after = self.around
        return TestPrompt((*before, *inner, *after), len(before), len(before) + len(inner), period)


def byte_ids(tokenizer: Any) -> set[int]:
    """Ids of bytes that a tokenizer falls back on (`<0xE6>`): drawn at random they would be most of a small vocabulary."""
    return {i for name, i in tokenizer.get_vocab().items() if BYTE.fullmatch(str(name))}


def plain(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def passage(name: str, generator: torch.Generator) -> str:
    """A piece of a bundled held-out text that starts with a paragraph."""
    try:
        text = (data_folder() / "text" / name).read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"the bundled text {name} cannot be read: {error.strerror}") from None
    starts = [n + 1 for n, char in enumerate(text[:-2000]) if char == "\n" and text[n + 1].isalpha()] or [0]
    at = starts[int(torch.randint(len(starts), (1,), generator=generator))]
    return text[at : at + 1000]


def windows(model: Model) -> list[int]:
    """Sliding windows of a model's layers, read without their weights where the configuration tells."""
    weights, shape = model.weights, model.shape
    if not isinstance(weights, NamedWeights):
        found = [weights.attention(layer).window for layer in range(shape.n_layers)]
    else:
        layers = range(shape.n_layers)
        found = [layer_numbers(weights.config, weights.layout, shape, layer).window for layer in layers]
    return [window for window in found if window is not None]
