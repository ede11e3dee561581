"""A caller's module or bridge comes back as it was: before and after a trace, and after a failure inside one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import families
import mechview as mv
from mechview.errors import ModelError

IDS = families.tokens(20)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
         "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_load_state_dict_pre_hooks")  # fmt: skip
KINDS = ["gpt2", "llama", "falcon", "gemma3", "gpt_oss", "phi3_longrope", "llama_dynamic", "bert", "albert", "t5"]


def everything_about(module: nn.Module) -> dict[str, Any]:
    """All that a caller could notice: tensors and where they lie, hooks, modes, configuration, types."""
    tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    return {
        "keys": list(module.state_dict()),
        "tensors": {n: (t.data_ptr(), t.dtype, t.requires_grad, t.grad is None, digest(t)) for n, t in tensors.items()},
        "plain tensors": {(n, k): digest(v) for n, part in module.named_modules()
                          for k, v in vars(part).items() if isinstance(v, Tensor)},
        "hooks": {(n, kind): list(getattr(part, kind).items()) for n, part in module.named_modules() for kind in HOOKS},
        "parts": [(n, id(part), type(part), part.training) for n, part in module.named_modules()],
        "configs": [(n, id(part.config), part.config.to_dict(), part.config._attn_implementation)
                    for n, part in module.named_modules() if hasattr(part, "config")],
        "seen": {n: part.max_seq_len_cached for n, part in module.named_modules() if hasattr(part, "max_seq_len_cached")},
    }  # fmt: skip


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def attention_of(name: str) -> str:
    return "eager" if name in ("gpt_oss",) else "sdpa"


def run(module: nn.Module, ids: list[int] = IDS) -> Tensor:
    more = {"decoder_input_ids": torch.tensor([[0, 5]])} if module.config.is_encoder_decoder else {}
    with torch.no_grad():
        return module(torch.tensor([ids]), **more).logits


class Listener:
    """A hook that holds what cannot be copied."""

    def __init__(self) -> None:
        self.calls, self.uncopyable = 0, (n for n in range(3))

    def __call__(self, *_: Any) -> None:
        self.calls += 1


def lived_in(name: str) -> tuple[nn.Module, Listener]:
    """A module in use: half frozen, listened to, with a gradient, and with a long prompt behind it."""
    module = families.FAMILIES[name].build(attention=attention_of(name))
    listener = Listener()
    for part in list(module.modules())[::3]:
        part.register_forward_hook(listener)
    for parameter in list(module.parameters())[::2]:
        parameter.requires_grad_(False)
    trained = next(p for p in module.parameters() if p.requires_grad)
    trained.grad = torch.ones_like(trained)
    longest = mv.wrap(module).shape.n_ctx or 60
    run(module, families.tokens(longest))
    listener.calls = 0
    return module, listener


@pytest.mark.filterwarnings("ignore:hooks on the wrapped module do not fire")  # the test puts some there
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", KINDS)
def test_a_trace_leaves_the_callers_module_as_it_was(name: str, training: bool, tmp_path: Path) -> None:
    module, listener = lived_in(name)
    module.train(training)
    before = everything_about(module)
    model = mv.wrap(module)
    mv.trace(model, IDS)
    mv.trace(model, families.tokens(3))
    assert mv.parity(model, IDS).worst.error < 1e-5
    mv.head_factors(model, layer=1, head=2)
    assert everything_about(module) == before
    assert listener.calls == 0
    module.eval()
    fresh = families.FAMILIES[name].build(attention=attention_of(name))
    assert torch.equal(run(module), run(fresh))
    module.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()


class Broken(Exception):
    pass


def broken(*_: Any) -> None:
    raise Broken


@pytest.mark.filterwarnings("ignore:hooks on the wrapped module do not fire")  # the test puts some there
@pytest.mark.parametrize("name", ["llama", "albert", "t5"])
def test_a_failure_inside_a_pass_leaves_no_hook_anywhere(name: str) -> None:
    module, _ = lived_in(name)
    model = mv.wrap(module)
    good = mv.trace(model, IDS)
    before = everything_about(module)
    inner = model.bridge.original_model if model.uses_bridge else model.module
    hooks_before = hook_counts(inner)
    last = [part for part in inner.modules() if isinstance(part, nn.Linear)][-1]
    handle = last.register_forward_pre_hook(broken)
    with pytest.raises(Broken):
        mv.trace(model, IDS)
    handle.remove()
    assert hook_counts(inner) == hooks_before
    assert everything_about(module) == before
    again = mv.trace(model, IDS)
    assert torch.equal(again.logits, good.logits)


def hook_counts(module: nn.Module) -> list[tuple[str, int]]:
    return [(name, sum(len(getattr(part, kind)) for kind in HOOKS)) for name, part in module.named_modules()]


def test_the_copy_shares_parameters_so_that_training_steps_show() -> None:
    module = families.FAMILIES["llama"].build()
    model = mv.wrap(module)
    first = mv.trace(model, IDS).logits
    factor = mv.head_factors(model, layer=0, head=0).message.left
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)
    assert not torch.allclose(mv.trace(model, IDS).logits, first)
    torch.testing.assert_close(mv.head_factors(model, layer=0, head=0).message.left, factor * 1.1 * 1.1)  # and the norm


def test_a_module_whose_attention_cannot_be_made_eager_is_refused() -> None:
    module = families.FAMILIES["falcon"].build()
    module.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match="build it with attn_implementation='eager'"):
        mv.trace(mv.wrap(module), IDS)


def test_a_module_of_an_unknown_family_is_refused_at_once() -> None:
    import transformers as hf

    config = hf.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=20)
    with pytest.raises(ModelError, match="^mamba is not supported: a state-space layer has no attention heads$"):
        mv.wrap(hf.MambaForCausalLM(config))


# ---------------------------------------------------------------- bridges


@pytest.fixture
def bridge() -> Any:
    from mechview.models.bridge import build_bridge

    module = families.FAMILIES["gpt2"].build()
    return build_bridge(module, module.config)


def test_a_callers_bridge_is_used_and_stays_usable(bridge: Any) -> None:
    model = mv.from_bridge(bridge)
    expected = bridge(torch.tensor([IDS]))
    seen = mv.trace(model, IDS)
    assert torch.equal(seen.logits, expected[0])
    assert mv.parity(model, seen).worst.error < 1e-5
    reference = mv.trace(mv.wrap(families.FAMILIES["gpt2"].build()), IDS)
    torch.testing.assert_close(seen.head_writes(1), reference.head_writes(1), rtol=0, atol=1e-5)
    logits, cache = bridge.run_with_cache(torch.tensor([IDS]))
    assert torch.equal(logits, expected)
    assert "blocks.1.attn.hook_pattern" in cache


def test_hooks_on_a_callers_bridge_stay_and_take_effect(bridge: Any) -> None:
    plain = mv.trace(mv.from_bridge(bridge), IDS)
    bridge.add_hook("blocks.0.attn.hook_z", lambda z, hook: z * 0)
    for _ in range(2):
        silenced = mv.trace(mv.from_bridge(bridge), IDS)
        assert float(silenced.head_writes(0).abs().max()) == 0.0
        assert not torch.allclose(silenced.logits, plain.logits)
    bridge.reset_hooks()
    assert torch.equal(mv.trace(mv.from_bridge(bridge), IDS).logits, plain.logits)


def test_a_bridge_in_compatibility_mode_is_refused(bridge: Any) -> None:
    bridge.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(ModelError, match="^this bridge is in compatibility mode: its weights were folded"):
        mv.from_bridge(bridge)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_experts_run_in_every_dtype_whatever_implementation_the_caller_chose(name):
    import transformers

    row = families.FAMILIES[name]
    config = getattr(transformers, row.config)(vocab_size=families.VOCAB, attn_implementation="eager", **row.settings)
    module = getattr(transformers, row.model)(config).eval().double()
    chosen = module.config._experts_implementation
    seen = mv.trace(mv.wrap(module), families.tokens())
    assert seen.logits.dtype == torch.float64
    assert mv.parity(mv.wrap(module), seen).passed
    assert module.config._experts_implementation == chosen
