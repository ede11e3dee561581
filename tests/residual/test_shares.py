"""Shares along a direction: sums, an independent direct path by autograd, and what has no shares."""

from __future__ import annotations

import frozen
import pytest
import torch
from test_ledger import EXPERTS, TRACED, traced

import families
import mechview as mv
from conftest import family
from mechview.errors import UnsupportedError, UsageError
from mechview.residual.grains import GRAINS

LINEAR_HEAD = [n for n in TRACED if not n.startswith(("bert", "albert"))]


def grains(name):
    return [by for by in GRAINS if (by != "expert" or name in EXPERTS) and (by != "neuron" or name not in EXPERTS)]


@pytest.mark.parametrize("name", LINEAR_HEAD)
def test_rows_sum_to_the_models_own_logit_difference(name):
    trace = traced(name)
    cap = trace.weights.ends().softcap
    logits = trace.logits.double() if cap is None else cap * torch.atanh(trace.logits.double() / cap)
    for by in grains(name):
        got = mv.shares(trace, 5, 7, position=4, by=by)
        assert got.total == pytest.approx(float(logits[4, 5] - logits[4, 7]), rel=1e-12)
        assert float(got.values.sum()) == pytest.approx(got.total, abs=1e-4 * float(got.values.abs().max()))
        assert got.error < 1e-5


@pytest.mark.parametrize("name", TRACED)
def test_shares_are_the_ledgers_rows_along_the_direction(name):
    """Two ways to the same numbers: rows carried forwards, and a direction pushed backwards."""
    trace = traced(name)
    direction = torch.randn(trace.weights.shape.d_model, generator=torch.Generator().manual_seed(0)).double()
    for by in ("head", "bias", "source"):
        got = mv.shares(trace, direction=direction, position=3, by=by)
        rows = mv.ledger(trace, by)
        expected = {n: float(rows.row(n)[3].double() @ direction) for n in rows.components}
        found = dict(zip(got.components, got.values.tolist(), strict=True))
        assert set(found) == set(expected)
        size = max(abs(v) for v in expected.values())
        for component, value in expected.items():
            assert found[component] == pytest.approx(value, abs=3e-6 * size), component


PATHS = {
    "gpt2": ("transformer.h.{}.attn.c_proj", "transformer.h.{}.mlp", "transformer.ln_f", 0.0),
    "llama_bias_wide": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp", "model.norm", 0.0),
    "gemma2": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp", "model.norm", 1.0),
    "olmo2": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp", "model.norm", 0.0),
    "gpt_neox": ("gpt_neox.layers.{}.attention.dense", "gpt_neox.layers.{}.mlp", "gpt_neox.final_layer_norm", 0.0),
    "granite": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp", "model.norm", 0.0),
}
POST = {"gemma2": ("post_attention_layernorm", "post_feedforward_layernorm")} | {
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm")
}


@pytest.mark.parametrize("name", list(PATHS))
def test_the_direct_path_is_what_autograd_finds(name):
    """A head's share of a logit = d(logit)/dt with every other write and every norm's scale held still."""
    _, module = family(name, "float64")
    model = mv.wrap(module)
    ids = families.tokens(8)
    trace = mv.trace(model, ids)
    attention, mlp, final, offset = PATHS[name]
    norms = [final, *(f"model.layers.{n}.{p}" for n in range(2) for p in POST.get(name, ()))]
    writers = [path.format(n) for n in range(2) for path in (attention, mlp)]
    cap = trace.weights.ends().softcap

    def readout(output):
        logit = output.logits[0, 5, 9] - output.logits[0, 5, 11]
        if cap is None:
            return logit
        before = cap * torch.atanh(output.logits[0, 5] / cap)
        return before[9] - before[11]

    got = mv.shares(trace, 9, 11, position=5)
    for layer, head in ((0, 1), (1, 2)):
        z = trace.attention(layer).z[:, head]
        write = (z @ trace.weights.attention(layer).W_O[head])[None]
        effect = frozen.direct_effect(
            module, torch.tensor(ids), attention.format(layer), write, norms, writers, offset, readout
        )
        share = float(got.values[got.components.index(f"L{layer}H{head}")])
        assert float(effect) == pytest.approx(share, rel=1e-6, abs=1e-9)


