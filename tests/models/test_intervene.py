"""Replacements in a forward pass: exact where nothing changes, local, gone afterwards, never silent."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import families
import mechview as mv
from conftest import family
from mechview.errors import ModelError, UnsupportedError
from mechview.models import intervene
from mechview.models.array_module import ArrayModule
from mechview.models.arrays import array_weights, run_arrays
from mechview.models.intervene import Place, Replacement, changed_passes, edited, recorded, runnable
from parity.original import sites_of

IDS = families.tokens()
EVERY = [name for name in families.FAMILIES if name != "falcon_alibi"]


def target_of(name: str) -> list[int] | None:
    return [0, 5, 7, 9] if name.startswith("t5") else None


def hooks_on(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def whole(logits: torch.Tensor) -> torch.Tensor:
    return logits


@pytest.mark.parametrize("name", EVERY)
def test_an_unchanged_pass_is_the_originals(name):
    model, module = family(name)
    base = recorded(model, IDS, decoder=target_of(name))
    keywords = {} if target_of(name) is None else {"decoder_input_ids": torch.tensor([target_of(name)])}
    with torch.no_grad():
        expected = module(torch.tensor([IDS]), **keywords).logits[0]
    for row in changed_passes(model, base, [[], []], whole):
        torch.testing.assert_close(row, expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(base.logits, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "albert", "t5", "gpt_oss"])
def test_rows_of_a_batch_do_not_touch_each_other(name):
    model, _ = family(name)
    base = recorded(model, IDS, decoder=target_of(name))
    stack = base.stack
    puts = [
        Replacement(Place("z", layer, stack), torch.randn_like(base.attention(layer, stack).z[:, head]), head)
        for layer in (0, 1)
        for head in (0, 3)
    ]
    rows = [[], *([put] for put in puts), puts]
    together = changed_passes(model, base, rows, whole)
    alone = changed_passes(model, base, rows, whole, batch_size=1)
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-5)
    assert all((row - together[0]).abs().max() > 1e-3 for row in together[1:])


def test_only_the_named_positions_and_head_change():
    model, _ = family("llama")
    base = recorded(model, IDS)
    value = torch.full_like(base.attention(1).z[:, 2], 9.0)
    put = Replacement(Place("z", 1), value, head=2, positions=(4,))
    seen = []
    module = runnable(model)
    with edited(module, model, intervene.edits_of([[], [put]], 6)):
        listener = module.get_submodule("model.layers.1.self_attn.o_proj").register_forward_pre_hook(
            lambda _, args: seen.append(args[0])
        )
        module(torch.tensor([IDS, IDS]))
        listener.remove()
    z = seen[0].reshape(2, len(IDS), 6, 8)
    expected = base.attention(1).z.clone()
    expected[4, 2] = 9.0
    torch.testing.assert_close(z[1], expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(z[0], base.attention(1).z, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["post", "attention", "mlp"])
@pytest.mark.parametrize(
    "name", ["gpt2", "gemma2", "bloom", "falcon", "mixtral", "granite", "bert", "albert_two_groups"]
)
def test_layers_of_the_stream_and_of_writes_are_where_they_say(name, kind):
    """A random value at a place is what the next recorded pass would see there: by the stream's own sum."""
    model, _ = family(name)
    base = recorded(model, IDS)
    last, stack = model.shape.n_layers - 1, base.stack
    value = torch.randn(len(IDS), model.shape.d_model, generator=torch.Generator().manual_seed(0))
    rows = [[Replacement(Place(kind, last, stack), value)]]
    got = changed_passes(model, base, rows, whole)[0]
    expected = finished(model, base, kind, value)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bloom", "falcon", "opt", "bert", "t5"])
