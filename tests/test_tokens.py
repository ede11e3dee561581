"""How tokens are shown: nothing invisible, nothing that looks like something else, no byte lost."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AddedToken, PreTrainedTokenizerFast

from mechview.tokens import BYTE_OF_CHAR, LONGEST, VISIBLE, describe, shorten, show, token_bytes, token_text

INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
STAND_INS = frozenset(VISIBLE.values()) | {"∅", "␣", "\\"}


def byte_level(**added: object) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose vocabulary is the 256 bytes: id = byte."""
    vocabulary = {CHAR_OF_BYTE[byte]: byte for byte in range(256)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|bos|>")
    tokenizer.add_tokens([AddedToken(text) for text in added.values()])
    return tokenizer


def sentencepiece() -> PreTrainedTokenizerFast:
    words = ["<unk>", "<0xC3>", "<0xA6>", "▁a", "a", "▁", "<0x0A>", "<0xZZ>"]
    backend = Tokenizer(models.WordLevel(vocab={word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


BYTES, PIECES = byte_level(name="né e"), sentencepiece()


def test_space_newline_tab_and_nothing_have_labels_of_their_own() -> None:
    labels = [show(text) for text in (" a", "a", "\n", "\t", "", " ", "\r", "\0", "  ", "a ", "\u200b", "\ufeff")]
    assert labels[:5] == ["·a", "a", "⏎", "⇥", "∅"]
    assert len(set(labels)) == len(labels)


@given(st.text(alphabet=st.characters(exclude_characters="", exclude_categories=())))
def test_every_character_shown_is_visible(text: str) -> None:
    shown = show(text)
    assert shown
    assert not [char for char in shown if unicodedata.category(char) in INVISIBLE]


@given(st.characters(exclude_categories=("Zs",)), st.characters(exclude_categories=("Zs",)))
def test_different_characters_are_shown_differently(a: str, b: str) -> None:
    if a != b and not {a, b} & STAND_INS:
        assert show(a) != show(b)


def test_a_far_character_is_not_a_near_one_and_a_digit() -> None:
    assert show("\U000e0001") == "\\U000e0001"
    assert show("\ue0001") == "\\ue0001"


@given(st.text(alphabet=st.characters(exclude_categories=INVISIBLE), min_size=1))
def test_visible_text_is_shown_as_it_is(text: str) -> None:
    assert show(text) == text


@given(st.text(), st.integers(2, 60))
def test_shortening_keeps_short_labels_and_marks_long_ones(text: str, longest: int) -> None:
    short = shorten(text, longest)
    assert len(short) <= max(longest, 0)
    assert (short == text) is (len(text) <= longest) or text[longest - 1 :] == "…"


@given(st.text())
def test_no_byte_of_a_prompt_is_lost(text: str) -> None:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return
    raw = BYTES.convert_ids_to_tokens(list(encoded))
    assert b"".join(token_bytes(token, BYTES) for token in raw) == encoded
    tokens = describe(list(encoded), BYTES)
    assert [token.id for token in tokens] == list(encoded)
    assert [token.pos for token in tokens] == list(range(len(encoded)))


def test_fragments_of_a_character_are_shown_as_bytes_and_whole_ones_as_text() -> None:
    shown = [token.shown for token in describe([*"né\n ".encode(), 0], BYTES)]
    assert shown == ["n", "\\xc3", "\\xa9", "⏎", "·", "␀"]


def test_an_added_token_is_text_not_bytes() -> None:
    token_id = BYTES.convert_tokens_to_ids("né e")
    assert token_text(token_id, BYTES) == ("né e", "né·e")


@pytest.mark.parametrize("text", ["né", "ñandú", "¡"])
def test_an_added_token_whose_letters_all_stand_for_bytes_is_still_text(text: str) -> None:
    tokenizer = byte_level(name=text)
    assert token_text(tokenizer.convert_tokens_to_ids(text), tokenizer) == (text, text)


def test_sentencepiece_marks_and_byte_fallbacks() -> None:
    tokens = describe(list(range(8)), PIECES)
    assert [token.shown for token in tokens] == ["<unk>", "\\xc3", "\\xa6", "·a", "a", "·", "⏎", "<0xZZ>"]
    assert [token.text for token in tokens[3:7]] == [" a", "a", " ", "\n"]
    assert [token.special for token in tokens] == [True] + [False] * 7


def test_special_tokens_are_marked_and_hostile_text_is_not_escaped_twice() -> None:
    bos = BYTES.bos_token_id
    (token,) = describe([bos], BYTES)
    assert (token.shown, token.special) == ("<|bos|>", True)
    assert show("<script>&amp;") == "<script>&amp;"


def test_without_a_tokenizer_and_for_unknown_ids_the_id_is_shown() -> None:
    assert [token.shown for token in describe([7, 0], None)] == ["#7", "#0"]
    assert token_text(10_000, BYTES) == ("#10000", "#10000")


def test_long_tokens_are_shortened_in_their_label_only() -> None:
    tokenizer = byte_level(name="=" * 100)
    (token,) = describe([tokenizer.convert_tokens_to_ids("=" * 100)], tokenizer)
    assert token.text == "=" * 100
    assert token.shown == "=" * (LONGEST - 1) + "…"
