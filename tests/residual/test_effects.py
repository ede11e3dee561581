"""Direct and total effects against models with edited weights, against autograd, and against other definitions."""

from __future__ import annotations

from functools import cache

import frozen
import pytest
import torch
from torch import nn

import families
import mechview as mv
from conftest import family
from mechview.errors import HeadError, PromptError, UsageError
from mechview.residual.effects import effects
from parity.original import group_of, sites_of

IDS, OTHER = families.tokens(), families.tokens(seed=8)
TARGET = [0, 5, 7, 9]
EVERY = [name for name in families.FAMILIES if name != "falcon_alibi"]
SHARED_BLOCKS = ("albert", "albert_two_groups")
NO_DIRECT = ("bert", "bert_decoder", "albert", "albert_two_groups")


def decoder(name):
    return TARGET if name.startswith("t5") else None


@cache
def zeroed(name, by="head"):
    return effects(family(name)[0], IDS, 7, 9, by=by, decoder=decoder(name))


def logit_difference(name: str, module: nn.Module, ids=IDS) -> float:
    """Logit of 7 minus logit of 9 at the last position, before a soft-cap, by the original alone."""
    keywords = {"decoder_input_ids": torch.tensor([TARGET])} if name.startswith("t5") else {}
    with torch.no_grad():
        logits = module(torch.tensor([ids]), **keywords).logits[0, -1].double()
    cap = getattr(module.config, "final_logit_softcapping", None)
    logits = logits if cap is None else cap * torch.atanh(logits / cap)
    return float(logits[7] - logits[9])


def projection(name: str, module: nn.Module, stack: str, layer: int) -> nn.Module:
    sites = sites_of(name)[stack]
    return module.get_submodule(f"{sites.block.format(group_of(module, layer))}.{sites.projection}")


def cut(part: nn.Module, head: int, heads: int) -> None:
    """Zero what the projection makes of one head; Conv1D keeps its matrix the other way round."""
    W = part.weight.data if type(part).__name__ == "Conv1D" else part.weight.data.T
    width = len(W) // heads
    W[head * width : (head + 1) * width] = 0


@pytest.mark.parametrize("name", [name for name in EVERY if name not in SHARED_BLOCKS])
def test_a_zero_ablated_head_is_a_head_whose_output_weights_are_zero(name):
    found, (model, _) = zeroed(name), family(name)
    clean = logit_difference(name, family(name)[1])
    assert found.clean == pytest.approx(clean, abs=2e-5)
    assert found.error < 1e-5
    for stack in model.shape.stacks:
        for layer, head in ((0, 1), (1, model.shape.n_heads - 1)):
            edited = families.FAMILIES[name].build()
            cut(projection(name, edited, stack, layer), head, model.shape.n_heads)
            prefix = {"encoder": "E.", "cross": "X."}[stack] if name.startswith("t5") and stack != "decoder" else ""
            row = found.row(f"{prefix}L{layer}H{head}")
            assert row.total == pytest.approx(clean - logit_difference(name, edited), abs=3e-5)
            assert (row.stack, row.layer, row.head) == (stack, layer, head)
    assert max(abs(row.total) for row in found.rows) > 1e-2


@pytest.mark.parametrize(
    "name", ["gpt2", "gemma2", "olmo2", "falcon", "gpt_neox", "opt", "bert", "granite", "t5", "llama_bias_wide"]
)
def test_a_zero_ablated_layer_is_one_whose_projection_writes_nothing(name):
    found, (model, module) = zeroed(name, "layer"), family(name)
    clean = logit_difference(name, module)
    for stack in model.shape.stacks:
        edited = families.FAMILIES[name].build()
        part = projection(name, edited, stack, 1)
        part.weight.data.zero_()
        if part.bias is not None:
            part.bias.data.zero_()
        prefix = {"encoder": "E.", "cross": "X."}[stack] if name.startswith("t5") and stack != "decoder" else ""
        total = found.row(f"{prefix}L1.attn").total
        assert total == pytest.approx(clean - logit_difference(name, edited), abs=3e-5)


DOWN = {
    "gpt2": "transformer.h.{}.mlp.c_proj", "gemma2": "model.layers.{}.mlp.down_proj", "bloom": "transformer.h.{}.mlp.dense_4h_to_h",
    "opt": "model.decoder.layers.{}.fc2", "bert": "bert.encoder.layer.{}.output.dense", "gpt_oss": "model.layers.{}.mlp.experts",
    "mixtral": "model.layers.{}.mlp.experts", "t5": "decoder.block.{}.layer.2.DenseReluDense.wo",
}  # fmt: skip


@pytest.mark.parametrize("name", list(DOWN))
def test_a_zero_ablated_mlp_is_one_whose_output_weights_are_zero(name):
    found, clean = zeroed(name), logit_difference(name, family(name)[1])
    for layer in (0, 1):
        edited = families.FAMILIES[name].build()
        part = edited.get_submodule(DOWN[name].format(layer))
        for parameter, value in part.named_parameters():
            if parameter.startswith(("weight", "bias", "down_proj")):
                value.data.zero_()
        total = found.row(f"L{layer}.mlp").total
        assert total == pytest.approx(clean - logit_difference(name, edited), abs=3e-5)
        assert abs(total) > 1e-4


