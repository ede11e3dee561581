"""Names of heads and layers: every accepted spelling, and a sentence for everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechview.errors import HeadError, UsageError
from mechview.factors import head_label
from mechview.heads.labels import HeadName, is_head, parse_head, parse_heads, parse_layers


@pytest.mark.parametrize("text", ["L5H1", "l5h1", "5.1", "L5.H1", "(5, 1)", "(5,1)", "( 5 , 1 )", " L5H1 "])
def test_every_spelling_is_the_same_head(text):
    assert parse_head(text) == HeadName(5, 1)
    assert is_head(text)


@pytest.mark.parametrize(("text", "stack"), [("E.L0H3", "encoder"), ("x.L0H3", "cross"), ("E.0.3", "encoder")])
def test_prefixes_name_the_stack(text, stack):
    assert parse_head(text) == HeadName(0, 3, stack)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "L5",
        "H1",
        "5",
        "5,1",
        "L5H1H2",
        "-1.2",
        "L-1H2",
        "toy",
        "gpt2",
        "٣.١",
        "L1H1\nL2H2",
        "(5, 1",
        "D.L5H1",
        "L12345678H1",
    ],
)
def test_other_texts_are_not_heads(text):
    assert not is_head(text)
    with pytest.raises(UsageError, match="not the name of a head"):
        parse_head(text)


@given(st.integers(0, 999_999), st.integers(0, 999_999), st.sampled_from(["decoder", "encoder", "cross"]))
def test_what_is_printed_is_read_back(layer, head, stack):
    label = head_label(layer, head, stack, several_stacks=True)
    named = parse_head(label)
    assert (named.layer, named.head, named.stack or "decoder") == (layer, head, stack)
    assert str(named) == label


def test_lists_keep_order_and_commas_inside_brackets():
    assert parse_heads("L7H3,(5, 1),E.0.2") == (HeadName(7, 3), HeadName(5, 1), HeadName(0, 2, "encoder"))
    with pytest.raises(UsageError, match="'' is not"):
        parse_heads("L7H3,")


@pytest.mark.parametrize(
    ("text", "layers"),
    [("0:4", (0, 1, 2, 3)), ("0,3", (0, 3)), ("3,0,3", (0, 3)), (":2", (0, 1)), ("4:", (4, 5)), (":", tuple(range(6))), ("0, 2:4", (0, 2, 3))],
)  # fmt: skip
def test_layers_as_lists_and_slices(text, layers):
    assert parse_layers(text, 6) == layers


@pytest.mark.parametrize("text", ["6", "0:7", "3:99"])
def test_layers_beyond_the_model_are_refused_not_clipped(text):
    with pytest.raises(HeadError, match="this model has layers 0 to 5"):
        parse_layers(text, 6)


@pytest.mark.parametrize("text", ["", "x", "-1", "1-3", "3:1", "2:2", "1:2:3", "0,,1"])
def test_texts_that_are_no_layers(text):
    with pytest.raises(UsageError):
        parse_layers(text, 6)
