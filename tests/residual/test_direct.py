"""Direct attribution at all positions: against float64 shares for every family, sums, streaming and memory."""

from __future__ import annotations

import pytest
import torch
from test_ledger import TRACED, traced

import families
import mechview as mv
from conftest import family
from mechview.errors import UnsupportedError, UsageError
from mechview.models.load import Model
from mechview.residual.grains import Split
from mechview.residual.readout import vector_direction
from mechview.residual.shares import along

LINEAR_HEAD = [n for n in TRACED if not n.startswith(("bert", "albert"))]
# Same z and streams: dots of 48 rounded float32 products behind a few norms, a few dozen roundings of 6e-8 that add
# like a random walk, relative to the largest row. Two passes of one model (other hooks, another order of sums) carry
# their own float32 roundings through two layers and norms besides.
BOUND, TWO_PASSES = 1e-6, 5e-6


def lights(name, prompts, **keywords):
    model, _ = family(name)
    return [mv.write_trace(model, prompt, **keywords) for prompt in prompts]


def decoder_of(name):
    model, _ = family(name)
    return {"decoder": families.tokens(9)} if model.shape.n_encoder_layers else {}


@pytest.mark.parametrize("name", TRACED)
def test_every_row_is_the_float64_row_along_the_direction(name):
    """Names, order and values at all positions, from the whole trace and from the light one."""
    whole = traced(name)
    [light] = lights(name, [families.tokens(20)], **decoder_of(name))
    direction = torch.randn(whole.weights.shape.d_model, generator=torch.Generator().manual_seed(2))
    names, exact = along(whole, vector_direction(whole, direction), Split("head"))
    for trace, bound in ((whole, BOUND), (light, TWO_PASSES)):
        got = mv.direct_attribution(trace, direction=direction)
        assert got.components == tuple(names)
        assert got.values.dtype == torch.float32
        size = exact.abs().amax(0)
        assert float(((got.values.double() - exact).abs() / size).max()) < bound
        expected = whole.stream_final.double() @ direction.double()
        torch.testing.assert_close(got.total.double(), expected, rtol=1e-5, atol=1e-6 * float(size.max()))
        assert got.error < 1e-5


@pytest.mark.parametrize("name", LINEAR_HEAD)
def test_rows_of_a_logit_are_the_shares_at_every_position(name):
    whole = traced(name)
    got = mv.direct_attribution(whole, [5, 9], 7)
    for position in (0, 3, len(whole.tokens) - 1):
        exact = mv.shares(whole, [5, 9], 7, position=position)
        assert got.components == exact.components
        size = float(exact.values.abs().max())
        torch.testing.assert_close(got.values[:, position].double(), exact.values, rtol=0, atol=BOUND * size)
        assert float(got.total[position]) == pytest.approx(exact.total, rel=1e-5, abs=1e-6 * size)
    assert got.softcap == whole.weights.ends().softcap
    assert got.error < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "cohere", "olmo2", "t5", "opt_post"])
def test_a_token_of_its_own_for_each_position(name):
    """Column p equals the attribution of position p's token; and the difference is the difference."""
    whole = traced(name)
    ids = families.tokens(len(whole.tokens), seed=8)
    other = families.tokens(len(whole.tokens), seed=9)
    got = mv.direct_attribution(whole, each=ids, each_against=other)
    for position, (token, against) in enumerate(zip(ids, other, strict=True)):
        one = mv.direct_attribution(whole, token, against)
        size = float(one.values[:, position].abs().max())
        torch.testing.assert_close(got.values[:, position], one.values[:, position], rtol=0, atol=BOUND * size)
        assert float(got.total[position]) == pytest.approx(float(one.total[position]), rel=1e-5, abs=1e-6 * size)
    assert got.error < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "opt_post", "mixtral", "albert", "t5"])
