"""The stream as a cell state: golden numbers, planted writes, every family, nulls that leave the caller alone."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest
import torch

import families
import mechview as mv
from conftest import family
from mechview.errors import PromptError, UnsupportedError
from mechview.recurrent.ablation import causal_retention
from mechview.recurrent.depth import depth_stream, traced, writes_of
from mechview.recurrent.forgetting import forget_matrix
from mechview.recurrent.stream import (
    dilution,
    erasure,
    forget_gates,
    grams,
    massive,
    mixed_gram,
    other_tokens,
    retention_curves,
    stream_of,
    token_forget_gates,
    write_half_lives,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text(encoding="utf-8"))
NAMES = [name for name in families.FAMILIES if name != "falcon_alibi"]


def single(*writes):
    """One token, not centred."""
    rows = torch.tensor(writes, dtype=torch.float64)[:, None]
    return stream_of([f"w{n}" for n in range(len(writes))], rows, centre=False)


def test_golden_stream():
    golden = GOLDEN["stream_retention"]
    stream = single(golden["x0"], *golden["writes"])
    [gram] = grams(stream)
    assert retention_curves(gram)[1, 2:].tolist() == pytest.approx(golden["retention_w1"], abs=1e-15)
    assert forget_gates(gram).tolist() == pytest.approx(golden["forget_gate"], abs=1e-15)
    assert dilution(stream.rms)[1, 2:].tolist() == pytest.approx(golden["dilution_w1"], abs=1e-15)
    assert token_forget_gates(stream)[:, 0].tolist() == pytest.approx(golden["forget_gate"], abs=1e-15)


def test_golden_geometric_decay():
    golden = GOLDEN["stream_linear_decay"]
    x, rows = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), []
    rows.append(x)
    for _ in range(5):
        rows.append(-golden["lam"] * x)
        x = x + rows[-1]
    [gram] = grams(single(*(row.tolist() for row in rows)))
    assert retention_curves(gram)[0].tolist() == pytest.approx(golden["retention"], abs=1e-14)
    assert forget_gates(gram).tolist() == pytest.approx([0.7] * 5, abs=1e-14)
    assert write_half_lives(retention_curves(gram))[0] == 2  # the first whole write after 1.943


def test_planted_writes_are_kept_cancelled_or_censored():
    [gram] = grams(single([1.0, 0, 0], [0, 2.0, 0], [0, 0, 3.0], [0, -2.0, 0]))
    kept = retention_curves(gram)
    assert kept[0].tolist() == [1.0] * 4
    assert kept[1, 1:].tolist() == [1.0, 1.0, 0.0]
    assert write_half_lives(kept) == [None, 2, None, None]
    assert erasure(gram)[1, 3] == 1.0
    assert torch.isnan(kept[2, :2]).all()


def random_stream(tokens=40, writes=6, d=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(writes, tokens, d, generator=generator, dtype=torch.float64)
    return stream_of([f"w{n}" for n in range(writes)], rows + 50.0, torch.arange(tokens) // 10)


def test_numbers_are_those_of_their_definitions():
    stream = random_stream()
    W, gram = stream.writes, grams(stream).sum(0)
    before = W.cumsum(0)[:-1]
    direct = 1 + (W[1:] * before).sum((1, 2)) / before.square().sum((1, 2))
    torch.testing.assert_close(forget_gates(gram), direct, rtol=1e-12, atol=0)
    other = other_tokens(40, torch.Generator().manual_seed(1))
    assert (other != torch.arange(40)).all()
    assert sorted(other.tolist()) == list(range(40))
    null = 1 + (W[1:][:, other] * before).sum((1, 2)) / before.square().sum((1, 2))
    torch.testing.assert_close(forget_gates(gram, mixed_gram(stream, other)), null, rtol=1e-11, atol=0)
    rho = 1 + (W[2:] * W[1]).sum((1, 2)).cumsum(0) / W[1].square().sum()
    torch.testing.assert_close(retention_curves(gram)[1, 2:], rho, rtol=1e-12, atol=0)


def test_centring_takes_the_common_vector_out_and_one_token_cannot_be_centred():
    assert random_stream().writes.mean(1).abs().max() < 1e-12
    shifted = random_stream()
    torch.testing.assert_close(forget_gates(grams(shifted).sum(0)), forget_gates(grams(random_stream()).sum(0)))
    with pytest.raises(PromptError, match="at least two"):
        stream_of(["a", "b"], torch.ones(2, 1, 3))


def test_a_rotation_of_the_stream_changes_nothing():
    stream = random_stream()
    turn, _ = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64))
    turned = stream_of(stream.names, stream.writes @ turn, stream.group)
    torch.testing.assert_close(
        retention_curves(grams(turned).sum(0)), retention_curves(grams(stream).sum(0)), equal_nan=True
    )


def test_tokens_far_out_are_found_and_no_others():
    rows = torch.randn(4, 30, 8, generator=torch.Generator().manual_seed(0)).double()
    rows[1, 7] += 100.0
    rows[3, 7] -= 100.0  # only far out in the middle
    assert massive(rows).nonzero().flatten().tolist() == [7]


@cache
def measured(name):
    model, _ = family(name)
    traces = traced(model, [families.tokens(12, seed=3), families.tokens(9, seed=4)])
    return model, traces, writes_of(traces)


@pytest.mark.parametrize("name", NAMES)
def test_writes_of_every_family_sum_to_its_own_stream(name):
    _, traces, written = measured(name)
    stream = depth_stream(written)
    assert stream.error < 3e-6
    layers = traces[0].weights.shape.layers(traces[0].stack)
    several = len(traces[0].weights.shape.stacks) > 1
    assert len(written.names) == 1 + layers * (3 if several else 2)
    whole = torch.cat([t.stream_final[keep] for t, keep in zip(traces, written.keep, strict=True)]).double()
    torch.testing.assert_close(
        stream.writes.sum(0), whole - whole.mean(0), rtol=1e-4, atol=1e-4 * float(whole.abs().max())
    )
    assert stream.transported == name.startswith(("bert", "albert", "opt_post"))


@pytest.mark.parametrize("name", NAMES)
def test_ablation_of_every_family_leaves_an_unchanged_pass_unchanged(name):
    model, traces, written = measured(name)
    found = causal_retention(model, traces, written, torch.Generator().manual_seed(0))
    assert found.unchanged < 1e-5
    assert torch.isfinite(found.values).all()
    assert set(found.names) == set(written.names[1:])


def linear_blocks(loss, layers=3):
    """Blocks without attention that write `-loss * x`: every write decays geometrically, causally too."""
    d, zero = 4, torch.zeros(1, 4, 2)
    eye = torch.eye(d, dtype=torch.float64)
    block = {
        "W_Q": zero, "W_K": zero, "W_V": zero, "W_O": zero.mT,
        "W_in": torch.cat([eye, -eye], 1), "W_out": torch.cat([-loss * eye, loss * eye], 0),
    }  # fmt: skip
    W_E = torch.randn(9, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return mv.from_arrays(W_E=W_E, layers=[block] * layers)


def test_a_block_that_decays_is_measured_to_decay():
    model = linear_blocks(0.3)
    written = writes_of(traces := traced(model, [[1, 2, 3, 4, 5, 6, 7, 8]]))
    gram = grams(depth_stream(written)).sum(0)
    mlps = [n - 1 for n, name in enumerate(written.names) if name.endswith(".mlp")]
    assert forget_gates(gram)[mlps].tolist() == pytest.approx([0.7] * 3, abs=1e-12)
    assert retention_curves(gram)[0, -1] == pytest.approx(0.7**3)
    found = causal_retention(model, traces, written, torch.Generator())
    causal = dict(zip(found.names, found.values.tolist(), strict=True))
    assert [causal[f"L{n}.mlp"] for n in range(3)] == pytest.approx([0.49, 0.7, 1.0], abs=1e-9)


def test_the_forget_matrix_of_a_planted_block_is_found():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator, dtype=torch.float64)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    rate = torch.tensor([0.5, 0.4, 0.3, -0.2, 0.0, 0.0], dtype=torch.float64)
    found = forget_matrix(x, -x * rate, 0)
    assert found.r2 > 0.999
    torch.testing.assert_close(found.eigenvalues, rate.sort(descending=True).values, rtol=0, atol=0.01)
    assert found.forgotten == pytest.approx(0.5 / 0.54, abs=0.02)
    turn = torch.triu(torch.ones(6, 6, dtype=torch.float64), 1)
    spin = forget_matrix(x, x @ (turn - turn.mT), 0)
    assert spin.symmetric < 1e-4
    assert spin.r2_symmetric < 0.1 < spin.r2
    noise = forget_matrix(x, torch.randn(400, 6, generator=generator, dtype=torch.float64), 0)
    assert noise.r2 < 0.05


def test_the_pass_of_a_model_wrapped_after_it_recorded_attention_is_traced():
    """The library marks a module that it has put recording hooks on; a copy without them must not be marked."""
    module = families.FAMILIES["llama"].build()
    module(torch.tensor([families.tokens(6)]), output_attentions=True)
    assert len(traced(mv.wrap(module), [families.tokens(6)])[0].patterns) == 2


def test_a_bridge_is_refused_with_the_way_out():
    """It holds a module that it has rewritten, so there is neither a faithful pass nor a copy to permute."""
    model = linear_blocks(0.1)
    named = mv.wrap(families.FAMILIES["gpt2"].build())
    bridge = dataclasses.replace(named, source=dataclasses.replace(named.source, kind="bridge"))
    with pytest.raises(UnsupportedError, match="open the original module with wrap"):
        mv.memory(bridge, [families.tokens(6)])
    assert mv.memory(model, [[1, 2, 3, 4, 5]], copies=1).error < 1e-12
