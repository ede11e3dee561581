"""How many neurons have rows of their own is asked for, said, and changes no sum: the others are one exact row."""

from __future__ import annotations

import pytest
import torch
from test_ledger import EXPERTS, TRACED, traced

import mechview as mv
from mechview.errors import UsageError
from mechview.models.neurons import activations

pytest_plugins = ["commands"]
DENSE = [name for name in TRACED if name not in EXPERTS]


def neurons_of(components):
    return [name for name in components if ".n" in name]


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("count", [0, 1, 7, 10_000])
def test_any_number_of_neurons_leaves_an_exact_remainder(name, count):
    trace = traced(name)
    layers, width = trace.weights.shape.layers(trace.stack), trace.weights.mlp(0, trace.stack).W_out.shape[0]
    parts = mv.ledger(trace, by="neuron", neurons=count)
    assert (parts.neurons, parts.error < 1e-5) == (count, True)
    assert len(neurons_of(parts.components)) == layers * min(count, width)
    whole = mv.ledger(trace, by="head")
    if trace.weights.attention(0, trace.stack).stream_norm.kind == "none":
        mine = [n for n, name in enumerate(parts.components) if name.startswith("L0.n") or name == "L0.mlp_rest"]
        torch.testing.assert_close(parts.values[mine].sum(0), whole.row("L0.mlp"), rtol=1e-4, atol=1e-5)
    if count >= width:
        rest = parts.row("L0.mlp_rest")
        bias = trace.weights.mlp(0, trace.stack).b_out
        assert bias is not None or float(rest.abs().max()) < 1e-4 * float(whole.values.abs().max())


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "t5", "phi"])
def test_shares_lens_and_score_take_as_many_as_are_asked_for(name):
    trace = traced(name)
    found = {n: mv.shares(trace, 5, 7, by="neuron", neurons=n) for n in (0, 3)}
    assert found[0].total == found[3].total
    for count, one in found.items():
        assert one.error < 1e-5
        assert len(neurons_of(one.components)) == count * trace.weights.shape.layers(trace.stack)
        assert set(one.frame()["neurons"]) == {count}
    changes = mv.lens_changes(trace, 5, 7, by="neuron", neurons=3)
    assert changes.error < 1e-6
    assert len(neurons_of(row.component for row in changes.rows)) == 3 * trace.weights.shape.layers(trace.stack)
    assert set(changes.frame()["neurons"]) == {3}
    score = mv.score_ledger(trace, layer=1, head=0, query=5, key=2, by="neuron", neurons=3)
    assert score.error < 1e-5
    assert len(neurons_of(score.components)) == len(neurons_of(score.key_components)) == 3
    assert set(score.frame()["neurons"]) == {3}


def test_the_neurons_that_stand_alone_are_those_that_write_most():
    trace = traced("gpt2")
    mlp, seen = trace.weights.mlp(0), trace.capture.mlp["decoder", 0]
    size = activations(seen.stream, mlp).abs().amax(0) * mlp.W_out.norm(dim=-1)
    names = [name for name in mv.ledger(trace, by="neuron", neurons=4).components if name.startswith("L0.n")]
    assert names == [f"L0.n{n}" for n in size.topk(4).indices.tolist()]
    shares = mv.shares(trace, 5, by="neuron", neurons=4)
    every = mv.shares(trace, 5, by="neuron", neurons=10_000)
    values = {name: abs(float(v)) for name, v in zip(every.components, every.values, strict=True) if "L1.n" in name}
    assert {n for n in shares.components if "L1.n" in n} == set(sorted(values, key=values.get)[-4:])


def test_ten_stand_alone_unless_told_and_other_grains_have_none():
    trace = traced("llama")
    assert mv.ledger(trace, by="neuron").components == mv.ledger(trace, by="neuron", neurons=10).components
    assert mv.ledger(trace).neurons is None
    assert mv.ledger(trace).frame()["neurons"].isna().all()


ASKED = [
    lambda **n: mv.ledger(traced("gpt2"), **n),
    lambda **n: mv.shares(traced("gpt2"), 5, **n),
    lambda **n: mv.lens_changes(traced("gpt2"), 5, **n),
    lambda **n: mv.score_ledger(traced("gpt2"), layer=1, head=0, **n),
    lambda **n: mv.shares_along(
        traced("gpt2"), mv.named_direction("L0H0.message.v0", traced("gpt2").weights), **n
    ),
]  # fmt: skip


@pytest.mark.parametrize("call", ASKED, ids=["ledger", "shares", "lens", "score", "along"])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"by": "neuron", "neurons": -1}, "is not a number of neurons"),
        ({"by": "neuron", "neurons": 2.5}, "is not a number of neurons"),
        ({"by": "neuron", "neurons": True}, "is not a number of neurons"),
        ({"by": "head", "neurons": 3}, "belongs to by='neuron'"),
        ({"by": "neurons"}, "is not a grain"),
    ],
)
def test_numbers_that_make_no_sense_are_a_sentence(call, given, sentence):
    with pytest.raises(UsageError, match=sentence):
        call(**given)


PROMPT = ("-p", "the man and the woman")


@pytest.mark.parametrize(
    "arguments",
    [
        ("resid", *PROMPT),
        ("resid", *PROMPT, "-t", " man"),
        ("resid", *PROMPT, "-t", " man", "--writes"),
        ("resid", *PROMPT, "--direction", "L1H2.message.v0"),
        ("lens", *PROMPT, "-t", " man", "--changes"),
        ("why", "L1H1", *PROMPT),
    ],
)
def test_the_number_is_an_option_and_is_said(cli, arguments):
    asked = (*arguments, "--by", "neuron", "--neurons", "2")
    assert "2 neurons of each MLP, its others in mlp_rest" in cli(*asked).out
    rows = cli(*asked, "--json").json["rows"]
    named = {row.get("component", row.get("query_component")) for row in rows}
    assert {row["neurons"] for row in rows} == {2}
    assert sum(name.startswith("L0.n") for name in named) == 2
    refused = cli(*arguments, "--neurons", "2")
    assert (refused.code, "belongs to by='neuron'" in refused.err) == (2, True)
