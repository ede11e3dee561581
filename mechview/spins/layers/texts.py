"""Documents to sequences: windows of one length, training and test windows from different documents (N7).

A document is a text or a list of token ids. Its ids are cut into windows that do not overlap; where the
tokenizer puts a beginning-of-sequence token first, every window gets one. Windows are taken evenly from the
documents. By default the bundled excerpts are fitted on and the bundled held-out texts tested on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mechview.errors import PromptError
from mechview.models.bundled import data_folder
from mechview.models.load import Model
from mechview.models.tracing import encode

LENGTH, TRAIN, TEST = 128, 28, 12
SHORTEST, LEAST_TRAIN, LEAST_TEST = 8, 4, 3
DEFAULT = (("austen-excerpt.txt", "kjv-excerpt.txt"), ("austen-heldout.txt", "kjv-heldout.txt"))
Document = Any  # text, or token ids, checked where it is read


@dataclass(frozen=True)
class Sequences:
    """Windows of token ids, all of one length, and from how many documents each side comes."""

    train: tuple[tuple[int, ...], ...]
    test: tuple[tuple[int, ...], ...]
    documents: tuple[int, int]

    @property
    def length(self) -> int:
        return len(self.train[0])


def sequences(
    model: Model,
    documents: Sequence[Document] | None = None,
    heldout: Sequence[Document] | None = None,
    *,
    length: int = LENGTH,
    train: int = TRAIN,
    test: int = TEST,
) -> Sequences:
    """Windows to fit on and windows to test on.

    Args:
        documents: texts or lists of ids; without `heldout` the last third of them (at least one) is tested on.
        heldout: documents to test on.

    Raises:
        PromptError: one document only, a document twice, or too few tokens.
    """
    fitted, tested = _split(model, documents, heldout)
    length = min(length, model.shape.n_ctx or length)
    if length < SHORTEST:
        raise PromptError(f"sequences of {length} tokens are too short to fit on: at least {SHORTEST} are needed")
    sides = []
    for side, count, least, name in ((fitted, train, LEAST_TRAIN, "fit"), (tested, test, LEAST_TEST, "test")):
        found = _windows([_ids(model, document) for document in side], length, count)
        if len(found) < least:
            raise PromptError(
                f"the documents to {name} on hold {len(found)} sequences of {length} tokens: at least {least} are needed"
            )
        sides.append(found)
    return Sequences(tuple(sides[0]), tuple(sides[1]), (len(fitted), len(tested)))


def _split(
    model: Model, documents: Sequence[Document] | None, heldout: Sequence[Document] | None
) -> tuple[list[Document], list[Document]]:
    if documents is None and heldout is None:
        if model.tokenizer is None:
            raise PromptError(f"{model.name} has no tokenizer; give the documents as lists of token ids")
        folder = data_folder() / "text"
        first, second = ([(folder / name).read_text(encoding="utf-8") for name in names] for names in DEFAULT)
        return first, second
    given = [documents] if isinstance(documents, str) else list(documents or ())
    tested = [heldout] if isinstance(heldout, str) else list(heldout or ())
    if not tested and len(given) > 1:
        cut = max(1, len(given) // 3)
        given, tested = given[:-cut], given[-cut:]
    if not given or not tested:
        raise PromptError("the fit is tested on another document than it is made on: give at least two documents")
    if any(_same(a, b) for a in given for b in tested):
        raise PromptError("a document to test on is also one to fit on: they must differ")
    return given, tested


def _same(a: Document, b: Document) -> bool:
    return type(a) is type(b) and len(a) == len(b) and bool(a == b if isinstance(a, str) else list(a) == list(b))


def _ids(model: Model, document: Document) -> tuple[list[int], list[int]]:
    """The beginning-of-sequence token, if the tokenizer puts one, and the document's own ids."""
    if not isinstance(document, str):
        return [], [int(i) for i in (document.tolist() if hasattr(document, "tolist") else document)]
    if model.tokenizer is None:
        raise PromptError(f"{model.name} has no tokenizer; give the documents as lists of token ids")
    if not document:
        raise PromptError("a document is empty: it has no tokens")
    first = list(encode(model, document[:1]))
    ids = list(model.tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"])
    bos = getattr(model.tokenizer, "bos_token_id", None)
    return ([bos] if bos is not None and first[:1] == [bos] else []), ids


def _windows(documents: list[tuple[list[int], list[int]]], length: int, count: int) -> list[tuple[int, ...]]:
    """Windows in turn from each document, spread over its whole length."""
    share = -(-count // len(documents))
    each = [_spread(bos, ids, length, share) for bos, ids in documents]
    turns = [windows[n] for n in range(share) for windows in each if n < len(windows)]
    return turns[:count]


def _spread(bos: list[int], ids: list[int], length: int, count: int) -> list[tuple[int, ...]]:
    size = length - len(bos)
    possible = len(ids) // size
    kept = min(count, possible)
    return [
        tuple(bos + ids[start * size : (start + 1) * size])
        for start in (n * possible // max(kept, 1) for n in range(kept))
    ]
