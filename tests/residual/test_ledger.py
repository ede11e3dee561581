"""The ledger's rows sum to the model's own stream, at every point, grain and family."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import families
import mechview as mv
from conftest import family
from mechview.errors import HeadError, UsageError
from mechview.models.neurons import activations
from mechview.residual.grains import GRAINS

TRACED = [name for name in families.FAMILIES if name != "falcon_alibi"]
EXPERTS = ("mixtral", "gpt_oss")
# float32 passes: rows are rounded once each, so the sum is off by a few units in the last place
CLOSE = 2e-6


@cache
def traced(name: str, length: int = 20):
    model, _ = family(name)
    extra = {"decoder": families.tokens(9)} if model.shape.n_encoder_layers else {}
    return mv.trace(model, families.tokens(length), **extra)


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.parametrize("by", GRAINS)
def test_rows_sum_to_the_final_stream(name, by):
    trace = traced(name)
    if by == "expert" and name not in EXPERTS:
        with pytest.raises(UsageError, match="no experts"):
            mv.ledger(trace, by)
        return
    if by == "neuron" and name in EXPERTS:
        with pytest.raises(mv.MechviewError, match="by='expert'"):
            mv.ledger(trace, by)
        return
    parts = mv.ledger(trace, by)
    assert len(parts.components) == len(parts.values) == len(set(parts.components))
    torch.testing.assert_close(parts.total, trace.stream_final, rtol=0, atol=0)
    error = (parts.values.double().sum(0) - parts.total.double()).abs().max() / parts.total.double().abs().max()
    assert float(error) == pytest.approx(parts.error)
    assert parts.error < CLOSE


@pytest.mark.parametrize("name", TRACED)
def test_rows_sum_to_the_stream_at_every_point(name):
    trace = traced(name)
    points = ["pre", "post"] + ([] if trace.weights.shape.placement == "parallel" else ["mid"])
    for layer in range(2):
        for point in points:
            parts = mv.ledger(trace, "head", (layer, point))
            assert parts.error < CLOSE, (layer, point)
            torch.testing.assert_close(parts.total, trace.stream(layer, point), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["t5", "t5_gated_untied"])
def test_the_encoder_has_a_ledger_of_its_own(name):
    parts = mv.ledger(traced(name), "head", stack="encoder")
    assert parts.error < CLOSE
    assert "E.L1H3" in parts.components
    assert "X.L1H0" in mv.ledger(traced(name), "head").components


@pytest.mark.parametrize("name", [n for n in TRACED if n not in ("bert", "albert")])
def test_finer_grains_sum_to_coarser_ones(name):
    """Sources sum to heads, heads and bias to attention: the same rows, cut finer."""
    trace = traced(name)
    if trace.weights.attention(0, trace.stack).stream_norm.kind != "none":
        pytest.skip("rows of post-norm models are transported; their sums are tested as a whole")
    whole, heads, sources = (mv.ledger(trace, by) for by in ("layer", "head", "source"))
    n_heads = trace.weights.shape.n_heads
    labels = [f"L1H{h}" for h in range(n_heads)]
    total = sum(heads.row(label) for label in labels) + heads.row("L1.attn_bias")
    torch.testing.assert_close(
        total, whole.row("L1.attn"), rtol=1e-4, atol=1e-5 * float(whole.row("L1.attn").abs().max())
    )
    keys = trace.attention(1).pattern.shape[-1]
    one = sum(sources.row(f"L1H2<-{key}") for key in range(keys))
    torch.testing.assert_close(one, heads.row("L1H2"), rtol=1e-4, atol=1e-5 * float(heads.row("L1H2").abs().max()))


def test_value_bias_depends_on_the_position_where_sinks_take_attention():
    parts = mv.ledger(traced("gpt_oss"), "bias")
    row = parts.row("L1.value_bias").double()
    trace = traced("gpt_oss")
    weights = trace.weights.attention(1)
    sent = torch.einsum("hd,hdm->hm", weights.b_V[weights.kv_head].double(), weights.W_O.double())
    expected = torch.einsum("hq,hm->qm", trace.attention(1).pattern.double().sum(-1), sent)
    torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)
    assert float((row - row[0]).abs().max()) > 1e-2


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "t5_gated_untied", "phi3"])
def test_activations_are_what_the_original_multiplies_w_out_by(name):
    trace = traced(name)
    stack = trace.stack
    weights, seen = trace.weights.mlp(1, stack), trace.capture.mlp[stack, 1]
    written = activations(seen.stream.double(), weights) @ weights.W_out.double()
    written = written if weights.b_out is None else written + weights.b_out.double()
    torch.testing.assert_close(written.float(), seen.written, rtol=1e-4, atol=1e-5)


def test_embedding_rows_carry_their_multiplier():
    model, module = family("gemma2")
    trace = traced("gemma2")
    ids = [token.id for token in trace.tokens]
    expected = module.model.embed_tokens.weight[ids] * 48**0.5
    torch.testing.assert_close(mv.ledger(trace).row("embed"), expected, rtol=1e-6, atol=1e-6)
    assert model.shape.d_model == 48


def test_what_does_not_exist_is_refused():
    trace = traced("llama")
    with pytest.raises(UsageError, match="by='heads' is not a grain"):
        mv.ledger(trace, "heads")
    with pytest.raises(HeadError, match="layer 7 does not exist"):
        mv.ledger(trace, "head", (7, "pre"))
    with pytest.raises(UsageError, match="is not a place in the stream"):
        mv.ledger(trace, "head", "middle")
    with pytest.raises(UsageError, match="parallel block has no mid"):
        mv.ledger(traced("phi"), "head", (1, "mid"))
    with pytest.raises(UsageError, match="no row L9H9"):
        mv.ledger(trace).row("L9H9")