@pytest.mark.parametrize("name", [name for name in EVERY if name not in NO_DIRECT])
def test_direct_effects_of_zero_are_the_shares(name):
    model, _ = family(name)
    trace = mv.trace(model, IDS, decoder=decoder(name))
    for by in ("head", "layer"):
        parts = mv.shares(trace, 7, 9, by=by)
        expected = dict(zip(parts.components, parts.values.tolist(), strict=True))
        size = float(parts.values.abs().max())
        for row in zeroed(name, by).rows:
            assert row.direct == pytest.approx(expected.get(row.component, 0.0), abs=1e-5 * size), row.component
            assert row.difference == pytest.approx(row.direct - row.total, abs=1e-12)
            assert row.stack != "encoder" or row.direct == 0.0


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "llama_bias_wide"])
def test_the_direct_effect_of_an_exchange_is_a_jacobian_vector_product(name):
    """Everything but one path held still in the original, and the exchanged write sent along it."""
    model, module = family(name, "float64")
    path, norms = {
        "gpt2": ("transformer.h.{}.attn.c_proj", ["transformer.ln_f"]),
        "llama_bias_wide": ("model.layers.{}.self_attn.o_proj", ["model.norm"]),
        "gemma2": ("model.layers.{}.self_attn.o_proj", ["model.norm"]),
    }[name]
    if name == "gemma2":
        norms = norms + [f"model.layers.{n}.post_{k}_layernorm" for n in (0, 1) for k in ("attention", "feedforward")]
    writers = [path.format(n) for n in (0, 1)]
    writers += [("transformer.h.{}.mlp" if name == "gpt2" else "model.layers.{}.mlp").format(n) for n in (0, 1)]
    found = effects(model, IDS, 7, 9, method="resample", prompts=[OTHER])
    cap = getattr(module.config, "final_logit_softcapping", None)

    def readout(output):
        logits = output.logits[0, -1]
        logits = logits if cap is None else cap * torch.atanh(logits / cap)
        return logits[7] - logits[9]

    traces = [mv.trace(model, ids) for ids in (IDS, OTHER)]
    for layer, head in ((0, 2), (1, 0)):
        z = traces[0].attention(layer).z[:, head] - traces[1].attention(layer).z[:, head]
        write = (z @ model.weights.attention(layer).W_O[head])[None]
        expected = frozen.direct_effect(
            module,
            torch.tensor(IDS),
            path.format(layer),
            write,
            norms,
            writers,
            1.0 if name == "gemma2" else 0.0,
            readout,
        )
        assert found.row(f"L{layer}H{head}").direct == pytest.approx(float(expected), rel=1e-5, abs=1e-7)


def with_z(name: str, layer: int, head: int, value: torch.Tensor) -> float:
    """The original with one head's z set by a hook of this test's own."""
    model, module = family(name)
    width = model.shape.d_head

    def hook(_, args):
        z = args[0].clone()
        z[0, :, head * width : (head + 1) * width] = value
        return (z, *args[1:])

    handle = projection(name, module, model.shape.stacks[0], layer).register_forward_pre_hook(hook)
    try:
        return logit_difference(name, module)
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "olmo2", "falcon", "bert"])
def test_mean_and_resample_put_in_what_they_say(name):
    model, module = family(name)
    clean, prompts = logit_difference(name, module), [OTHER, families.tokens(7, seed=9)]
    z = [mv.trace(model, ids).attention(0).z[:, 1] for ids in (OTHER, prompts[1], families.tokens(seed=10))]
    mean = effects(model, IDS, 7, 9, components=["L0H1"], method="mean", prompts=prompts).row("L0H1").total
    assert mean == pytest.approx(clean - with_z(name, 0, 1, torch.cat(z[:2]).mean(0)), abs=3e-5)
    same = [OTHER, families.tokens(seed=10)]
    kept = effects(model, IDS, 7, 9, components=[(0, 1)], method="mean", prompts=same, per_position=True).rows[0].total
    assert kept == pytest.approx(clean - with_z(name, 0, 1, (z[0] + z[2]) / 2), abs=3e-5)
    swapped = effects(model, IDS, 7, 9, components=[(0, 1)], method="resample", prompts=same).rows[0]
    both = [clean - with_z(name, 0, 1, value) for value in (z[0], z[2])]
    assert swapped.total == pytest.approx(sum(both) / 2, abs=3e-5)
    assert len({round(v, 4) for v in (mean, kept, swapped.total)}) == 3


def test_resampling_the_prompt_itself_has_no_effect_at_all():
    model, _ = family("gpt2")
    found = effects(model, IDS, 7, 9, method="resample", prompts=[IDS])
    assert {row.direct for row in found.rows} == {0.0}
    assert max(abs(row.total) for row in found.rows) < 1e-6