def test_the_stream_before_a_block_is_what_the_block_reads(name):
    """Against a hook of the test's own on the untouched original, at the paths of the tests' own table."""
    model, module = family(name)
    base = recorded(model, IDS, decoder=target_of(name))
    for stack in model.shape.stacks[:2]:
        value = torch.randn_like(base.stream(1, "pre", stack))
        got = changed_passes(model, base, [[Replacement(Place("pre", 1, stack), value)]], whole)[0]
        block = module.get_submodule(sites_of(name)[stack].block.format(1))
        handle = block.register_forward_pre_hook(
            lambda _, args, kwargs, value=value: (
                ((value[None], *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": value[None]})
            ),
            with_kwargs=True,
        )
        keywords = {} if target_of(name) is None else {"decoder_input_ids": torch.tensor([target_of(name)])}
        with torch.no_grad():
            expected = module(torch.tensor([IDS]), **keywords).logits[0]
        handle.remove()
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)
        assert (got - base.logits).abs().max() > 1e-2


def finished(model, base, kind, value):
    """Logits from the last block done by hand: writes added, norms taken, the rest as it was."""
    from mechview.models.norms import apply_norm
    from mechview.residual.readout import unembed

    last, stack = model.shape.n_layers - 1, base.stack
    weights, mlp = model.weights.attention(last, stack), model.weights.mlp(last, stack)
    if kind == "post":
        return unembed(value, model.weights.ends())
    if kind == "mlp":
        parallel = model.shape.placement == "parallel"
        written = base.capture.mlp[stack, last].written
        before = base.stream(last, "post", stack) - written if parallel else base.stream(last, "mid", stack)
        return unembed(apply_norm(before + value * mlp.multiplier, mlp.stream_norm), model.weights.ends())
    after = apply_norm(base.stream(last, "pre", stack) + value * weights.multiplier, weights.stream_norm)
    if model.shape.placement == "parallel":
        return unembed(after + base.capture.mlp[stack, last].written, model.weights.ends())
    written = rerun_mlp(model, base, after)
    total = after + apply_norm(written, mlp.post_norm) * mlp.multiplier
    return unembed(apply_norm(total, mlp.stream_norm), model.weights.ends())


def rerun_mlp(model, base, stream):
    """The last MLP's output on another stream, from weights."""
    from mechview.models.neurons import activations, affine, expert_writes

    mlp = model.weights.mlp(model.shape.n_layers - 1, base.stack)
    if mlp.router is not None:
        return expert_writes(stream, mlp).sum(0)
    return affine(activations(stream, mlp), mlp.W_out, mlp.b_out)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_the_callers_module_and_mechviews_copy_are_as_before(name):
    module = families.FAMILIES[name].build()
    module.train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    model = mv.wrap(module, name=name)
    base = recorded(model, IDS, decoder=target_of(name))
    value = torch.zeros_like(base.attention(0).z[:, 0])
    hooks = hooks_on(model.module)  # the library's own, which return patterns
    changed_passes(model, base, [[Replacement(Place("z", 0, base.stack), value, 0)]], whole)
    assert module.training
    assert (hooks_on(module), hooks_on(model.module)) == (0, hooks)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_hooks_are_gone_after_an_error_and_nothing_is_kept_for_autograd():
    model = mv.wrap(families.FAMILIES["gpt2"].build())
    base = recorded(model, IDS)
    wrong = Replacement(Place("z", 0), torch.zeros(len(IDS), 7), 0)  # heads are 12 wide
    hooks = hooks_on(model.module)
    with pytest.raises(RuntimeError):
        changed_passes(model, base, [[wrong]], whole)
    assert hooks_on(model.module) == hooks
    right = Replacement(Place("z", 0), torch.zeros(len(IDS), 12), 0)
    assert not changed_passes(model, base, [[right]], whole).requires_grad


def test_a_hook_that_does_not_fire_is_an_error():
    model = mv.wrap(families.FAMILIES["gpt2"].build())
    module = runnable(model)
    put = Replacement(Place("z", 1), torch.zeros(len(IDS), 12), 0)
    with (
        pytest.raises(ModelError, match="did not fire"),
        edited(module, model, intervene.edits_of([[put]], 4)),
    ):
        module.get_submodule("transformer.h.0.attn.c_proj")(torch.zeros(1, len(IDS), 48))
    assert hooks_on(module) == 0


def test_layers_that_share_a_block_are_told_apart():
    """ALBERT calls one block for every layer; replacing a head everywhere is editing the shared weights."""
    model, _ = family("albert")
    base = recorded(model, IDS)
    zero = torch.zeros_like(base.attention(0).z[:, 1])
    both = [Replacement(Place("z", layer, "encoder"), zero, 1) for layer in (0, 1)]
    first, second, together = changed_passes(model, base, [[both[0]], [both[1]], both], whole)
    edited_module = families.FAMILIES["albert"].build()
    projection = edited_module.get_submodule("albert.encoder.albert_layer_groups.0.albert_layers.0.attention.dense")
    with torch.no_grad():
        projection.weight[:, 12:24] = 0
        expected = edited_module(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(together, expected, atol=1e-5, rtol=1e-5)
    assert (first - second).abs().max() > 1e-3


def random_arrays(seed=0, **options):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return 0.4 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    layers = [
        dict(
            W_Q=draw(4, 12, 4), W_K=draw(2, 12, 4), W_V=draw(2, 12, 4), W_O=draw(4, 4, 12), b_Q=draw(4, 4), b_K=draw(2, 4),
            b_V=draw(2, 4), b_O=draw(12), W_in=draw(12, 20), W_out=draw(20, 12), W_gate=draw(12, 20), b_in=draw(20), b_out=draw(12),
        )
        for _ in range(2)
    ]  # fmt: skip
    return dict(W_E=draw(30, 12), layers=layers, b_U=draw(30)) | options


ARRAYS = {
    "plain": dict(activation="relu"),
    "rotary rms": dict(norm="rms", position="rotary", rotary={"base": 50.0, "width": 2}, activation="silu"),
    "post layer learned": dict(norm="layer", placement="post", position="learned", causal=False, activation="gelu"),
    "pre layer interleaved": dict(norm="layer", position="rotary", rotary={"interleaved": True}, final_norm=torch.ones(12)),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(ARRAYS))
def test_arrays_as_a_module_are_the_same_model(kind):
    options = dict(ARRAYS[kind])
    if options.get("position") == "learned":
        options["W_pos"] = torch.randn(16, 12, dtype=torch.float64)
    weights = array_weights(**random_arrays(**options))
    ids = torch.tensor([[3, 17, 4, 4, 29], [8, 8, 1, 0, 5]])
    got = ArrayModule(weights)(ids).logits
    for row, prompt in zip(got, ids, strict=True):
        torch.testing.assert_close(row, run_arrays(weights, prompt).logits, atol=1e-12, rtol=1e-12)


def test_a_head_of_arrays_without_its_output_is_the_head_replaced_by_zero():
    arrays = random_arrays(norm="rms", position="rotary")
    model = mv.from_arrays(**arrays)
    base = recorded(model, [3, 17, 4, 4, 29])
    put = Replacement(Place("z", 0), torch.zeros(5, 4), 2)
    got = changed_passes(model, base, [[put]], whole)[0]
    arrays["layers"][0]["W_O"][2] = 0
    torch.testing.assert_close(got, mv.trace(mv.from_arrays(**arrays), [3, 17, 4, 4, 29]).logits, atol=1e-12, rtol=0)


def test_what_cannot_be_run_or_has_no_logits_is_said():
    refused, _ = family("falcon_alibi")
    with pytest.raises(UnsupportedError, match="ALiBi twice"):
        recorded(refused, IDS)
    llama, _ = family("llama")
    with pytest.raises(UnsupportedError, match="is a sum, no module's output"):
        intervene.hook_of(llama, Place("mid", 0))
    with pytest.raises(UnsupportedError, match="bridge has rewritten"):
        recorded(mv.from_bridge(llama.bridge), IDS)
    with pytest.raises(UnsupportedError, match="came without a module"):
        runnable(mv.Model(llama.source, Foreign(llama.weights), None, "cpu", lambda: nn.Module()))


class Foreign:
    """Weights of an unknown origin."""

    def __init__(self, weights):
        self.shape, self.attention, self.mlp, self.ends = weights.shape, weights.attention, weights.mlp, weights.ends


@pytest.mark.real
def test_a_bare_encoder_has_no_changed_logits(minilm):
    base = recorded(minilm, "a short text")
    with pytest.raises(UnsupportedError, match="no unembedding"):
        changed_passes(minilm, base, [[]], whole)
