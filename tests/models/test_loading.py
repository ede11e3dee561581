"""Every way to open a model gives the numbers of the original library, or one sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import families
import mechview as mv
from mechview.errors import HeadError, MechviewError, ModelError, PromptError, UnsupportedError, UsageError
from mechview.models.checkpoint import FolderTensors
from mechview.models.reader import NamedWeights

IDS = families.tokens(10)
SHA = "0123456789abcdef0123456789abcdef01234567"
SAVED = ["llama", "gpt2", "gpt_neo", "opt", "opt_post", "bloom", "falcon_grouped", "phi3", "qwen2", "gemma2", "gemma3_scaled",
         "mixtral", "gpt_oss", "granite", "cohere_qk_norm", "bert", "albert", "t5_gated_untied"]  # fmt: skip


def build(name: str) -> nn.Module:
    return families.FAMILIES[name].build()


def saved(name: str, folder: Path, **how: Any) -> nn.Module:
    module = build(name)
    module.save_pretrained(folder, **how)
    return module


def sentence(error: pytest.ExceptionInfo[MechviewError]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    assert "Traceback" not in text
    return text


def same_weights(ours: NamedWeights, reference: NamedWeights) -> None:
    """All that is read, tensor by tensor, bit by bit."""
    assert ours.shape == reference.shape
    for stack in reference.shape.stacks:
        for layer in range(reference.shape.layers(stack)):
            same_record(ours.attention(layer, stack), reference.attention(layer, stack))
            if stack != "cross":
                same_record(ours.mlp(layer, stack), reference.mlp(layer, stack))
    same_record(ours.ends(), reference.ends())


def same_record(ours: Any, reference: Any) -> None:
    assert type(ours) is type(reference)
    for name, expected in vars(reference).items():
        got = getattr(ours, name)
        if isinstance(expected, Tensor):
            assert torch.equal(got, expected), name
        elif hasattr(expected, "__dataclass_fields__"):
            same_record(got, expected)
        elif isinstance(expected, tuple):
            assert len(got) == len(expected)
        elif not callable(expected):
            assert got == expected, name


def logits(module: nn.Module, ids: list[int], **more: Tensor) -> Tensor:
    with torch.no_grad():
        return module(torch.tensor([ids]), **more).logits[0]


# ---------------------------------------------------------------- folders


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_folder_gives_the_weights_and_logits_of_the_module(name: str, tmp_path: Path) -> None:
    module = saved(name, tmp_path)
    model = mv.load(str(tmp_path))
    same_weights(model.weights, mv.wrap(module).weights)
    more = {"decoder_input_ids": torch.tensor([[0]])} if name.startswith("t5") else {}
    assert torch.equal(logits(model.module, IDS, **more), logits(module, IDS, **more))
    assert model.tokenizer is None
    assert model.source.kind == "folder"


@pytest.mark.parametrize("how", [{"max_shard_size": "20KB"}, {"max_shard_size": "1GB"}], ids=["sharded", "one file"])
def test_shards_are_one_model(how: dict[str, Any], tmp_path: Path) -> None:
    module = saved("llama", tmp_path, **how)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) is ("20KB" in how.values())
    same_weights(mv.open_weights(tmp_path), mv.wrap(module).weights)


def test_a_pickle_of_tensors_alone_is_read(tmp_path: Path) -> None:
    module = saved("gpt2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    model = mv.load(str(tmp_path))
    same_weights(model.weights, mv.wrap(module).weights)
    assert torch.equal(logits(model.module, IDS), logits(module, IDS))


class Code:
    """Runs a command when it is unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"h.0.attn.c_attn.weight": Code(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="not executed") as error:
        mv.open_weights(tmp_path).attention(0)
    sentence(error)
    with pytest.raises(ModelError, match="not executed"):
        mv.load(str(tmp_path)).module
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("name", "bare"), [("bert", "BertModel"), ("gpt2", "GPT2Model"), ("llama", "LlamaModel")])
def test_a_checkpoint_of_the_bare_model_has_no_unembedding(name: str, bare: str, tmp_path: Path) -> None:
    module = build(name).base_model
    assert type(module).__name__ == bare
    module.save_pretrained(tmp_path)
    model = mv.load(str(tmp_path))
    same_weights(model.weights, mv.wrap(module).weights)
    assert model.weights.ends().W_U is None
    seen = mv.trace(model, IDS)
    assert seen.logits is None
    torch.testing.assert_close(seen.stream(0, "pre"), first_stream(module))
    assert mv.parity(model, seen).worst.error < 1e-5


def first_stream(module: nn.Module) -> Tensor:
    with torch.no_grad():
        return module(torch.tensor([IDS]), output_hidden_states=True).hidden_states[0][0]


