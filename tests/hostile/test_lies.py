"""Folders whose configuration or tensors lie, and modules that changed under us: a sentence, never a wrong number."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import families
import mechview as mv
from conftest import family
from mechview.errors import CheckError, HeadError, ModelError, PromptError, UsageError

pytest_plugins = ["commands"]


def configured(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_hidden_layers": 1_000_000_000}, "promises 1000000000 layers"),
        ({"rms_norm_eps": -1.0}, "norms have eps = -1.0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "evil", "rope_theta": 100.0}}, "evil"),
        ({"quantization_config": "int4"}, "the weights are quantised"),
        ({"quantization_config": [1]}, "the weights are quantised"),
        ({"architectures": [3]}, "architectures"),
        ({"intermediate_size": 999}, "the configuration promises"),
    ],
)
def test_a_lying_configuration_is_not_readable(cli, toy_copy, fields, sentence):
    done = cli("attend", str(configured(toy_copy, **fields)), "L0H0", "-p", "the man")
    assert done.code == 3, done.err
    assert sentence in done.err
    assert done.out == ""


def test_two_files_with_one_tensor_are_not_merged(cli, toy_copy):
    tensors = load_file(toy_copy / "model.safetensors")
    (toy_copy / "model.safetensors").rename(toy_copy / "a.safetensors")
    save_file(dict(list(tensors.items())[:1]), toy_copy / "b.safetensors")
    done = cli("heads", str(toy_copy))
    assert done.code == 3
    assert "a.safetensors and b.safetensors both hold" in done.err


def test_files_beside_model_safetensors_are_not_read(cli, toy_copy):
    """The original library reads model.safetensors alone; so do the factors."""
    before = cli("heads", str(toy_copy), "--json").json["rows"]
    tensors = load_file(toy_copy / "model.safetensors")
    save_file({name: torch.zeros_like(t) for name, t in tensors.items()}, toy_copy / "zz.safetensors")
    assert [row["value"] for row in cli("heads", str(toy_copy), "--json").json["rows"]] == [r["value"] for r in before]


def test_a_matrix_with_one_axis_is_named(cli, toy_copy):
    tensors = load_file(toy_copy / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    save_file(tensors | {name: tensors[name].flatten()}, toy_copy / "model.safetensors")
    done = cli("heads", str(toy_copy))
    assert done.code == 3
    assert f"{name} has 1 axes" in done.err


def test_offsets_beyond_a_small_integer_are_kept(cli):
    assert cli("heads", "--offset", "40000", "--json").json["rows"][0]["offset"] == 40000
    done = cli("heads", "--offset", str(10**30))
    assert done.code == 2
    assert "is not a distance between positions" in done.err


@pytest.mark.parametrize("name", ["E.L0H0", "X.L0H0"])
def test_a_stack_the_model_does_not_have_is_refused(cli, name):
    done = cli("head", "toy", name)
    assert done.code == 2
    assert "does not exist" in done.err


def test_parameters_replaced_after_wrapping_are_an_error_and_changes_in_place_are_followed():
    module = families.FAMILIES["llama"].build()
    model = mv.wrap(module)
    before = mv.trace(model, [1, 2, 3]).logits
    with torch.no_grad():
        module.model.layers[0].self_attn.q_proj.weight.mul_(2)
    assert not torch.equal(mv.trace(model, [1, 2, 3]).logits, before)
    projection = module.model.layers[0].self_attn.q_proj
    projection.weight = nn.Parameter(projection.weight * 5)
    for ask in (lambda: mv.trace(model, [1, 2, 3]), lambda: mv.head_factors(model, layer=0, head=0)):
        with pytest.raises(ModelError, match="were replaced since it was wrapped"):
            ask()


def test_a_hook_on_a_wrapped_module_is_spoken_of():
    module = families.FAMILIES["llama"].build()
    module.model.layers[0].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="hooks on the wrapped module do not fire"):
        mv.wrap(module)


def test_modules_without_numbers_are_refused():
    module = families.FAMILIES["llama"].build()
    with torch.no_grad():
        module.lm_head.weight[0, 0] = torch.nan
    with pytest.raises(ModelError, match="lm_head.weight holds values that are NaN"):
        mv.trace(mv.wrap(module), [1, 2, 3])
    with torch.device("meta"):
        empty = type(module)(module.config)
    with pytest.raises(ModelError, match="has no values"):
        mv.trace(mv.wrap(empty), [1, 2, 3])
    with pytest.raises(ModelError, match="is not a Hugging Face model"):
        mv.wrap(nn.Linear(2, 2))


def test_a_pass_that_overflows_is_named_not_shown():
    module = families.FAMILIES["gpt2"].build()
    with torch.no_grad():
        module.transformer.h[0].mlp.c_fc.weight.mul_(1e20)
        module.transformer.h[0].mlp.c_proj.weight.mul_(1e30)
    with pytest.raises(CheckError, match="NaN or infinity in layer 1"):
        mv.trace(mv.wrap(module), [1, 2, 3])


def test_prompts_come_as_tokenizers_return_them_and_as_nothing_else():
    model = family("llama")[0]
    expected = mv.trace(model, [5, 6]).logits
    assert torch.equal(mv.trace(model, torch.tensor([[5, 6]])).logits, expected)
    for wrong in ([1.5], [True], b"abc", [[1], [2]]):
        with pytest.raises(PromptError, match="whole numbers"):
            mv.trace(model, wrong)


def test_heads_are_named_in_python_as_on_the_command_line(toy):
    assert [row.label for row in mv.head_table(toy, heads=["L1H1"]).rows] == ["L1H1"]
    assert [head.label for head in mv.attend(mv.trace(toy, "the man"), heads=["1.2"]).heads] == ["L1H2"]
    with pytest.raises(HeadError, match="is not a whole number"):
        mv.head_factors(toy, layer=True, head=0)
    with pytest.raises(UsageError, match="not a distance"):
        mv.head_factors(toy, layer=0, head=0).pattern(offset=True)


def test_a_chat_template_that_fails_is_a_sentence(cli, toy_copy):
    path = toy_copy / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": "{{ nothing.here.at.all }}"}))
    done = cli("attend", str(toy_copy), "L0H0", "-p", "a", "--chat")
    assert done.code == 2
    assert "chat template" in done.err


def test_names_and_seeds_that_no_machine_takes_are_bad_usage(cli, tmp_path):
    long = cli("heads", "--out", str(tmp_path / ("x" * 300 + ".csv")))
    assert (long.code, long.err.count("\n")) == (2, 1)
    assert "longer than a file system takes" in long.err
    assert cli("heads", "--seed", str(2**70)).code == 2
    assert list(tmp_path.iterdir()) == []
