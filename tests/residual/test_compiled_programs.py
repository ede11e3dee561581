"""Compiled programs: each named direction of the stream is written by the component that should write it.

Who should follows from what the compiler does with a program: inputs come from the embeddings, an aggregation
is a head, an elementwise function an MLP, and the width of a selector is measured by a head and turned into a
number by the MLP of its layer, which also erases the measurement.
"""

from __future__ import annotations

import pytest

import mechview as mv
import tracr

INPUTS = {"tokens": {"embed"}, "one": {"embed"}, "indices": {"pos_embed"}}
WIDTH = {"L0H0", "L0.mlp"}
PROGRAMS = {
    "reverse": {
        "length_5_selector_width_attn_output": WIDTH, "length_5": {"L0.mlp"}, "opp_idx_4": {"L1.mlp"},
        "opp_idx-1_3": {"L2.mlp"}, "reverse_1": {"L3H0"},
    },
    "prev_token": {"prev_tok_1": {"L0H0"}},
    "hist": {"hist_10_selector_width_attn_output": WIDTH, "hist_10": {"L0.mlp"}},
    "length": {"length_12_selector_width_attn_output": WIDTH, "length_12": {"L0.mlp"}},
    "frac_prevs": {"map_9": {"L0.mlp"}, "frac_prevs_7": {"L1H0"}},
    "sort_unique": {
        "target_pos_16_selector_width_attn_output": WIDTH, "target_pos_16": {"L0.mlp"}, "sort_14": {"L1H0"},
    },
    "induction_unique": {"prev_tok_6": {"L0H0"}, "prev_tok_or_S_5": {"L0.mlp"}, "induction_3": {"L1H0"}},
    "shuffle_dyck": {
        "length_5_selector_width_attn_output": WIDTH, "length_5": {"L0.mlp"}, "bools_open_31": {"L0.mlp"},
        "bools_close_33": {"L0.mlp"}, "opens_28": {"L1H0"}, "closes_29": {"L1H1"}, "map_24": {"L1.mlp"},
        "balance_()_25": {"L2.mlp"}, "any_negative_27": {"L3.mlp"}, "map_22": {"L3.mlp"}, "has_neg_23": {"L4H1"},
        "last_zero_19": {"L4H0"}, "not_has_neg_20": {"L4.mlp"}, "shuffle_dyck_18": {"L5.mlp"},
    },
}  # fmt: skip
PROMPTS = {
    "reverse": ["acbdb", "ab", "dcba"], "prev_token": ["acbdb", "ddca"], "hist": ["aabca", "bbbb"], "length": ["abca", "d"],
    "frac_prevs": ["acbca", "bbab"], "sort_unique": ["3142", "52"], "induction_unique": ["abcdefa", "hgfhg"],
    "shuffle_dyck": ["(())()", "))((", "(()", "()()"],
}  # fmt: skip


def expected(program: str, text: str) -> list[object]:
    """What the program means, in Python; None where it is not defined."""
    match program:
        case "reverse":
            return list(text[::-1])
        case "prev_token":
            return [None, *text[:-1]]
        case "hist":
            return [text.count(letter) for letter in text]
        case "length":
            return [len(text)] * len(text)
        case "frac_prevs":
            return [text[: n + 1].count("a") / (n + 1) for n in range(len(text))]
        case "sort_unique":
            return sorted(map(int, text))
        case "induction_unique":
            before = [text[:n].rfind(letter) for n, letter in enumerate(text)]
            return [None if at < 0 else text[at + 1] for at in before]
    depth = [text[:n].count("(") - text[:n].count(")") for n in range(len(text) + 1)]
    return [min(depth) >= 0 and depth[-1] == 0] * len(text)


@pytest.fixture(scope="module", params=PROGRAMS)
def compiled(request, shared):
    return request.param, tracr.program(shared / "models" / "tracr" / request.param)


def test_a_compiled_program_computes_what_it_means(compiled):
    name, program = compiled
    for text in PROMPTS[name]:
        said, meant = program.says(list(text)), expected(name, text)
        assert len(said) == len(meant)
        for one, other in zip(said, meant, strict=True):
            assert other is None or one == pytest.approx(other, abs=1e-4), (name, text)


def test_each_named_direction_is_written_by_its_component_and_by_no_other(compiled):
    name, program = compiled
    should = INPUTS | PROGRAMS[name]
    assert should.keys() == program.families().keys()
    largest: dict[tuple[str, str], float] = {}
    for text in PROMPTS[name]:
        for direction, wrote in tracr.writers(program, list(text)).items():
            for component, size in wrote.items():
                largest[direction, component] = max(size, largest.get((direction, component), 0.0))
    for (direction, component), size in largest.items():
        assert (size > 0.1) == (component in should[direction]), (direction, component, size)
        assert size > 0.1 or size < 1e-5, (direction, component, size)


def test_rows_of_a_compiled_program_sum_to_its_stream_and_to_its_answer(compiled):
    name, program = compiled
    seen = mv.trace(program.model, program.ids(list(PROMPTS[name][0])))
    for by in ("layer", "head", "source", "bias"):
        assert mv.ledger(seen, by=by).error < 1e-5
    answer = program.unembed[:, 0]
    found = mv.shares(seen, direction=answer, position=2)
    assert found.error < 1e-5
    assert found.total == pytest.approx(float(seen.stream_final[2] @ answer), abs=1e-5)
    last = PROGRAMS[name][list(PROGRAMS[name])[-1]]
    elsewhere = [v for c, v in zip(found.components, found.values.tolist(), strict=True) if c not in last]
    assert max(map(abs, elsewhere)) < 1e-5
