"""The bundled tables of prompts are what their script writes, and mean what they say."""

from __future__ import annotations

import dataclasses
import json
import runpy
from pathlib import Path

import pytest

import mechview as mv
from conftest import family
from mechview.errors import PromptError
from mechview.models.repeated import beginning, distinct

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(params=["ioi", "facts", "repeats"])
def table(request):
    return mv.prompt_table(request.param)


def test_the_script_writes_the_same_bytes_again(tmp_path, capsys):
    runpy.run_path(str(DATA / "make" / "prompts.py"))["write"](tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in (DATA / "prompts").iterdir()}
    assert "ioi: 48 prompts" in capsys.readouterr().err


def test_every_table_says_what_it_is_for_and_what_each_column_means(table):
    assert mv.prompt_tables()[table.name] == table.purpose
    for case in table:
        assert {"prompt", "target", "against", "corrupted", *case.about} == table.columns.keys()
        assert case.target != case.against
        assert case.prompt != case.corrupted
        assert case.target.startswith(" ")


def test_the_ioi_answer_is_the_name_that_is_said_once():
    table = mv.prompt_table("ioi")
    for case in table:
        words = case.prompt.replace(",", "").split()
        assert (words.count(case.target.strip()), words.count(case.against.strip())) == (1, 2)
        other = case.corrupted.replace(",", "").split()
        assert (other.count(case.target.strip()), other.count(case.against.strip())) == (2, 1)
        first = min((case.target, case.against), key=lambda name: words.index(name.strip()))
        assert (first == case.target) == (case.about["order"] == "ABBA")
    orders = {(case.about["template"], case.about["order"]) for case in table}
    assert orders == {(n, order) for n in range(4) for order in ("ABBA", "BABA")}
    assert {case.about["order"] for case in table.where(order="ABBA")} == {"ABBA"}


def test_the_repeated_answer_followed_the_last_word_before():
    for case in mv.prompt_table("repeats"):
        words, broken = case.prompt.split(), case.corrupted.split()
        period = case.about["period"]
        assert words[: len(words) - period] == words[period:]
        at = words.index(words[-1])
        assert words[at + 1] == case.target.strip()
        assert len(words) == len(broken)
        assert broken.count(words[-1]) == 1


def test_random_tokens_repeat_and_are_ordinary_ones_of_every_vocabulary(toy):
    bare, _ = family("gpt2")  # without a tokenizer: ids from 0 to 99
    for model in (toy, bare):
        table = mv.prompt_table("random").fitting(model)
        special = set(toy.tokenizer.all_special_ids) if model is toy else set()
        assert (len(table), table.left_out) == (24, ())
        for case in table:
            first = len(beginning(model))
            period, ids, broken = case.about["period"], case.prompt[first:], case.corrupted[first:]
            words = ids[:period]
            assert (len(set(words)), set(words) & special) == (period, set())
            assert ids[period:] == words[: len(ids) - period]
            assert case.target == words[len(ids) - period]
            assert case.against in set(words) - {case.target, ids[-1]}
            assert broken.count(ids[-1]) == 1  # in the second period alone: nothing says what follows
            assert [n for n, (a, b) in enumerate(zip(ids, broken, strict=True)) if a != b] == [len(ids) - period - 1]
        assert mv.prompt_table("random").fitting(model) == table


def test_another_number_draws_another_token_and_a_taken_one_gives_way():
    assert distinct([0.0, 0.05, 0.5], [3, 4, 5, 6]) == [3, 4, 5]
    assert distinct([0.99, 0.98, 0.97], [3, 4, 5, 6]) == [6, 3, 4]
    with pytest.raises(PromptError, match="3 different tokens are needed; this vocabulary has 2"):
        distinct([0.1, 0.2, 0.3], [1, 2])


def test_a_tokenizers_first_token_stands_before_random_ones():
    class Begins:
        bos_token_id, all_special_ids, added_tokens_decoder = 1, [1], {}

        def __len__(self) -> int:
            return 90

        def __call__(self, text, **_):
            return {"input_ids": [1, 5]}

    model = dataclasses.replace(family("llama")[0], tokenizer=Begins())
    for case in mv.prompt_table("random").fitting(model):
        assert (case.prompt[0], case.corrupted[0]) == (1, 1)
        assert 1 not in case.prompt[1:]
        assert max(case.prompt) < 90


def test_random_tokens_that_no_model_has_drawn_are_a_sentence(toy):
    with pytest.raises(PromptError, match=r"take table\.fitting\(model\)"):
        mv.trace(toy, mv.prompt_table("random").texts[0])


def test_the_bundled_model_continues_random_repetitions(toy):
    """It was trained to hold induction heads: the token that came next before is preferred to another of the period."""
    found = [
        float(mv.direct_attribution(mv.write_trace(toy, case.prompt), case.target, case.against).total[-1])
        for case in mv.prompt_table("random").fitting(toy)
    ]
    assert sum(found) / len(found) > 1


@pytest.mark.real
def test_names_of_the_ioi_table_are_one_token_and_pairs_have_one_length(smollm2):
    table = mv.prompt_table("ioi").fitting(smollm2)
    assert (len(table), table.left_out) == (48, ())
    for case in table:
        lengths = {len(smollm2.tokenizer(text)["input_ids"]) for text in (case.prompt, case.corrupted)}
        assert len(lengths) == 1


def test_a_model_without_the_words_is_told_so(toy, table):
    with pytest.raises(PromptError, match=r"no prompt of .* can be asked: .* tokens, not one"):
        mv.prompt_table("ioi").fitting(toy)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", json.dumps({"prompt": "the man", "target": " and", "against": [" a", " the"], "kind": "x"}) + "\n"),
        ("a.csv", 'prompt,target,against,kind\nthe man, and,,x\n'),
    ],
)  # fmt: skip
def test_files_of_the_same_form_are_read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (case,) = mv.prompt_table(tmp_path / name)
    assert (case.prompt, case.target, case.about) == ("the man", " and", {"kind": "x"})
    assert case.against == ([" a", " the"] if name.endswith("l") else None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", '{"prompt": 3}', 'neither a "prompt" nor a "text"'),
        ("a.jsonl", '{"prompt": "a", "target": 3}', "target is neither a text nor a list of texts"),
        ("a.csv", "prompt\n", "holds no prompt"),
        ("a.jsonl", '{"draws": [0.1, 2, 0.3], "shown": 1, "wrong": 0}', "is no row of random tokens"),
        ("a.jsonl", '{"draws": [0.1, 0.2, 0.3], "shown": 1, "wrong": 1}', "is no row of random tokens"),
        ("a.jsonl", '{"draws": [0.1, 0.2, 0.3], "shown": 2, "wrong": 1}', "is no row of random tokens"),
        ("a.jsonl", '{"draws": 3, "shown": 1}', "is no row of random tokens"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(PromptError, match=said):
        mv.prompt_table(tmp_path / name)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(PromptError, match="bundled tables are ioi, facts, repeats, random"):
        mv.prompt_table("ioy")