def test_a_head_of_another_task_is_no_unembedding(tmp_path: Path) -> None:
    config = build("bert").config
    module = families.perturb(hf.BertForSequenceClassification(config).eval(), 0)
    module.save_pretrained(tmp_path)
    for model in (mv.wrap(module), mv.load(str(tmp_path))):
        assert model.weights.ends().W_U is None
        assert mv.parity(model, IDS).worst.error < 1e-5


def test_old_names_of_norms_are_understood_not_dropped(tmp_path: Path) -> None:
    """Checkpoints from before 2019 (BERT's own) say gamma and beta."""
    module = saved("bert", tmp_path)
    file = tmp_path / "model.safetensors"
    old = {re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name)): tensor
           for name, tensor in load_file(file).items()}  # fmt: skip
    assert any(name.endswith("gamma") for name in old)
    save_file(old, file, metadata={"format": "pt"})
    model = mv.load(str(tmp_path))
    same_weights(model.weights, mv.wrap(module).weights)
    assert torch.equal(logits(model.module, IDS), logits(module, IDS))


def test_one_layer_of_one_model_is_one_layers_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("llama", tmp_path, max_shard_size="20KB")
    read: list[str] = []
    original = FolderTensors.read
    monkeypatch.setattr(FolderTensors, "read", lambda self, name: read.append(name) or original(self, name))
    weights = mv.open_weights(tmp_path)
    assert read == []
    mv.head_factors(weights, layer=1, head=3)
    assert sorted(read) == sorted(f"model.layers.1.{part}.weight" for part in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "input_layernorm"))  # fmt: skip


def test_weights_in_half_precision_stay_so_and_the_module_is_float32_unless_asked(tmp_path: Path) -> None:
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    model = mv.load(str(tmp_path))
    assert model.weights.attention(0).W_Q.dtype == torch.bfloat16
    assert next(model.module.parameters()).dtype == torch.float32
    assert next(mv.load(str(tmp_path), dtype="float64").module.parameters()).dtype == torch.float64
    with pytest.raises(ModelError, match=r"^dtype float8 is not one of float32, float64, bfloat16, float16$"):
        mv.load(str(tmp_path), dtype="float8")


# ---------------------------------------------------------------- damage


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


Q1 = "model.layers.1.self_attn.q_proj.weight"


def test_missing_weights_are_refused_never_random(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.pop(Q1))
    model = mv.load(str(tmp_path))
    mv.head_factors(model, layer=0, head=0)
    with pytest.raises(ModelError, match=f"^the checkpoint has no tensor {Q1}$"):
        mv.head_factors(model, layer=1, head=0)
    with pytest.raises(ModelError, match="would be random") as error:
        mv.trace(model, IDS)
    assert Q1 in sentence(error)


