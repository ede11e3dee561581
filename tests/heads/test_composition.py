"""Composition against dense products for every kind of block, its exact null, its invariances and its cost."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hand_made import random_model
from scipy.stats import binom

import mechview as mv
from conftest import family
from mechview.errors import HeadError, UsageError
from mechview.heads.composing import Ends, from_unit, null_squares, read, scores, shuffled, written
from mechview.lowrank import LowRank

norm = torch.linalg.matrix_norm


def dense_score(M1, other):
    return float(norm(M1 @ other) / (norm(M1) * norm(other)))


def receiver(factors, kind, offset):
    if kind == "V":
        return factors.message.dense().double()
    P = factors.pattern(offset if factors.needs_offset else None).dense().double()
    return P if kind == "Q" else P.mT


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "gemma2", "gptj", "olmo2", "falcon_grouped", "cohere_qk_norm", "granite"]
)
def test_scores_are_those_of_dense_maps(name, kind):
    model, _ = family(name)
    found = mv.compose(model, kind, offset=2, shuffles=0)
    heads = model.shape.n_heads
    for a, b in ((0, heads - 1), (heads - 1, 0), (1, 2)):
        M1 = mv.head_factors(model, layer=0, head=a).message.dense().double()
        other = receiver(mv.head_factors(model, layer=1, head=b), kind, 2)
        assert float(found.values[0, a, 1, b]) == pytest.approx(dense_score(M1, other), abs=1e-6)
    assert found.values[0, :, 0].isnan().all()
    assert found.values[1].isnan().all()
    assert found.kv.tolist() == model.weights.attention(0).kv_head.tolist()


@pytest.mark.parametrize("name", ["bert", "albert_two_groups", "opt_post"])
def test_post_norm_writes_are_carried_by_gain_and_centring_of_every_norm_between(name):
    model, _ = family(name)
    found = mv.compose(model, "K", shuffles=0)
    stack, last = model.shape.stacks[0], model.shape.n_layers - 1
    d = model.shape.d_model
    centre = torch.eye(d, dtype=torch.float64) - 1 / d
    M1 = mv.head_factors(model, layer=0, head=1).message.dense().double()
    for layer in range(last):
        for part in (model.weights.attention(layer, stack), model.weights.mlp(layer, stack)):
            M1 = M1 @ centre @ torch.diag(part.stream_norm.gain.double())
    other = receiver(mv.head_factors(model, layer=last, head=2), "K", 0)
    assert float(found.values[0, 1, last, 2]) == pytest.approx(dense_score(M1, other), abs=1e-6)
    raw = mv.compose(model, "K", shuffles=0, fold=False)
    plain = mv.head_factors(model, layer=0, head=1, fold=False).message.dense().double()
    other = receiver(mv.head_factors(model, layer=last, head=2, fold=False), "K", 0)
    assert float(raw.values[0, 1, last, 2]) == pytest.approx(dense_score(plain, other), abs=1e-6)


def test_stacks_of_an_encoder_decoder_model_meet_where_they_do():
    model, _ = family("t5_deep_decoder")
    gain = model.weights.ends().encoder_final_norm.gain.double()
    M1 = mv.head_factors(model, layer=1, head=0, stack="encoder").message.dense().double() * gain
    X = mv.head_factors(model, layer=0, head=3, stack="cross")
    found = mv.compose(model, "K", stack="cross", source="encoder", shuffles=0)
    assert found.values.shape == (2, 4, 3, 4)
    assert not found.values.isnan().any()
    assert float(found.values[1, 0, 0, 3]) == pytest.approx(dense_score(M1, X.pattern().dense().double().mT), abs=1e-6)
    own = mv.compose(model, "Q", stack="cross", source="decoder", shuffles=0)
    assert not own.values[1, :, 1].isnan().any()  # self-attention stands before the cross-attention of its layer
    assert own.values[2, :, 1].isnan().all()
    assert mv.compose(model, "V", stack="encoder", shuffles=0).frame()["src_label"].iloc[0] == "E.L0H0"
    for kind, source in (("Q", "encoder"), ("K", "decoder")):
        with pytest.raises(UsageError, match="of cross-attention"):
            mv.compose(model, kind, stack="cross", source=source)
    with pytest.raises(UsageError, match="do not write to the stream"):
        mv.compose(model, "V", stack="decoder", source="encoder")


def test_what_does_not_exist_is_refused(toy):
    for words, sentence in (({"kind": "X"}, "not a kind"), ({"definition": "half"}, "not a definition"),
                            ({"shuffles": -1}, "counts draws")):  # fmt: skip
        with pytest.raises(UsageError, match=sentence):
            mv.compose(toy, **words)
    with pytest.raises(HeadError, match="does not exist"):
        mv.compose_components(toy, "K", layer=5, head=0)


def test_the_toys_previous_token_head_feeds_the_keys_of_its_induction_heads(toy):
    """Above both nulls: beyond the 95 % band of random writers, and beyond every shuffled draw's mean by far."""
    found = mv.compose(toy, "K", shuffles=6)
    _, high = found.band()
    for head in (1, 2, 3):
        value = found.values[0, 3, 1, head]
        assert value > high[0, 3, 1, head]
        assert found.z[0, 3, 1, head] > 5
        assert value > found.shuffled[0, 3, 1, head] + 0.05
        best = found.values[0, :, 1, head].argmax()
        assert int(best) == 3
    by_query = mv.compose(toy, "Q", shuffles=0)
    assert (by_query.z[0, 3, 1, 1:] < found.z[0, 3, 1, 1:]).all()


