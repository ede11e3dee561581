"""What the doctor compares, and the limits it states: each family's own, and none that is not."""

from __future__ import annotations

import pytest

from conftest import family
from mechview import checks, doctor
from mechview.models import tracing
from mechview.models.limits import LIMITS, limits

SAID = {
    "gpt2": ["learned positions"],
    "gptj": ["rotary positions", "same stream"],
    "bloom": ["ALiBi"],
    "falcon_alibi": ["ALiBi twice", "ALiBi is a bias"],
    "llama_dynamic": ["rotary positions", "depends on the length", "in groups"],
    "llama_yarn": ["rotary positions", "yarn/longrope", "in groups"],
    "mistral": ["rotary positions", "sliding-window", "in groups"],
    "qwen3": ["rotary positions", "queries and keys are normed", "in groups"],
    "gemma2": ["attention scores are soft-capped", "logits are soft-capped", "sliding-window", "norm stands after"],
    "gemma3": ["differ by layer", "queries and keys are normed", "norm stands after"],
    "olmo2": ["queries and keys are normed", "norm stands after"],
    "mixtral": ["experts"],
    "gpt_oss": ["experts", "sinks", "yarn/longrope", "sliding-window"],
    "bert": ["learned positions", "not linear in the stream: a dense layer", "post-norm"],
    "t5": ["relative position biases", "encoder and decoder"],
}


@pytest.mark.parametrize("name", SAID)
def test_limits_of_a_family(name):
    model, _ = family(name)
    found = limits(model.weights)
    for part in SAID[name]:
        assert any(part in sentence for sentence in found), (part, found)


def test_limits_are_not_said_of_everybody():
    plain = limits(family("gpt2")[0].weights)
    assert len(plain) == 1
    everybody = [set(limits(family(name)[0].weights)) for name in SAID]
    said = set.union(*everybody)
    assert {limit.sentence for limit in LIMITS} - said == {
        "the checkpoint is a bare encoder: it has no logits"  # MiniLM's, below
    }
    assert not set.intersection(*everybody)


@pytest.mark.real
def test_a_bare_encoder_has_no_logits(minilm):
    found = limits(minilm.weights)
    assert "the checkpoint is a bare encoder: it has no logits" in found
    assert not any("logits are not linear" in sentence for sentence in found)
    assert "bare encoder" in doctor.backend_of(minilm)[1]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "mixtral", "bloom", "bert"])
def test_bridge_and_hooks_see_the_same_pass(name):
    found = doctor.diagnose(family(name)[0], thorough=True)
    assert found.agreement.keys() >= {"pattern", "z", "stream", "written", "mlp", "post", "logits"}
    assert max(found.agreement.values()) < 1e-4
    assert found.passed


@pytest.mark.parametrize(("name", "why"), [("albert", "no adapter"), ("t5", "no adapter")])
def test_one_backend_is_not_compared_with_itself(name, why):
    found = doctor.diagnose(family(name)[0], thorough=True)
    assert found.backend == "forward hooks"
    assert why in found.backend_why
    assert found.agreement == {}
    assert "only one backend works" in found.agreement_note
    assert found.passed


def test_the_worst_row_of_a_layer_is_kept(toy):
    found = doctor.diagnose(toy, ["And God said", "Emma was clever"])
    assert len(found.parities) == 2
    rows = [row for one in found.parities for row in one.rows]
    for worst in found.worst:
        same = [row.error for row in rows if (row.layer, row.quantity) == (worst.layer, worst.quantity)]
        assert worst.error == max(same)
    assert len(found.worst) == 2 * 4 + 1


def test_a_nan_error_is_the_worst_and_fails(toy):
    from dataclasses import replace

    found = doctor.diagnose(toy, ["And God said"])
    bad = replace(found.parities[0].rows[0], error=float("nan"))
    sick = replace(found, parities=(replace(found.parities[0], rows=(*found.parities[0].rows, bad)),))
    assert not sick.passed
    assert sick.worst[0].error != sick.worst[0].error
    merged = checks.worst_of([sick.parities[0], found.parities[0]])
    assert merged.rows[0].error != merged.rows[0].error
    assert not merged.passed
    assert merged.n_tokens == 2 * found.parities[0].n_tokens


def test_prompts_can_be_ids_where_there_is_no_tokenizer():
    model, _ = family("gpt2")
    ids = tracing.default_prompt(model)
    assert ids[: len(ids) // 2] == ids[len(ids) // 2 :]
    assert all(0 <= i < model.shape.d_vocab for i in ids)


def test_hand_made_arrays_have_their_own_backend():
    import torch

    import mechview as mv

    generator = torch.Generator().manual_seed(0)
    W = {name: torch.randn(2, 8, 4, generator=generator) for name in ("W_Q", "W_K", "W_V")}
    W["W_O"] = torch.randn(2, 4, 8, generator=generator)
    model = mv.from_arrays(
        W_E=torch.randn(10, 8, generator=generator), W_U=torch.randn(8, 10, generator=generator), layers=[W]
    )
    found = doctor.diagnose(model, [[1, 2, 3]])
    assert found.backend == "arrays"
    assert found.passed
    assert found.limits == ()
