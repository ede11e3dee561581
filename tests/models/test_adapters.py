"""Adapters on and off: a LoRA set by hand that touches one head, compared with the model without it."""

from __future__ import annotations

import pytest
import torch

import families
import mechview as mv
from mechview.errors import ModelError, UsageError

peft = pytest.importorskip("peft", reason="the extra `peft` is not installed")

# peft 0.21 asks for an attribute that transformers 5.24 has renamed
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

IDS = [5, 9, 14, 20, 3, 7]
LAYER, HEAD, D_HEAD = 1, 3, 8


@pytest.fixture
def adapted():
    """A LoRA of rank 1 on every output projection, zero but for one head of one layer."""
    config = peft.LoraConfig(r=1, lora_alpha=1, target_modules=["o_proj"], init_lora_weights=True)
    model = peft.get_peft_model(families.FAMILIES["llama"].build(), config).eval()
    lora = model.base_model.model.model.layers[LAYER].self_attn.o_proj
    with torch.no_grad():
        lora.lora_A["default"].weight.zero_()
        lora.lora_A["default"].weight[0, HEAD * D_HEAD : (HEAD + 1) * D_HEAD] = 0.3
        lora.lora_B["default"].weight.copy_(torch.linspace(-1, 1, 48)[:, None])
    return model


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0]


def test_on_and_off_are_what_peft_itself_computes(adapted):
    on, off = mv.wrap(adapted), mv.wrap(adapted, adapter=False)
    assert torch.allclose(mv.trace(on, IDS).logits, logits(adapted), atol=1e-5)
    with adapted.disable_adapter():
        assert torch.allclose(mv.trace(off, IDS).logits, logits(adapted), atol=1e-5)
    assert not torch.allclose(mv.trace(on, IDS).logits, mv.trace(off, IDS).logits, atol=1e-3)
    assert (on.name, off.name) == ("LlamaForCausalLM+default", "LlamaForCausalLM")


def test_the_one_adapted_head_is_ranked_first_and_nothing_else_moves(adapted):
    found = mv.compare(mv.wrap(adapted, adapter=False), mv.wrap(adapted), prompts=[IDS, IDS[::-1]])
    ranked = found.ranked()
    assert ranked[0].component == f"L{LAYER}H{HEAD}"
    assert ranked[0].size > 0
    assert {standing.size for standing in ranked[1:]} == {0.0}
    added = {row.component: row.delta for row in found.of("difference")}
    assert added.pop(f"L{LAYER}H{HEAD}") > 1e-3
    assert max(size for name, size in added.items() if not name.startswith("L1.mlp")) == 0.0


def test_an_adapter_compared_with_itself_is_identical(adapted):
    assert mv.compare(mv.wrap(adapted), mv.wrap(adapted)).identical


def test_the_callers_model_stays_as_it_was(adapted):
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    said = logits(adapted)
    for adapter in (True, False):
        mv.trace(mv.wrap(adapted, adapter=adapter), IDS)
    assert list(adapted.state_dict()) == list(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapted.state_dict().items())
    assert torch.equal(logits(adapted), said)
    assert not any(getattr(part, "merged", False) for part in adapted.modules())


def test_an_adapter_that_is_switched_off_is_left_out(adapted):
    with adapted.disable_adapter():
        inside = mv.wrap(adapted)
    assert mv.compare(inside, mv.wrap(adapted, adapter=False)).identical


def test_what_cannot_be_told_apart_is_refused(adapted):
    adapted.merge_adapter()
    with pytest.raises(UsageError, match="merged into the weights"):
        mv.wrap(adapted, adapter=False)
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(ModelError, match="PROMPT_TUNING adapters add tokens, not weights"):
        mv.wrap(peft.get_peft_model(families.FAMILIES["llama"].build(), prompt))