def test_the_direct_path_through_berts_norms_is_what_autograd_finds():
    _, module = family("bert", "float64")
    ids = families.tokens(8)
    trace = mv.trace(mv.wrap(module), ids)
    blocks = "bert.encoder.layer.{}."
    norms = [blocks.format(n) + part for n in range(2) for part in ("attention.output.LayerNorm", "output.LayerNorm")]
    writers = [blocks.format(n) + part for n in range(2) for part in ("attention.output.dense", "output.dense")]
    direction = torch.randn(48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = mv.shares(trace, direction=direction, position=5)
    write = (trace.attention(0).z[:, 1] @ trace.weights.attention(0).W_O[1])[None]
    effect = frozen.direct_effect(
        module, torch.tensor(ids), blocks.format(0) + "attention.output.dense", write, norms, writers, 0.0,
        lambda output: output.hidden_states[-1][0, 5] @ direction,
    )  # fmt: skip
    assert float(effect) == pytest.approx(float(got.values[got.components.index("L0H1")]), rel=1e-6)


def test_a_mean_of_answers_is_the_mean_of_their_shares():
    trace = traced("llama")
    both, one, two = (mv.shares(trace, target, 3) for target in ([5, 7], 5, 7))
    torch.testing.assert_close(both.values, (one.values + two.values) / 2, rtol=1e-9, atol=1e-12)


def test_targets_are_read_with_the_models_own_tokenizer(toy):
    trace = mv.trace(toy, "the man and the man")
    by_text = mv.shares(trace, " the")
    [token] = toy.tokenizer(" the", add_special_tokens=False)["input_ids"]
    by_id = mv.shares(trace, token)
    torch.testing.assert_close(by_text.values, by_id.values, rtol=0, atol=0)
    assert by_text.error < 1e-5
    assert by_text.top(3)[0][1] == pytest.approx(
        float(by_text.values.abs().max()) * (1 if by_text.top(1)[0][1] > 0 else -1)
    )


def test_what_has_no_shares_is_refused(toy):
    trace = mv.trace(toy, "the man")
    with pytest.raises(UsageError, match="tokens, not one"):
        mv.shares(trace, " incomprehensibilities")
    with pytest.raises(UsageError, match="position 40 does not exist"):
        mv.shares(trace, 5, position=40)
    with pytest.raises(UsageError, match="token id 5000 does not exist"):
        mv.shares(trace, 5000)
    with pytest.raises(UsageError, match="a target token or a direction"):
        mv.shares(trace)
    with pytest.raises(UsageError, match="the direction has"):
        mv.shares(trace, direction=torch.ones(3))
    with pytest.raises(UnsupportedError, match="not linear in the stream"):
        mv.shares(traced("bert"), 5)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "cohere", "t5"])
@pytest.mark.parametrize(("freeze", "fold"), [("none", True), ("own", False), ("none", False)])
def test_freezing_and_folding_are_separate_choices(name, freeze, fold):
    """Rows still sum to the model's own stream along the direction that was chosen, and it is said."""
    trace = traced(name)
    got = mv.shares(trace, 5, 7, position=4, freeze=freeze, fold=fold)
    ends = trace.weights.ends()
    W_U = ends.W_U.double()
    read = (W_U[:, 5] - W_U[:, 7]) * ends.logit_scale
    if fold:
        read = read * (1 if ends.final_norm.gain is None else ends.final_norm.gain.double())
        read = read - read.mean() if ends.final_norm.kind == "layer" else read
    stream = trace.stream_final[4].double()
    centred = stream - stream.mean() if ends.final_norm.kind == "layer" else stream
    rho = (centred.square().mean() + ends.final_norm.eps).sqrt() if freeze == "own" else 1.0
    assert got.total == pytest.approx(float(stream @ read / rho), rel=1e-9)
    assert got.error < 1e-5
    assert (got.freeze, got.fold, got.softcap) == (freeze, fold, None)
    assert not {"final_norm_bias", "unembed_bias"} & set(got.components)


def test_freezing_otherwise_is_refused():
    with pytest.raises(UsageError, match="freeze='all' is not a choice"):
        mv.shares(traced("llama"), 5, freeze="all")
