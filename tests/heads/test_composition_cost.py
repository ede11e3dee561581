"""What composition costs: products and memory, counted and measured, and layers read once."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hand_made import random_model
from test_composition import sides

import mechview as mv
from mechview.heads import composing
from mechview.heads.composing import scores
from memory import peak_bytes


def test_cost_is_heads_squared_times_width_squared_whatever_the_rank(monkeypatch):
    """Numbers multiplied, counted: the pair product takes heads^2 d (d + tile) / 2, once, and holds two tiles of Grams."""
    products, largest = [], []
    plain = composing._gram

    def counted(sides, rows, columns, room):
        found = plain(sides, rows, columns, room)
        products.append(found.shape[1])
        largest.append(room.numel())
        return found

    monkeypatch.setattr(composing, "_gram", counted)
    for heads, rank in ((4, 3), (8, 12)):
        products.clear()
        senders, receivers, *_ = sides(heads, d=64, rank=rank)
        scores(senders, [receivers], torch.ones(heads, heads, dtype=torch.bool), tile=16)
        assert sum(products) == 2 * 64 * (64 + 16) // 2
        assert max(largest[-len(products) :]) == heads * 16 * 16


class Drawn:
    """A model whose layers are drawn when they are read and kept by nobody, so that only composition holds memory."""

    def __init__(self, layers: int, heads: int, rank: int, d: int, dtype: torch.dtype) -> None:
        model = random_model(layers=1, heads=heads, width=rank, d_model=d, vocab=8)
        self.dtype, self.end_weights, self.one = dtype, model.weights.ends(), model.weights.attention(0)
        self.shape = dataclasses.replace(model.shape, n_layers=layers)

    def attention(self, layer, stack=None):
        generator = torch.Generator().manual_seed(layer)
        drawn = {
            name: torch.randn(getattr(self.one, name).shape, generator=generator).to(self.dtype)
            for name in ("W_Q", "W_K", "W_V", "W_O")
        }
        return dataclasses.replace(self.one, layer=layer, **drawn)

    def mlp(self, layer, stack=None):
        raise AssertionError("composition of a pre-norm model reads no MLP")

    def ends(self):
        return self.end_weights


def bytes_allowed(layers: int, heads: int, rank: int, d: int) -> int:
    """Writers and three kinds of readers once, in float32; two tiles of Grams; a layer in float64; all pairs; and
    pairs that are computed again."""
    held = 4 * layers * heads * rank * d * 4 + 2 * layers * heads * composing.TILE**2 * 4
    working = 12 * heads * rank * d * 8
    return held + working + 3 * 6 * (layers * heads) ** 2 * 8 + 3 * composing.AGAIN * 8 * (d > 1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(32, 4, 32, 256), pytest.param((16, 32, 64, 2048), marks=pytest.mark.slow)])
def test_memory_is_that_of_one_copy_of_all_sides(shape, dtype):
    """The large shape has 512 heads in a stream of width 2048, and stays under two gigabytes."""
    peak = peak_bytes(lambda: mv.compositions(Drawn(*shape, dtype), shuffles=0))
    assert 3 * 4 * math.prod(shape) < peak < bytes_allowed(*shape)
    assert bytes_allowed(*shape) < 2e9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_score_as_their_float64_values(dtype):
    half, wide = Drawn(3, 4, 8, 64, dtype), Drawn(3, 4, 8, 64, dtype)
    wide.attention = lambda layer, stack=None: dataclasses.replace(
        half.attention(layer), **{n: getattr(half.attention(layer), n).double() for n in ("W_Q", "W_K", "W_V", "W_O")}
    )
    for kind in "QKV":
        found, true = (mv.compose(weights, kind, shuffles=0).values for weights in (half, wide))
        torch.testing.assert_close(found, true, rtol=0, atol=5e-7, equal_nan=True)


def test_each_layer_is_read_once(toy):
    calls = []

    class Counting:
        shape = toy.shape

        def attention(self, layer, stack=None):
            calls.append(layer)
            return toy.weights.attention(layer, stack)

        def mlp(self, layer, stack=None):
            raise AssertionError("composition of a pre-norm model reads no MLP")

        def ends(self):
            raise AssertionError("nor the ends")

    assert mv.compositions(Counting(), shuffles=0)["K"].values.shape == (2, 4, 2, 4)
    assert calls.count(1) == 1