def test_positions_bound_what_is_ablated():
    model, _ = family("gpt2")
    chosen = dict(components=["L1H0", "L0H0"], position=5)
    everywhere, here, elsewhere, later = (
        effects(model, IDS, 7, positions=at, **chosen).rows for at in (None, [5], [-1, 2], [6, 7])
    )
    last = here[0]  # in the last layer, only the position itself reaches the logits there
    assert last.total == pytest.approx(everywhere[0].total, abs=1e-6)
    assert last.direct == everywhere[0].direct != 0.0
    assert elsewhere[0].direct == 0.0
    assert abs(elsewhere[1].total) > 1e-4  # an earlier token of the first layer is read by the second
    assert [row.total for row in later] == pytest.approx([0.0, 0.0], abs=1e-6)  # the future is not


def test_the_last_layer_has_no_repair_but_the_final_norms():
    """Without a final norm the direct effect of a last-layer head is its total effect: nothing comes after."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: 0.4 * torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    layers = [dict(W_Q=draw(3, 12, 4), W_K=draw(3, 12, 4), W_V=draw(3, 12, 4), W_O=draw(3, 4, 12)) for _ in range(2)]
    model = mv.from_arrays(W_E=draw(20, 12), layers=layers)
    found = effects(model, [3, 4, 5, 6], 7, 9)
    for head in range(3):
        assert found.row(f"L1H{head}").difference == pytest.approx(0.0, abs=1e-12)
    assert max(abs(found.row(f"L0H{head}").difference) for head in range(3)) > 1e-3


@pytest.mark.parametrize("name", ["gemma2", "t5", "mixtral"])
def test_the_answer_does_not_depend_on_the_batch_size(name):
    model, _ = family(name)
    chosen = ["L0H1", "L0.mlp", "L1H0", "L1H2", "L1.attn"]
    one, four = (effects(model, IDS, 7, 9, chosen, batch_size=n, decoder=decoder(name)) for n in (1, 4))
    for a, b in zip(one.rows, four.rows, strict=True):
        assert a.total == pytest.approx(b.total, abs=2e-5)
        assert a.direct == b.direct


def test_what_is_not_linear_has_totals_and_a_sentence_but_no_direct_effect():
    found = zeroed("bert")
    assert {(row.direct, row.difference) for row in found.rows} == {(None, None)}
    assert "not linear in the stream" in found.notes[-1]
    assert "before the model's final soft-cap of 3" in zeroed("gemma2").notes[-1]
    assert "difference = direct - total" in found.notes[0]


def test_records_have_the_columns_of_the_table():
    found = effects(family("gpt2")[0], IDS, 7, [9, 11], components=["L1H2", "L0.mlp", "L0.attn"], position=4)
    columns = ["component", "stack", "layer", "head", "direct", "total", "difference", "method", "metric", "position"]
    assert [list(record) for record in found.records()] == [columns] * 3
    assert [record["head"] for record in found.records()] == [2, None, None]
    assert (found.metric, found.position) == ("logit of 7 - [9, 11]", 4)
    assert [abs(row.total) for row in found.top(3)] == sorted((abs(row.total) for row in found.rows), reverse=True)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"components": ["L7H0"]}, HeadError, "component L7H0 does not exist"),
        ({"components": [(0, 9)]}, HeadError, "component L0H9 does not exist"),
        ({"components": []}, UsageError, "no components"),
        ({"method": "median"}, UsageError, "not an ablation"),
        ({"method": "mean"}, UsageError, "mean ablation needs prompts"),
        ({"prompts": [[3, 4]]}, UsageError, "zero ablation takes no prompts"),
        ({"method": "resample", "prompts": "text"}, UsageError, "list of at least one prompt"),
        ({"method": "resample", "prompts": [[3, 4]]}, PromptError, "have 12 and 2 tokens"),
        ({"method": "mean", "prompts": [[3, 4]], "per_position": True}, PromptError, "have 12 and 2 tokens"),
        ({"method": "resample", "prompts": [IDS], "per_position": True}, UsageError, "belongs to mean"),
        ({"position": 12}, UsageError, "position 12 does not exist"),
        ({"positions": [12]}, UsageError, "position 12 does not exist"),
        ({"by": "neuron"}, UsageError, "not a grain of effects"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, sentence):
    with pytest.raises(error, match=sentence):
        effects(family("gpt2")[0], IDS, 7, 9, **options)


@pytest.mark.real
def test_bare_encoders_have_no_effects(minilm):
    with pytest.raises(UsageError, match="no unembedding"):
        effects(minilm, "a short text", 7)


@pytest.mark.real
def test_an_ioi_prompt_in_a_real_model(smollm2):
    text = "When Mary and John went to the store, John gave a drink to"
    trace = mv.trace(smollm2, text)
    shares = mv.shares(trace, " Mary", " John")
    assert shares.total > 0
    ranked = [name for name, _ in shares.top(40) if "H" in name][:4]
    found = effects(smollm2, text, " Mary", " John", components=ranked)
    direct = dict(zip(shares.components, shares.values.tolist(), strict=True))
    assert found.clean == pytest.approx(shares.total, abs=1e-3)
    for row in found.rows:
        assert row.direct == pytest.approx(direct[row.component], abs=1e-3)
        assert abs(row.total) > 1e-3
    assert max(row.total for row in found.rows) > 0.2
