"""Adapters on and off: a LoRA set by hand that touches one head, compared with the model without it."""

from __future__ import annotations

import pytest
import torch

import families
import mechview as mv
from mechview.errors import ModelError, UsageError

peft = pytest.importorskip("peft", reason="the extra `peft` is not installed")

pytest_plugins = ["commands"]

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


@pytest.fixture
def folder(tmp_path):
    """An adapter of the bundled model, of head 2 in layer 1, as peft saves it."""
    config = peft.LoraConfig(r=1, lora_alpha=1, target_modules=["o_proj"])
    model = peft.get_peft_model(mv.load("toy").module, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.2)
            if "lora_A" in name:
                parameter.zero_()
                if "layers.1." in name:
                    parameter[0, 32:48] = 0.3
    model.peft_config["default"].base_model_name_or_path = "toy"
    model.save_pretrained(tmp_path / "lora", save_embedding_layers=False)
    return tmp_path / "lora"


def test_a_saved_adapter_is_opened_over_its_base_by_either_name(folder):
    one, other = mv.load("toy", adapter=folder), mv.load(folder)
    assert (one.name, other.name) == ("toy+lora", str(folder))
    assert mv.compare(one, other).identical
    ranked = mv.compare(mv.load("toy"), one).ranked()
    assert ranked[0].component == "L1H2"
    assert {standing.size for standing in ranked[1:]} == {0.0}


def test_compare_with_adapter_on_the_command_line(folder, cli):
    done = cli("compare", "toy", "--adapter", str(folder), "--json")
    assert done.code == 0, done.err
    assert {row["component"] for row in done.json["rows"] if row["delta"]} == {"L1H2"}
    assert "A with its --adapter FOLDER" in cli("compare", "toy").err


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "pickled adapters are not read"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "holds no adapter"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"not"), "cannot be put on"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": 3}'), "cannot be put on"),
    ],
)
def test_a_folder_that_is_no_adapter_is_a_sentence(folder, cli, broken, said):
    broken(folder)
    with pytest.raises(ModelError, match=said):
        mv.load("toy", adapter=folder)
    done = cli("compare", "toy", "--adapter", str(folder))
    assert (done.code, done.out) == (3, "")
    assert len(done.err.strip().splitlines()) == 1


def test_an_adapter_of_another_model_is_a_sentence(folder, gpt2_folder):
    with pytest.raises(ModelError, match="cannot be put on"):
        mv.load(gpt2_folder, adapter=folder)


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
