"""Directions by name: the vectors they must be, what a result says of them, and shares that sum along them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mechview as mv
from conftest import family
from mechview.errors import UsageError
from mechview.models.norms import apply_norm
from mechview.residual.directions import named_direction, shares_along

IDS = [5, 9, 14, 20, 3, 7]


@pytest.fixture
def probes(tmp_path):
    rows = torch.randn(4, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    np.save(tmp_path / "one.npy", rows[1].numpy())
    np.savez(tmp_path / "many.npz", probe=rows.numpy(), other=rows[0].numpy())
    torch.save({"W_dec": rows}, tmp_path / "sae.pt")
    save_file({"W_dec": rows, "b": rows[0].clone()}, tmp_path / "sae.safetensors")
    (tmp_path / "one.json").write_text(json.dumps(rows[1].tolist()))
    return tmp_path, rows


@pytest.mark.parametrize("name", ["one.npy", "one.json", "many.npz:probe[1]", "sae.pt:W_dec[1]", "sae.pt[1]",
                                  "sae.safetensors:W_dec[1]"])  # fmt: skip
def test_a_vector_of_a_file_is_read_as_it_is(probes, name):
    folder, rows = probes
    found = named_direction(f"{folder}/{name}")
    assert torch.equal(found.vector, rows[1])
    assert found.origin.startswith(f"from {name.split(':')[0].split('[')[0]}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sae.safetensors", "holds W_dec, b: say which"),
        ("sae.safetensors:W_enc", "say which"),
        ("sae.safetensors:W_dec", "not one vector; choose a row"),
        ("sae.safetensors:W_dec[9]", "row 9 does not exist"),
        ("one.npy:key", "holds one array and no names"),
        ("none.npy", "there is no file"),
        ("what", "is no direction: give a file"),
    ],
)
def test_what_is_no_vector_is_refused(probes, name, said):
    folder, _ = probes
    with pytest.raises(UsageError, match=said):
        named_direction(name if name == "what" else f"{folder}/{name}")


def test_a_pickle_with_code_is_refused(tmp_path):
    import pickle

    (tmp_path / "bad.pt").write_bytes(pickle.dumps(print))
    with pytest.raises(UsageError, match="cannot be read"):
        named_direction(f"{tmp_path}/bad.pt")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_singular_vectors_are_those_of_the_dense_map(name):
    model, _ = family(name)
    factors = mv.head_factors(model, layer=1, head=2)
    maps = {"message": factors.message, "pattern": factors.pattern(0 if factors.needs_offset else None)}
    for side, low in maps.items():
        dense = low.dense().double()
        size = torch.linalg.svdvals(dense)
        for n in (0, 1):
            u, v = (named_direction(f"L1H2.{side}.{which}{n}", model).vector for which in "uv")
            assert torch.allclose(u @ dense, size[n] * v, atol=1e-5 * float(size[0]))
            assert float(u.norm()) == pytest.approx(1, abs=1e-5)


def test_a_neurons_output_is_what_it_writes_and_its_input_what_it_reads():
    model, _ = family("gpt2")
    mlp = model.weights.mlp(1)
    assert torch.equal(named_direction("L1.n7.out", model).vector, mlp.W_out[7].double())
    stream = mv.trace(model, IDS).stream(1, "mid").double()
    read = stream @ named_direction("L1.n7.in", model).vector
    plain = apply_norm(stream, mlp.norm) @ mlp.W_in.double()[:, 7]
    scale = (stream - stream.mean(-1, keepdim=True)).square().mean(-1).add(mlp.norm.eps).sqrt()
    bias = float(mlp.norm.bias.double() @ mlp.W_in.double()[:, 7])
    assert torch.allclose(read / scale + bias, plain, atol=1e-6)


def test_a_difference_of_means_is_that_of_the_streams(toy):
    a, b = ["the man went", "a woman said"], ["the kings", "and the sea", "of gold"]
    found = mv.mean_direction(toy, a, b, layer=1, point="mid", position=-1)
    means = [
        torch.stack([mv.trace(toy, text).stream(1, "mid")[-1].double() for text in side]).mean(0) for side in (a, b)
    ]
    assert torch.allclose(found.vector, means[1] - means[0], atol=1e-12)
    assert "3 prompts minus that of 2" in found.origin


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "bert", "t5", "bloom"])
@pytest.mark.parametrize("by", ["layer", "head", "bias"])
def test_shares_sum_to_the_models_own_value_before_and_behind_the_final_norm(name, by):
    model, _ = family(name)
    seen = mv.trace(model, IDS)
    direction = named_direction("L1H2.message.v0", model)
    stream, norm = seen.stream_final.double(), model.weights.ends().final_norm
    for read, own in (("stream", stream), ("final norm", apply_norm(stream, norm))):
        found = shares_along(seen, direction, by=by, read=read)
        assert found.total == pytest.approx(float(own[-1] @ direction.vector), rel=1e-9)
        assert found.error < 1e-5
        assert float(found.values.sum()) == pytest.approx(found.total, rel=1e-4, abs=1e-4)
        assert ("before the final norm" in found.direction) == (read == "stream")
        assert "singular vector 0 of what L1H2 writes" in found.frame()["target"].iloc[0]


def test_a_head_writes_along_what_it_writes_and_reading_the_norm_changes_the_value():
    model, _ = family("gpt2")
    seen = mv.trace(model, IDS)
    raw, normed = (
        shares_along(seen, named_direction("L1H2.message.v0", model), read=r) for r in ("stream", "final norm")
    )
    assert raw.total != pytest.approx(normed.total, rel=1e-3)
    with pytest.raises(UsageError, match="is not a reading"):
        shares_along(seen, named_direction("L1H2.message.v0", model), read="logits")
    wide = mv.NamedDirection("wide", torch.ones(50), "made up")
    with pytest.raises(UsageError, match="has \\(50,\\) numbers; the stream has 48"):
        shares_along(seen, wide)


def test_lists_of_the_same_mean_have_no_difference(toy):
    with pytest.raises(UsageError, match="the same mean"):
        mv.mean_direction(toy, ["the man"], ["the man"], layer=1)