@pytest.mark.parametrize("name", ["bert", "llama", "opt", "gpt2"])
def test_a_missing_norm_gain_is_refused_not_taken_for_one(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    gains = [
        n for n in load_file(tmp_path / "model.safetensors") if re.search(r"1\..*(norm|ln_1|LayerNorm)\w*\.weight", n)
    ]
    rewrite(tmp_path, lambda tensors: [tensors.pop(gain) for gain in gains])
    weights = mv.open_weights(tmp_path)
    with pytest.raises(ModelError, match="has no tensor"):
        weights.attention(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named(value: float, tmp_path: Path) -> None:
    module = saved("llama", tmp_path)

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[Q1][17, 3] = value  # row 17 belongs to head 2 of 8 rows each

    rewrite(tmp_path, spoil)
    with pytest.raises(ModelError, match=r"^layer 1: W_Q holds 1 values that are NaN or infinite, in head 2$"):
        mv.open_weights(tmp_path).attention(1)
    with pytest.raises(ModelError, match=f"^{Q1} holds values that are NaN or infinite"):
        mv.trace(mv.load(str(tmp_path)), IDS)
    with torch.no_grad():
        module.model.layers[1].self_attn.q_proj.weight[17, 3] = value
    with pytest.raises(ModelError, match=r"in head 2$"):
        mv.head_factors(mv.wrap(module), layer=1, head=0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_that_are_not_numbers_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({Q1: (tensors[Q1] * 50).to(dtype)}))
    with pytest.raises(ModelError, match="quantised weights are not read as numbers") as error:
        mv.open_weights(tmp_path).attention(1)
    assert Q1 in sentence(error)


def test_a_quantised_configuration_is_refused(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match=r"quantised \(gptq\)") as error:
        mv.load(str(tmp_path))
    sentence(error)


@pytest.mark.parametrize("keep", [0.0, 0.0001, 0.5, 0.99])
def test_a_truncated_file_is_refused(keep: float, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(keep * file.stat().st_size)])
    with pytest.raises(ModelError, match=r"^model.safetensors is not a readable safetensors file") as error:
        mv.open_weights(tmp_path).attention(0)
    sentence(error)
    with pytest.raises(ModelError) as error:
        mv.load(str(tmp_path)).module
    sentence(error)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    saved("llama", tmp_path, max_shard_size="20KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=f"lacks {gone.name}, which its index names"):
        mv.open_weights(tmp_path).attention(0)


def test_an_index_may_not_point_outside_its_folder(tmp_path: Path) -> None:
    saved("llama", tmp_path / "model", max_shard_size="20KB")
    index = tmp_path / "model" / "model.safetensors.index.json"
    stated = json.loads(index.read_text())
    stated["weight_map"][Q1] = "../stolen.safetensors"
    index.write_text(json.dumps(stated))
    with pytest.raises(ModelError, match="not a file of its folder"):
        mv.open_weights(tmp_path / "model").attention(0)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("changes", [{"head_dim": 16}, {"num_attention_heads": 12}, {"num_key_value_heads": 1}])
def test_sizes_that_contradict_the_configuration_are_refused(changes: dict[str, int], tmp_path: Path) -> None:
    saved("llama", tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelError) as error:
        mv.head_factors(mv.open_weights(tmp_path), layer=0, head=0)
    sentence(error)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model_type": "no_such_family"}', '{"model_type": 3}'])
def test_a_malformed_configuration_is_one_sentence(text: str, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError) as error:
        mv.load(str(tmp_path))
    sentence(error)


def test_a_folder_without_configuration_or_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        mv.load(str(tmp_path))
    build("llama").config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"holds no \.safetensors"):
        mv.head_factors(mv.load(str(tmp_path)), layer=0, head=0)


@pytest.mark.parametrize("family", ["mamba", "deepseek_v3", "gemma3"])
def test_what_is_out_of_reach_is_refused_with_the_reason(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(UnsupportedError, match=f"^{family} is not supported: ") as error:
        mv.load(str(tmp_path))
    sentence(error)


# ---------------------------------------------------------------- names


def test_toy_is_the_default_and_its_checkpoints_are_revisions() -> None:
    model = mv.load()
    assert (model.name, model.source.revision) == ("toy", "final")
    assert mv.parity(model, "It is a truth universally acknowledged").worst.error < 1e-4
    steps = sorted(path.name for path in (model.source.folder / "checkpoints").glob("step-*"))
    if not steps:
        pytest.skip("the bundled model has no checkpoints here")
    early = mv.load("toy", revision=steps[0])
    assert early.weights.attention(0).W_Q.dtype == torch.float16
    assert early.tokenizer("a b")["input_ids"] == model.tokenizer("a b")["input_ids"]
    assert not torch.equal(early.weights.attention(0).W_Q.float(), model.weights.attention(0).W_Q)
    assert mv.parity(early, "It is a truth").worst.error < 1e-4
    with pytest.raises(ModelError, match=f"^toy has no checkpoint step-x; it has {steps[0]}, "):
        mv.load("toy", revision="step-x")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hand-built hub cache with one model, `acme/tiny`, at one commit."""
    import huggingface_hub.constants

    folder = tmp_path / "hub" / "models--acme--tiny"
    saved("llama", folder / "snapshots" / SHA)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(SHA)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize("revision", [None, "main", SHA])
def test_a_hub_name_is_opened_from_the_cache_at_a_pinned_commit(hub: Path, revision: str | None) -> None:
    model = mv.load("acme/tiny", revision=revision, offline=True)
    assert (model.source.kind, model.source.revision, model.name) == ("hub", SHA, "acme/tiny")
    same_weights(model.weights, mv.wrap(build("llama")).weights)


@pytest.mark.parametrize("revision", ["no-such-branch", SHA[::-1], "../../etc"])
def test_an_unknown_revision_is_refused_not_replaced(hub: Path, revision: str) -> None:
    with pytest.raises(ModelError) as error:
        mv.load("acme/tiny", revision=revision, offline=True)
    assert revision in sentence(error)


@pytest.mark.parametrize("name", ["acme/other", "no-such-model-anywhere"])
def test_an_unknown_name_offline_is_one_sentence(hub: Path, name: str) -> None:
    with pytest.raises(ModelError, match="is not in the local cache, and offline mode is on") as error:
        mv.load(name, offline=True)
    assert name in sentence(error)


def test_the_hub_is_asked_once_and_then_the_cache_is_used(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    asked = []

    def refuse(self: HfApi, name: str, **settings: Any) -> None:
        asked.append((name, settings["timeout"]))
        raise HTTPError("no network")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(HfApi, "model_info", refuse)
    with pytest.warns(UserWarning, match=f"the hub cannot be reached; using the cached acme/tiny at {SHA}"):
        assert mv.load("acme/tiny").source.revision == SHA
    with pytest.raises(ModelError, match="is not in the local cache, and the hub cannot be reached"):
        mv.load("acme/other")
    assert [name for name, _ in asked] == ["acme/tiny", "acme/other"]
    assert max(seconds for _, seconds in asked) <= 10


WITHOUT_NETWORK = """
import socket, sys, warnings
tries = []
def nowhere(host, *rest, **more):
    tries.append(host)
    raise socket.gaierror("no network")
socket.getaddrinfo = nowhere
import mechview as mv
from mechview.errors import ModelError
warnings.simplefilter("ignore")
mv.head_factors(mv.load("acme/tiny"), layer=0, head=0)
first = len(tries)
assert first, "the network was not asked"
try:
    mv.load("acme/other")
except ModelError as error:
    print(error)
assert first <= 2 and len(tries) <= 4, tries
print("tries", len(tries))
"""


def test_without_network_a_name_is_settled_after_a_try_not_after_minutes(hub: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    done = subprocess.run([sys.executable, "-c", WITHOUT_NETWORK], env={**environment, "HF_HUB_CACHE": str(hub)},
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "acme/other (revision main) is not bundled, is not in the local cache" in done.stdout


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ("./nowhere", ModelError, "there is no folder ./nowhere"),
        ("/nowhere/x.gguf", ModelError, "there is no file /nowhere/x.gguf"),
        ("package:no_such_package", ModelError, "no installed package is called no_such_package"),
        ("package:json", ModelError, "the package json holds no config.json with weights and no .gguf file"),
        ("package:", UsageError, "does not name a Python package"),
        ("package:os.path", UsageError, "does not name a Python package"),
        ("a b", UsageError, "is not a model"),
        ("acme/../x", UsageError, "is not a model"),
        ("", UsageError, "is not a model"),
    ],
)
def test_an_argument_that_is_no_model_is_one_sentence(spec: str, kind: type[MechviewError], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)) as error:
        mv.load(spec)
    sentence(error)


def test_a_local_path_has_no_revision(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    with pytest.raises(UsageError, match="has no revisions"):
        mv.load(str(tmp_path), revision="main")


def test_a_package_is_found_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "weights_of_mine"
    saved("llama", package / "model")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = mv.load("package:weights-of-mine")
    assert model.source.kind == "package"
    same_weights(model.weights, mv.wrap(build("llama")).weights)
    assert "weights_of_mine" not in sys.modules


@pytest.mark.parametrize(("layer", "head", "message"), [
    (2, 0, "layer 2 does not exist: this model has layers 0 to 1"),
    (-1, 0, "layer -1 does not exist: this model has layers 0 to 1"),
    (1, 6, "head 6 does not exist: layer 1 has heads 0 to 5"),
    (1, -1, "head -1 does not exist: layer 1 has heads 0 to 5"),
])  # fmt: skip
def test_a_head_that_does_not_exist_is_named_with_those_that_do(layer: int, head: int, message: str) -> None:
    with pytest.raises(HeadError) as error:
        mv.head_factors(mv.wrap(build("llama")), layer=layer, head=head)
    assert str(error.value) == message


@pytest.mark.parametrize(("prompt", "message"), [
    ([], "the prompt is empty: it has no tokens"),
    ([3, 100], "token id 100 does not exist: the vocabulary has ids 0 to 99"),
    ([-1], "token id -1 does not exist: the vocabulary has ids 0 to 99"),
    ([5] * 49, "the prompt has 49 tokens; LlamaForCausalLM reads at most 48"),
    ("text", "LlamaForCausalLM has no tokenizer; give the prompt as token ids"),
])  # fmt: skip
def test_a_prompt_that_cannot_be_read_is_one_sentence(prompt: Any, message: str) -> None:
    with pytest.raises(PromptError) as error:
        mv.trace(mv.wrap(build("llama")), prompt)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kv_lora_rank": 64}, "multi-head latent attention"),
        ({"mamba_d_state": 16}, "state-space layers have no attention heads"),
        ({"linear_num_value_heads": 4}, "linear-attention layers"),
    ],
)
def test_what_nobody_listed_is_refused_by_what_its_configuration_speaks_of(fields, reason):
    from types import SimpleNamespace

    from mechview.models.shape import choose_layout

    with pytest.raises(UnsupportedError, match=f"brand_new is not supported: {reason}"):
        choose_layout(SimpleNamespace(model_type="brand_new", **fields))
