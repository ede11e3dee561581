"""LSTM traces against PyTorch, golden numbers and planted gates; exact unrolling of every kind of LSTM."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mechview as mv
from mechview.errors import CheckError, ModelError, PromptError, UsageError
from mechview.recurrent.cells import lstm_logits, run_layer
from mechview.recurrent.retention import (
    channel_attention,
    half_lives,
    horizons,
    retention,
    start_retention,
    unrolled,
    unrolling_error,
    variance_split,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text(encoding="utf-8"))


def random_lstm(d_in, hidden, layers, both, projection, seed):
    torch.manual_seed(seed)
    module = nn.LSTM(d_in, hidden, layers, bidirectional=both, proj_size=projection, batch_first=True)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7)
    return module.double()


KINDS = st.tuples(
    st.integers(1, 5), st.integers(2, 6), st.integers(1, 3), st.booleans(), st.integers(0, 1), st.integers(0, 999)
)


@settings(max_examples=25, deadline=None)
@given(KINDS, st.integers(1, 9))
def test_every_kind_of_lstm_is_pytorchs_and_unrolls_exactly(kind, length):
    d_in, hidden, layers, both, projected, seed = kind
    module = random_lstm(d_in, hidden, layers, both, projected * (hidden - 1), seed)
    x = torch.randn(length, d_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    trace = mv.lstm_trace(mv.wrap_lstm(module), x)
    with torch.no_grad():
        output, (_, c) = module(x[None])
    torch.testing.assert_close(trace.hidden, output[0], rtol=0, atol=1e-12)
    for cell, last in zip(trace.cells, c[:, 0], strict=True):
        torch.testing.assert_close(cell.cell[-1], last, rtol=0, atol=1e-12)
        torch.testing.assert_close(unrolled(cell), cell.cell, rtol=0, atol=1e-12)
        assert unrolling_error(cell) < 1e-12


def test_a_state_that_was_there_before_is_kept_by_the_product_of_the_gates():
    module = random_lstm(3, 4, 1, False, 0, 5)
    layer = mv.wrap_lstm(module).layers[0][0]
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, whole = run_layer(x[:2], layer), run_layer(x, layer)
    later = torch.tensor_split(whole.cell, [2])[1]
    kept = start_retention(whole.forget_gate[2:]) * first.cell[-1]
    written = (retention(whole.forget_gate[2:]) * whole.writes[2:]).sum(1)
    torch.testing.assert_close(kept + written, later, rtol=0, atol=1e-12)


def test_a_stack_of_cells_is_the_same_stack():
    torch.manual_seed(3)
    cells = nn.ModuleList([nn.LSTMCell(3, 4), nn.LSTMCell(4, 5, bias=False)]).double()
    x = torch.randn(7, 3, dtype=torch.float64)
    h = [torch.zeros(1, 4).double(), torch.zeros(1, 5).double()]
    c = [part.clone() for part in h]
    with torch.no_grad():
        for step in x:
            h[0], c[0] = cells[0](step[None], (h[0], c[0]))
            h[1], c[1] = cells[1](h[0], (h[1], c[1]))
    trace = mv.lstm_trace(mv.wrap_lstm(cells), x)
    torch.testing.assert_close(trace.hidden[-1], h[1][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(trace.cells[0].cell[-1], c[0][0], rtol=0, atol=1e-12)


def constant(f, i, g, o):
    """One unit without weights: gates are what the biases say."""
    state = {
        "weight_ih_l0": torch.zeros(4, 1),
        "weight_hh_l0": torch.zeros(4, 1),
        "bias_ih_l0": torch.tensor([i, f, g, o]),
    }
    return mv.wrap_lstm({name: value.double() for name, value in state.items()})


def test_golden_constant_gates():
    golden = GOLDEN["lstm_constant"]
    [cell] = mv.lstm_trace(constant(math.log(3.0), 0.0, 1.0, 2.0), torch.zeros(10, 1)).cells
    for name in ("f", "i", "g", "o"):
        part = {"f": cell.forget_gate, "i": cell.input_gate, "g": cell.candidate, "o": cell.output_gate}[name]
        torch.testing.assert_close(part, torch.full_like(part, golden[name]), rtol=0, atol=2e-7)
    for row in golden["trace"]:
        assert float(cell.cell[row["t"] - 1]) == pytest.approx(row["c"], abs=1e-7)
        assert float(cell.hidden[row["t"] - 1]) == pytest.approx(row["h"], abs=1e-7)
    assert float(half_lives(cell.forget_gate)) == pytest.approx(golden["half_life"], abs=1e-6)
    left = retention(cell.forget_gate)[5, :6, 0].flip(0).tolist()
    assert left == pytest.approx(golden["retention_lag"], abs=1e-7)
    assert float(horizons(cell.forget_gate)[-1]) == pytest.approx((1 - 0.75**10) / 0.25, abs=1e-6)


def test_planted_gates_keep_everything_nothing_and_a_share():
    x = torch.zeros(8, 1)
    [open_] = mv.lstm_trace(constant(40.0, 0.3, 1.0, 0.0), x).cells
    torch.testing.assert_close(open_.cell, open_.writes.cumsum(0), rtol=1e-12, atol=0)
    assert retention(open_.forget_gate).tril().sum() == pytest.approx(36.0)
    assert float(half_lives(open_.forget_gate)) > 1e15
    [shut] = mv.lstm_trace(constant(-800.0, 0.3, 1.0, 0.0), x).cells
    torch.testing.assert_close(shut.cell, shut.writes, rtol=0, atol=0)
    torch.testing.assert_close(retention(shut.forget_gate)[..., 0], torch.eye(8).double(), rtol=0, atol=0)
    assert float(half_lives(shut.forget_gate)) == 0.0
    [share] = mv.lstm_trace(constant(0.0, 0.3, 1.0, 0.0), x).cells
    assert float(half_lives(share.forget_gate)) == pytest.approx(1.0)
    assert channel_attention(share)[5, 3, 0] == pytest.approx(0.25 * float(share.input_gate[3]))


def test_the_backward_direction_remembers_what_comes_later():
    module = random_lstm(2, 3, 1, True, 0, 8)
    x = torch.randn(5, 2, dtype=torch.float64)
    backward = mv.lstm_trace(mv.wrap_lstm(module), x).cells[1]
    turned = mv.lstm_trace(mv.wrap_lstm(module), x.flip(0)).cells[1]
    assert backward.reverse
    assert not torch.allclose(backward.cell, turned.cell)
    again = run_layer(x, mv.wrap_lstm(module).layers[0][1])
    torch.testing.assert_close(again.in_text_order(again.cell)[0], backward.cell[-1], rtol=0, atol=0)


def test_the_variance_of_writes_is_split_exactly():
    generator = torch.Generator().manual_seed(2)
    gate, content = torch.rand(3, 400, generator=generator).double(), torch.randn(3, 400, generator=generator).double()
    split = variance_split(gate, content)
    assert split.gate + split.content + split.covariance == pytest.approx(1.0)
    same = variance_split(gate, torch.full_like(content, 2.0))
    assert (same.gate, same.content, same.covariance) == pytest.approx((1.0, 0.0, 0.0), abs=1e-12)
    half = variance_split(gate, gate.clone())
    assert half.gate_share == pytest.approx(0.5)
    shifted = variance_split(gate * torch.tensor([[1.0], [5.0], [9.0]]).double(), torch.full_like(content, 2.0))
    assert shifted.variance == pytest.approx(same.variance)  # what distinguishes channels is not gating
    assert variance_split(torch.zeros(1, 4), content[:1, :4]).dropped == 4


class Language(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.encoder = nn.Embedding(11, 4)
        self.rnn = nn.LSTM(4, 4 if tied else 6, batch_first=True, bidirectional=not tied)
        self.decoder = None if tied else nn.Linear(12, 11)

    def forward(self, ids):
        return self.decoder(self.rnn(self.encoder(ids))[0])


def test_a_language_model_around_an_lstm_is_found_by_its_shapes():
    torch.manual_seed(1)
    module = Language()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    ids = torch.randint(11, (3, 7))
    found = mv.wrap_lstm(module)
    with torch.no_grad():
        torch.testing.assert_close(lstm_logits(found, ids), module(ids), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        mv.lstm_trace(found, ids[0].tolist()).logits.float(), module(ids)[0], rtol=1e-5, atol=1e-6
    )
    found.W_E.fill_(0.0)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    tied = mv.wrap_lstm(Language(tied=True))
    torch.testing.assert_close(tied.W_U, tied.W_E.mT)


@pytest.mark.parametrize(
    ("thing", "sentence"),
    [
        (nn.GRU(3, 4), "it is a GRU, not an LSTM"),
        (nn.RNN(3, 4), "it is a plain recurrent network"),
        (nn.Linear(3, 4), "there is no LSTM here"),
        (nn.ModuleList([nn.LSTM(3, 4), nn.LSTM(5, 6)]), "not the layers of one stack"),
        ({"weight_ih_l0": torch.zeros(8, 3)}, "has no weight_hh"),
        ({"weight_ih_l0": torch.full((8, 3), torch.nan), "weight_hh_l0": torch.zeros(8, 2)}, "NaN or infinite"),
        (
            {"weight_ih_l0": torch.zeros(8, 3), "weight_hh_l0": torch.zeros(8, 2), "bias_ih_l0": torch.zeros(7)},
            "does not fit",
        ),
        ([1, 2], "neither a module nor a state dict"),
        (nn.LSTM(3, 4, device="meta"), "has no values"),
    ],
)
def test_what_is_no_lstm_is_refused_in_a_sentence(thing, sentence):
    with pytest.raises(ModelError, match=sentence):
        mv.wrap_lstm(thing)


@pytest.mark.parametrize(
    "prompt", ["text", [1, 2], torch.zeros(3), torch.zeros(2, 7), torch.zeros(0, 3), torch.ones(2, 3).int()]
)
def test_a_bare_lstm_reads_matrices_only(prompt):
    with pytest.raises(PromptError, match=r"float tensor \[pos, 3\]"):
        mv.lstm_trace(mv.wrap_lstm(nn.LSTM(3, 4)), prompt)


def test_states_that_are_not_finite_and_tensors_too_large_are_said():
    with pytest.raises(CheckError, match="NaN or infinity in L0"):
        mv.lstm_trace(mv.wrap_lstm(nn.LSTM(1, 2)), torch.tensor([[0.0], [math.nan]]))
    with pytest.raises(UsageError, match="give a shorter prompt"):
        retention(torch.zeros(20_000, 4))
