"""Which token of one prompt stands beside which token of another.

Prompts of one vocabulary are aligned by the edit distance of their token ids (Levenshtein 1966; table of
Needleman and Wunsch 1970, insertion, deletion and substitution cost 1 each; among equally short paths,
substitutions first). Across vocabularies the characters are aligned, without white space and case, and two
tokens stand together where they *end* at the same character: only there have both models read the same
text. Special tokens (BOS, [CLS]) of either side count as one and the same character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mechview.errors import UsageError
from mechview.models.trace import Trace
from mechview.tokens import Token, token_bytes

Kind = Literal["same", "same end", "substituted", "inserted", "deleted", "asked"]
Step = tuple[int | None, int | None]
LARGEST_TABLE = 2**26  # numbers of the table of distances: 256 MB
SPECIAL = -1
DIFFERENT_TOKENIZERS = "the tokenizers differ"


@dataclass(frozen=True)
class Pair:
    """Positions that stand together; `a` is None for a token inserted in b, `b` None for one deleted from a."""

    a: int | None
    b: int | None
    kind: Kind


@dataclass(frozen=True)
class Alignment:
    """All positions of both prompts in order. `by` says what was compared: token `ids` or `text`."""

    pairs: tuple[Pair, ...]
    by: Literal["ids", "text"]
    note: str = ""

    @property
    def distance(self) -> int:
        """Insertions, deletions and substitutions."""
        return sum(pair.kind not in ("same", "same end") for pair in self.pairs)

    @property
    def both(self) -> tuple[Pair, ...]:
        """Pairs with a token on either side."""
        return tuple(pair for pair in self.pairs if pair.a is not None and pair.b is not None)


def align(a: Trace, b: Trace) -> Alignment:
    """Positions of two traces side by side.

    Raises:
        UsageError: prompts too long to align, or of two vocabularies without tokenizers to read them.
    """
    sizes = a.weights.shape.d_vocab, b.weights.shape.d_vocab
    return align_tokens(a.tokens, b.tokens, a.tokenizer, b.tokenizer, sizes)


def align_tokens(
    a: Sequence[Token], b: Sequence[Token], tokenizer_a: Any, tokenizer_b: Any, sizes: tuple[int, int] = (0, 0)
) -> Alignment:
    """Tokens side by side: by id where both sides share a vocabulary, otherwise by text."""
    if tokenizer_a is None or tokenizer_b is None:
        if sizes[0] != sizes[1]:
            raise UsageError("the vocabularies differ and a tokenizer is missing: ids of one mean nothing to the other")
        one_missing = (tokenizer_a is None) != (tokenizer_b is None)
        note = "one side has no tokenizer: ids are taken to mean the same on both" if one_missing else ""
        return Alignment(_by_ids(a, b), "ids", note)
    if one_vocabulary(tokenizer_a, tokenizer_b):
        return Alignment(_by_ids(a, b), "ids")
    note = f"{DIFFERENT_TOKENIZERS}: tokens are aligned where they end at the same character of the text"
    return Alignment(_by_text(_Spelled.of(a, tokenizer_a), _Spelled.of(b, tokenizer_b)), "text", note)


def one_vocabulary(tokenizer_a: Any, tokenizer_b: Any) -> bool:
    """Whether an id means the same to both tokenizers; without one of them there is nothing to tell."""
    if tokenizer_a is tokenizer_b or tokenizer_a is None or tokenizer_b is None:
        return True
    return bool(tokenizer_a.get_vocab() == tokenizer_b.get_vocab())


def edit_path(a: Sequence[int], b: Sequence[int]) -> list[Step]:
    """A shortest sequence of edits from a to b, as pairs of places; the path of (b, a) is its mirror image."""
    if (len(b), list(b)) < (len(a), list(a)):
        return [(i, j) for j, i in edit_path(b, a)]
    start = _common(a, b)
    end = min(_common(a[::-1], b[::-1]), len(a) - start)
    inner = _shortest(a[start : len(a) - end], b[start : len(b) - end])
    first: list[Step] = [(n, n) for n in range(start)]
    last: list[Step] = [(len(a) - n, len(b) - n) for n in range(end, 0, -1)]
    return [*first, *((_moved(i, start), _moved(j, start)) for i, j in inner), *last]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _moved(place: int | None, by: int) -> int | None:
    return None if place is None else place + by


def _shortest(a: Sequence[int], b: Sequence[int]) -> list[Step]:
    table = distances(a, b)
    i, j = len(a), len(b)
    path: list[Step] = []
    while i or j:
        if i and j and table[i, j] == table[i - 1, j - 1] + (a[i - 1] != b[j - 1]):
            i, j = i - 1, j - 1
            path.append((i, j))
        elif i and table[i, j] == table[i - 1, j] + 1:
            i -= 1
            path.append((i, None))
        else:
            j -= 1
            path.append((None, j))
    return path[::-1]


def distances(a: Sequence[int], b: Sequence[int]) -> np.ndarray:
    """Edit distance between every beginning of a and every beginning of b, `[len(a) + 1, len(b) + 1]`."""
    if (len(a) + 1) * (len(b) + 1) > LARGEST_TABLE:
        raise UsageError(f"the prompts differ over {len(a)} and {len(b)} tokens or characters: too long to align")
    there, across = np.asarray(b, dtype=np.int64), np.arange(len(b) + 1, dtype=np.int32)
    table = np.empty((len(a) + 1, len(b) + 1), dtype=np.int32)
    table[0] = across
    for i, token in enumerate(a, start=1):
        above = table[i - 1]
        row = above + 1
        row[1:] = np.minimum(row[1:], above[:-1] + (there != token))
        table[i] = np.minimum.accumulate(row - across) + across  # insertions, any number in a row
    return table


def _by_ids(a: Sequence[Token], b: Sequence[Token]) -> tuple[Pair, ...]:
    path = edit_path([token.id for token in a], [token.id for token in b])
    return tuple(Pair(i, j, _kind(i, j, i is not None and j is not None and a[i].id == b[j].id)) for i, j in path)


def _kind(i: int | None, j: int | None, same: bool) -> Kind:
    if i is None:
        return "inserted"
    return "deleted" if j is None else "same" if same else "substituted"


@dataclass(frozen=True)
class _Spelled:
    """A prompt as symbols (bytes of its text), and for each symbol the token that ends there, if one does."""

    symbols: list[int]
    ends: list[int | None]
    tokens: list[tuple[int, ...]]

    @classmethod
    def of(cls, tokens: Sequence[Token], tokenizer: Any) -> _Spelled:
        spelled = [(SPECIAL,) if token.special else _symbols(token, tokenizer) for token in tokens]
        ends: list[int | None] = []
        for pos, symbols in enumerate(spelled):
            ends += [*([None] * (len(symbols) - 1)), pos][: len(symbols)]
        return cls([symbol for symbols in spelled for symbol in symbols], ends, spelled)


def _symbols(token: Token, tokenizer: Any) -> tuple[int, ...]:
    """The bytes a token stands for, without case and white space, and without the `##` of word pieces."""
    raw = str(tokenizer.convert_ids_to_tokens(token.id))
    data = token_bytes(raw, tokenizer)
    if data is None:
        data = token.text.removeprefix("##").encode("utf-8", "replace")
    try:
        return tuple("".join(data.decode("utf-8").casefold().split()).encode())
    except UnicodeDecodeError:
        return tuple(data)


def _by_text(a: _Spelled, b: _Spelled) -> tuple[Pair, ...]:
    found: list[Pair] = []
    for s, t in edit_path(a.symbols, b.symbols):
        i, j = (None if s is None else a.ends[s]), (None if t is None else b.ends[t])
        if s is not None and t is not None and i is not None and j is not None:
            met: Kind = "same" if a.tokens[i] == b.tokens[j] else "same end"
            found.append(Pair(i, j, met if a.symbols[s] == b.symbols[t] else "substituted"))
    return tuple(_with_unmatched(found, len(a.tokens), len(b.tokens)))


def _with_unmatched(pairs: list[Pair], length_a: int, length_b: int) -> list[Pair]:
    """Tokens between two pairs: deleted ones first, then inserted ones."""
    every: list[Pair] = []
    i = j = 0
    for pair in [*pairs, Pair(length_a, length_b, "same")]:
        every += [Pair(n, None, "deleted") for n in range(i, pair.a or 0)]
        every += [Pair(None, n, "inserted") for n in range(j, pair.b or 0)]
        every.append(pair)
        i, j = (pair.a or 0) + 1, (pair.b or 0) + 1
    return every[:-1]
