"""Compiled programs: the head that a compiler put there is found, and named by what the program does."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import mechview as mv

BLOCK = {"W_Q": "query.w", "W_K": "key.w", "W_V": "value.w", "W_O": "linear.w"}
BIAS = {"b_Q": "query.b", "b_K": "key.b", "b_V": "value.b"}


def compiled(folder):
    """A tracr export as plain arrays: one head a layer, biases folded as they stand, no norms."""
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    if config["num_heads"] != 1:
        pytest.skip("this export has several heads a layer")
    layers = []
    for n in range(config["num_layers"]):
        one = {key: tensors[f"layer_{n}.attn.{name}"][None] for key, name in (BLOCK | BIAS).items()}
        one |= {"b_O": tensors[f"layer_{n}.attn.linear.b"], "attn_scale": config["key_size"] ** -0.5}
        for side, key in (("in", "linear_1"), ("out", "linear_2")):
            one |= {f"W_{side}": tensors[f"layer_{n}.mlp.{key}.w"], f"b_{side}": tensors[f"layer_{n}.mlp.{key}.b"]}
        layers.append(one)
    unembed = torch.zeros(config["d_model"], len(tensors["token_embed"]))
    unembed[:, : tensors["unembed"].shape[1]] = tensors["unembed"]
    model = mv.from_arrays(
        W_E=tensors["token_embed"], W_pos=tensors["pos_embed"], W_U=unembed, position="learned", layers=layers,
        activation="relu", name=config["program"],
    )  # fmt: skip
    words = config["input_encoding"]
    ordinary = [i for word, i in words.items() if word not in ("BOS", "compiler_pad")]
    return model, {"before": [words["BOS"]], "tokens": ordinary, "seeds": 2}


def test_the_compiled_previous_token_head_is_named(shared):
    model, battery = compiled(shared / "models" / "tracr" / "prev_token")
    roles = mv.roles(model, **battery)
    assert "previous_token" in roles.card("L0H0").roles
    assert roles.scores.row("L0H0", "previous_token").value > 0.99
    assert not {"induction", "duplicate_token"} & set(roles.card("L0H0").roles)


def test_the_compiled_induction_pair_is_named(shared):
    model, battery = compiled(shared / "models" / "tracr" / "induction_unique")
    roles = mv.roles(model, **battery)
    assert "previous_token" in roles.card("L0H0").roles
    assert "induction" in roles.card("L1H0").roles
    assert "previous_token" not in roles.card("L1H0").roles
    assert roles.scores.row("L1H0", "induction").value > 0.9