def test_the_light_trace_is_cut_from_the_whole_one(name):
    """Two backends (bridge or all hooks, and few hooks) give the same z, writes and scales."""
    whole = mv.models.write_trace.written_in(traced(name))
    [light] = lights(name, [families.tokens(20)], **decoder_of(name))
    assert light.tokens == whole.tokens
    assert light.attention.keys() == whole.attention.keys()
    for ours, theirs in [*_pairs(light.attention, whole.attention), *_pairs(light.mlp, whole.mlp)]:
        for one, two in zip(vars(ours).values(), vars(theirs).values(), strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5 * float(two.abs().max()))
    torch.testing.assert_close(light.final, whole.final, rtol=1e-5, atol=1e-5)


def _pairs(one, two):
    return [(one[key], two[key]) for key in one]


def test_heads_are_a_view_by_layer_and_head():
    got = mv.direct_attribution(traced("t5"), 5)
    assert got.heads.shape == (2, 4, 9)
    torch.testing.assert_close(got.heads[1, 2], got.row("L1H2"), rtol=0, atol=0)
    torch.testing.assert_close(got.cross_heads[0, 3], got.row("X.L0H3"), rtol=0, atol=0)
    with pytest.raises(UsageError, match="no cross-attention"):
        mv.direct_attribution(traced("llama"), 5).cross_heads
    with pytest.raises(UsageError, match="no row L9H9"):
        got.row("L9H9")


def test_traces_are_run_one_at_a_time_and_weights_read_once(monkeypatch):
    model, _ = family("gpt2")
    read, ran = [], []
    original = type(model.weights.source).read
    monkeypatch.setattr(
        type(model.weights.source), "read", lambda self, name: read.append(name) or original(self, name)
    )
    prompts = (ran.append(n) or families.tokens(5 + n) for n in range(4))
    found = mv.direct_attributions(mv.write_traces(model, prompts), 5)
    assert ran == []
    next(found)
    assert ran == [0]
    once = len(read)
    lengths = [attribution.values.shape[1] for attribution in found]
    assert lengths == [6, 7, 8]
    assert ran == [0, 1, 2, 3]
    assert len(read) == once


def test_a_light_trace_of_half_precision_is_added_up_in_float32():
    module = families.FAMILIES["llama"].build(dtype=torch.bfloat16)
    got = mv.direct_attribution(mv.write_trace(mv.wrap(module), families.tokens(12)), 5)
    assert got.values.dtype == torch.float32
    assert got.error < 0.05  # the passes of bfloat16 round each write to 2^-9


def test_a_float64_model_is_attributed_in_float64():
    module = families.FAMILIES["gemma2"].build(dtype=torch.float64)
    got = mv.direct_attribution(mv.write_trace(mv.wrap(module), families.tokens(12)), 5, 9)
    assert got.values.dtype == torch.float64
    assert got.error < 1e-6  # the library's own norms compute in float32


def test_what_cannot_be_attributed_is_refused():
    trace = traced("llama")
    with pytest.raises(UsageError, match="one of the three"):
        mv.direct_attribution(trace)
    with pytest.raises(UsageError, match="one of the three"):
        mv.direct_attribution(trace, 5, each=[5] * 20)
    with pytest.raises(UsageError, match="each_against needs each"):
        mv.direct_attribution(trace, 5, each_against=[5] * 20)
    with pytest.raises(UsageError, match="one token for each of 20 positions; 3 were given"):
        mv.direct_attribution(trace, each=[5, 6, 7])
    with pytest.raises(UsageError, match="the direction has"):
        mv.direct_attribution(trace, direction=torch.ones(3))
    with pytest.raises(UnsupportedError, match="not linear in the stream"):
        mv.direct_attribution(traced("bert"), 5)
    model, _ = family("falcon_alibi")
    with pytest.raises(UnsupportedError, match="ALiBi twice"):
        mv.write_trace(model, families.tokens(5))


def test_plain_arrays_and_padding_free_prompts_have_light_traces(toy):
    assert isinstance(toy, Model)
    [one] = mv.write_traces(toy, ["the man and the man"])
    whole = mv.trace(toy, "the man and the man")
    torch.testing.assert_close(
        mv.direct_attribution(one, " the").values, mv.direct_attribution(whole, " the").values, rtol=1e-4, atol=1e-5
    )
