"""Alignment: edit distance against brute force, its mirror image, and text across tokenizers."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mechview.errors import UsageError
from mechview.residual import align as module
from mechview.residual.align import align_tokens, distances, edit_path
from mechview.tokens import describe

SHORT = st.lists(st.integers(0, 3), max_size=7)


def brute(a: list[int], b: list[int]) -> int:
    """Levenshtein's distance by its definition."""

    @cache
    def left(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(left(i - 1, j) + 1, left(i, j - 1) + 1, left(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return left(len(a), len(b))


def cost(path: list[tuple[int | None, int | None]], a: list[int], b: list[int]) -> int:
    return sum(i is None or j is None or a[i] != b[j] for i, j in path)


@given(SHORT, SHORT)
@settings(max_examples=300, deadline=None)
def test_path_is_a_shortest_one_and_visits_every_place_in_order(a, b):
    path = edit_path(a, b)
    assert [i for i, _ in path if i is not None] == list(range(len(a)))
    assert [j for _, j in path if j is not None] == list(range(len(b)))
    assert (None, None) not in path
    assert cost(path, a, b) == brute(a, b) == distances(a, b)[-1, -1]


@given(SHORT, SHORT)
@settings(max_examples=200, deadline=None)
def test_path_back_is_the_mirror_image(a, b):
    assert edit_path(b, a) == [(j, i) for i, j in edit_path(a, b)]


def test_mirror_image_where_insertion_and_deletion_tie():
    a, b = [1, 2, 1, 2, 1], [2, 1, 2, 1, 2]
    assert cost(edit_path(a, b), a, b) == 2
    assert edit_path(b, a) == [(j, i) for i, j in edit_path(a, b)]


def test_a_table_that_would_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(module, "LARGEST_TABLE", 100)
    assert edit_path([7] * 500, [7] * 500)[-1] == (499, 499)  # a common part needs no table
    with pytest.raises(UsageError, match="too long to align"):
        edit_path(list(range(20)), list(range(20, 40)))


def fast(vocabulary: list[str], bytes_too: bool) -> PreTrainedTokenizerFast:
    words = {word: n for n, word in enumerate(["<s>", "<unk>", *vocabulary])}
    if bytes_too:
        tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


WORDS = fast(["the", "cat", "sat", "dog", "é"], bytes_too=False)
LETTERS = fast(sorted(pre_tokenizers.ByteLevel.alphabet()), bytes_too=True)


def described(tokenizer, text: str):
    return describe([tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]], tokenizer)


def words_against_letters(left: str, right: str):
    a, b = described(WORDS, left), described(LETTERS, right)
    return a, b, align_tokens(a, b, WORDS, LETTERS)


def test_words_stand_beside_the_letter_that_ends_them():
    a, b, aligned = words_against_letters("the cat sat", "The cat sat")
    assert aligned.by == "text"
    assert "tokenizers differ" in aligned.note
    met = [(a[p.a].text, b[p.b].text, p.kind) for p in aligned.both]
    assert met == [("<s>", "<s>", "same"), ("the", "e", "same end"), ("cat", "t", "same end"), ("sat", "t", "same end")]
    assert [p.b for p in aligned.pairs if p.b is not None] == list(range(len(b)))
    assert [p.a for p in aligned.pairs if p.a is not None] == list(range(len(a)))


def test_an_inserted_word_is_inserted_in_text_too():
    a, _, aligned = words_against_letters("the cat", "the dog cat")
    assert [a[p.a].text for p in aligned.both] == ["<s>", "the", "cat"]
    assert all(p.kind == "inserted" for p in aligned.pairs if p.a is None)
    assert not [p for p in aligned.pairs if p.b is None]


def test_a_character_in_two_pieces_ends_with_its_last_byte():
    a, b, aligned = words_against_letters("the é", "the é")
    assert [(p.a, p.b) for p in aligned.both][-1] == (len(a) - 1, len(b) - 1)
    assert len(b) == 1 + len(b"the ") + 2


def test_equal_vocabularies_are_aligned_by_id():
    twin = fast(["the", "cat", "sat", "dog", "é"], bytes_too=False)
    a, b = described(WORDS, "the cat sat"), described(twin, "the dog cat sat")
    aligned = align_tokens(a, b, WORDS, twin)
    assert aligned.by == "ids"
    assert aligned.distance == 1
    assert [p.kind for p in aligned.pairs] == ["same", "same", "inserted", "same", "same"]


def test_without_tokenizers_ids_need_one_vocabulary():
    a = describe([1, 2, 3], None)
    assert align_tokens(a, a, None, None, (9, 9)).distance == 0
    assert "one side has no tokenizer" in align_tokens(a, a, None, WORDS, (7, 7)).note
    with pytest.raises(UsageError, match="vocabularies differ"):
        align_tokens(a, a, None, None, (9, 8))