def test_the_rotation_null_has_the_moments_of_real_rotations():
    """Closed form against 4,000 rotations drawn: mean within 4 standard errors, deviation within 8 %."""
    generator = torch.Generator().manual_seed(3)
    d, n = 12, 4000
    A, B = (
        torch.randn(1, 3, d, generator=generator, dtype=torch.float64) * torch.tensor([3.0, 1.0, 0.3])[:, None]
        for _ in range(2)
    )
    A, B = A / norm(A), B / norm(B)
    turns = torch.linalg.qr(torch.randn(n, d, d, generator=generator, dtype=torch.float64))
    Q = turns.Q * turns.R.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    drawn = (A @ Q @ B.mT).square().sum((-2, -1))
    mean, sd = null_squares(from_unit(A), from_unit(B), d)
    assert abs(float(drawn.mean()) - mean) < 4 * float(sd) / math.sqrt(n)
    assert float(drawn.std()) == pytest.approx(float(sd), rel=0.08)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("definition", ["full", "kernel"])
def test_random_weights_lie_inside_the_band(kind, definition):
    """Share of pairs outside the 95 % band stays below its binomial 99 % limit."""
    model = random_model(layers=4, heads=6, width=8, d_model=64, gains=True, norm="rms", seed=11)
    found = mv.compose(model, kind, definition=definition, shuffles=0)
    low, high = found.band()
    there = ~found.values.isnan()
    outside = int(((found.values < low) | (found.values > high))[there].sum())
    count = int(there.sum())
    assert count == 6 * 36
    assert outside <= binom.ppf(0.99, count, 0.05)


def test_shuffled_writers_keep_their_spectra_and_lose_their_place(toy):
    found = mv.compose(toy, "K", shuffles=8, seed=2)
    there = ~found.values.isnan()
    assert float((found.shuffled - found.null)[there].abs().max()) < 0.03
    generator = torch.Generator().manual_seed(0)
    ends = from_unit(torch.nn.functional.normalize(torch.randn(2, 3, 8, dtype=torch.float64), dim=(-2, -1)))
    moved = shuffled(ends, generator)
    torch.testing.assert_close(moved.sides.sort(-1).values, ends.sides.sort(-1).values)
    assert not torch.equal(moved.sides, ends.sides)
    assert mv.compose(toy, "K", shuffles=2, seed=5).shuffled[0, 0, 1, 0] != found.shuffled[0, 0, 1, 0]


@pytest.fixture(scope="module")
def gaussian():
    return random_model(layers=3, heads=4, groups=2, gains=True, norm="rms", seed=4)


def changed(model, change):
    return dataclasses.replace(model.weights, attentions=tuple(change(a) for a in model.weights.attentions))


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_scores_do_not_change_with_the_basis_inside_a_head(gaussian, kind):
    S = torch.randn(4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    inverse = torch.linalg.inv(S)
    other = changed(gaussian, lambda a: dataclasses.replace(
        a, W_Q=a.W_Q @ S, W_K=a.W_K @ inverse.mT, W_V=a.W_V @ S, W_O=inverse @ a.W_O))  # fmt: skip
    assert same(mv.compose(gaussian, kind), mv.compose(other, kind))


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_scores_do_not_change_with_a_rotation_of_the_stream_under_rms_norms(gaussian, kind):
    """Gains are folded into what reads, so the rotated model has gains of one and turned matrices."""
    d = gaussian.shape.d_model
    R = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(6), dtype=torch.float64)).Q

    def turned(a):
        gain = a.norm.gain.double()[None, :, None]
        ones = dataclasses.replace(a.norm, gain=torch.ones(d, dtype=torch.float64), bias=None)
        return dataclasses.replace(
            a, W_Q=R.mT @ (gain * a.W_Q), W_K=R.mT @ (gain * a.W_K), W_V=R.mT @ (gain * a.W_V), W_O=a.W_O @ R, norm=ones,
        )  # fmt: skip

    assert same(mv.compose(gaussian, kind, shuffles=0), mv.compose(changed(gaussian, turned), kind, shuffles=0))


def test_permuting_heads_and_groups_permutes_the_table(gaussian):
    order, groups = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 0])

    def permuted(a):
        return dataclasses.replace(
            a, W_Q=a.W_Q[order], W_O=a.W_O[order], b_Q=a.b_Q[order], W_K=a.W_K[groups], W_V=a.W_V[groups],
            b_V=a.b_V[groups], kv_head=1 - a.kv_head[order],
        )  # fmt: skip

    one, two = mv.compose(gaussian, "K", shuffles=0), mv.compose(changed(gaussian, permuted), "K", shuffles=0)
    torch.testing.assert_close(one.values[:, order][:, :, :, order], two.values, rtol=1e-9, atol=1e-12, equal_nan=True)


def same(one, two) -> bool:
    return all(
        torch.allclose(getattr(one, name), getattr(two, name), rtol=1e-9, atol=1e-12, equal_nan=True)
        for name in ("values", "spread")
    )


def sides(
    heads: int, d: int = 40, rank: int = 5, seed: int = 0, dtype=torch.float32
) -> tuple[Ends, Ends, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    V, Q = (torch.randn(heads, d, rank, generator=generator, dtype=torch.float64) for _ in range(2))
    W_O, K = (torch.randn(heads, rank, d, generator=generator, dtype=torch.float64) for _ in range(2))
    one, two = LowRank(V.to(dtype), W_O.to(dtype)), LowRank(Q.to(dtype), K.to(dtype))
    return written(one), read(two), one.dense().double(), two.dense().double()


@pytest.mark.parametrize("tile", [1, 7, 40, 128])
def test_tiles_change_nothing(tile):
    senders, receivers, M, P = sides(6)
    expected = norm(M[:, None] @ P[None]) / (norm(M)[:, None] * norm(P)[None])
    found = scores(senders, [receivers], torch.ones(6, 6, dtype=torch.bool), tile=tile)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_small_scores_keep_their_digits():
    """Heads that all but miss each other, at every size down to 1e-7 of a full meeting, with one huge direction."""
    d, heads = 64, 24
    generator = torch.Generator().manual_seed(8)
    V = torch.randn(heads, d, 4, generator=generator)
    W_O = torch.zeros(heads, 4, d)
    W_O[:, :, :4] = torch.eye(4) * torch.tensor([1e3, 1.0, 1.0, 1.0])[:, None]
    Q = torch.zeros(heads, d, 4)
    Q[:, 8:12] = torch.eye(4)
    Q[:, :4] = torch.eye(4) * torch.logspace(-7, 0, heads)[:, None, None]
    K = torch.randn(heads, 4, d, generator=generator)
    one, two = LowRank(V, W_O), LowRank(Q, K)
    M, P = one.dense().double(), two.dense().double()
    exact = norm(M[:, None] @ P[None]) / (norm(M)[:, None] * norm(P)[None])
    found = scores(written(one), [read(two)], torch.ones(heads, heads, dtype=torch.bool))[0]
    assert float((found - exact).abs().max()) < 1e-6
    assert float((found / exact - 1).abs().max()) < 1e-4


def test_rank_deficient_and_idle_heads_have_scores():
    V = torch.zeros(2, 16, 3)
    V[0, :, 0] = torch.arange(16.0)
    W_O = torch.ones(2, 3, 16)
    ends = written(LowRank(V, W_O))
    found = scores(ends, [read(LowRank(W_O.mT, V.mT))], torch.ones(2, 2, dtype=torch.bool))[0]
    assert found.tolist() == [[pytest.approx(1.0), 0.0], [0.0, 0.0]]


def test_frames_figures_and_components_agree(toy):
    found = mv.compose(toy, "K")
    frame = found.frame()
    assert len(frame) == 16
    row = frame[(frame["src_label"] == "L0H3") & (frame["dst_label"] == "L1H2")].iloc[0]
    assert row["value"] == float(found.values[0, 3, 1, 2])
    assert row["excess"] == pytest.approx(row["value"] - 1 / 8)
    assert row["shuffled_excess"] == pytest.approx(row["value"] - row["shuffled"])
    parts = mv.compose_components(toy, "K", layer=1, head=2)
    weight = (parts.sigma[0, 3] / parts.sigma[0, 3].norm()).square()
    assert float((weight * parts.values[0, 3].square()).sum().sqrt()) == pytest.approx(row["value"], abs=1e-6)
