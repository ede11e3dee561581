"""Scores two ways: through `pattern(offset)` and through rotated queries and keys; and what follows the content."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import families
from conftest import family
from mechview.factors import factor_head, homogeneous
from mechview.models.norms import apply_norm, norm_scale
from mechview.models.scores import attention_scores, pattern_of
from mechview.models.weights import Alibi, AttentionWeights, HeadNorm, RelativeBias
from mechview.scores import content_of, scores_of, writes_of
from test_factors import attention, drawn, rotary

D, LONG = 48, 14
CLOSE = dict(rtol=0, atol=1e-10)


def both(weights: AttentionWeights, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    y = x if y is None else y
    factors = [factor_head(weights, head, fold=False) for head in range(len(weights.W_Q))]
    return scores_of(factors, weights, x, y), attention_scores(weights, x, y)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_both_ways_agree_to_float64_in_every_family(name: str) -> None:
    weights = family(name, "float64")[0].weights
    for stack in weights.shape.stacks:
        for layer in range(weights.shape.layers(stack)):
            layer_weights = weights.attention(layer, stack)
            keys = drawn(9, D, seed=2) if stack == "cross" else None
            factored, plain = both(layer_weights, drawn(LONG, D, seed=1), keys)
            size = plain[~plain.isneginf()].abs().max()
            assert torch.equal(plain.isneginf(), factored.isneginf())
            assert_close(torch.nan_to_num(factored / size, neginf=0), torch.nan_to_num(plain / size, neginf=0), **CLOSE)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", families.FAMILIES)
def test_what_parity_measures_is_what_pattern_affine_gives(name: str, fold: bool) -> None:
    """Parity multiplies all heads at once; the factors a user gets must be the same maps, offset by offset."""
    weights = family(name, "float64")[0].weights
    layer = weights.attention(1)
    factors = [factor_head(layer, head, fold) for head in range(len(layer.W_Q))]
    x = homogeneous(drawn(LONG, D, seed=11))
    content = content_of(factors, x, x)
    for head, i, j in ((0, 0, 0), (1, 7, 6), (2, 13, 0), (3, 3, 9)):
        pattern = factors[head].pattern_affine(i - j, length=LONG).dense()
        assert_close(content[head, i, j], x[i] @ pattern @ x[j], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bert", "cohere"])
def test_folded_factors_reach_the_same_scores_from_the_bare_stream(name: str) -> None:
    weights = family(name, "float64")[0].weights.attention(1)
    stream = drawn(LONG, D, seed=3)
    folded = [factor_head(weights, head, fold=True) for head in range(len(weights.W_Q))]
    over_rho, reads = stream / norm_scale(stream, weights.norm), apply_norm(stream, weights.norm)
    ours, plain = scores_of(folded, weights, over_rho, over_rho), attention_scores(weights, reads, reads)
    assert_close(ours, plain, rtol=1e-10, atol=1e-10)


def test_scores_spelled_out_for_one_pair() -> None:
    """scale * (q . k), then the cap, by hand."""
    weights, x = attention(softcap=3.0), drawn(5, D, seed=4)
    q = x[4] @ weights.W_Q[3] + weights.b_Q[3]
    k = x[2] @ weights.W_K[1] + weights.b_K[1]
    for scores in both(weights, x):
        assert float(scores[3, 4, 2]) == pytest.approx(3 * math.tanh(0.25 * float(q @ k) / 3), abs=1e-12)


@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 1), (True, 3), (True, 50)])
def test_masks(causal: bool, window: int | None) -> None:
    for scores in both(attention(causal=causal, window=window), drawn(6, D)):
        for i in range(6):
            for j in range(6):
                seen = (j <= i or not causal) and (window is None or i - j < window)
                assert bool(scores[0, i, j].isneginf()) is not seen


def test_alibi_before_the_scale_is_scaled_and_after_it_is_not() -> None:
    x, slopes = drawn(6, D, seed=5), torch.tensor([0.5, 0.25, 0.125, 1.0])
    plain = attention_scores(attention(), x, x)
    for before, factor in ((True, 0.25), (False, 1.0)):
        for scores in both(attention(position_bias=Alibi(slopes, before_scale=before)), x):
            added = (scores - plain)[:, -1]
            assert_close(added, factor * slopes.double()[:, None] * torch.arange(6), **CLOSE)


def test_a_relative_bias_of_far_pairs_is_shared_and_the_sides_differ() -> None:
    x, table = drawn(40, D, seed=6), drawn(8, 4, seed=7)
    plain = attention_scores(attention(causal=False), x, x)
    bias = RelativeBias(table, max_distance=20, bidirectional=True)
    added = attention_scores(attention(causal=False, position_bias=bias), x, x) - plain
    assert_close(added[:, 0, 0], table[0], **CLOSE)
    assert_close(added[:, 5, 4], table[1], **CLOSE)
    assert_close(added[:, 4, 5], table[5], **CLOSE)
    assert_close(added[:, 39, 0], added[:, 30, 1], **CLOSE)
    assert float((added[:, 39, 0] - added[:, 0, 39]).abs().max()) > 1e-3


def test_a_norm_of_queries_across_heads_has_one_scale_for_all() -> None:
    x = drawn(5, D, seed=8)
    norms = {across: HeadNorm("rms", torch.ones(4, 8, dtype=torch.float64), 1e-6, across) for across in (True, False)}
    q = torch.einsum("pm,hmd->hpd", x, attention().W_Q) + attention().b_Q[:, None]
    plain = attention_scores(attention(causal=False), x, x)
    for across, axes in ((True, (0, 2)), (False, (2,))):
        rho = (q.square().mean(axes, keepdim=True) + 1e-6).sqrt()
        for scores in both(attention(causal=False, q_norm=norms[across]), x):
            assert_close(scores, plain / rho, **CLOSE)


def test_sinks_take_their_share_of_each_row() -> None:
    scores, sinks = drawn(2, 3, 3), torch.tensor([0.0, 2.0], dtype=torch.float64)
    pattern = pattern_of(scores, sinks)
    total = scores.exp().sum(-1) + sinks.exp()[:, None]
    assert_close(pattern, scores.exp() / total[..., None], **CLOSE)
    assert float(pattern.sum(-1).max()) < 1
    assert_close(pattern_of(scores), scores.softmax(-1), **CLOSE)


def test_writes_are_patterns_times_messages_with_the_value_bias_by_row_sum() -> None:
    weights, y = attention(), drawn(5, D, seed=9)
    pattern = 0.5 * drawn(4, 5, 5).softmax(-1)
    factors = [factor_head(weights, head, fold=False) for head in range(4)]
    values = torch.einsum("pm,hmd->hpd", y, weights.W_V)[weights.kv_head] + weights.b_V[weights.kv_head][:, None]
    assert_close(writes_of(factors, pattern, y), pattern @ values @ weights.W_O, **CLOSE)
    silent = torch.zeros_like(y)
    bias_alone = torch.einsum("hd,hdm->hm", weights.b_V[weights.kv_head], weights.W_O)
    assert_close(writes_of(factors, pattern, silent), 0.5 * bias_alone[:, None].expand(-1, 5, -1), **CLOSE)


def test_scores_of_rotary_heads_do_not_change_when_all_positions_move() -> None:
    """Content alone: the same two vectors at the same distance score alike wherever they stand."""
    weights, x = attention(rotary=rotary()), drawn(2, D, seed=10)
    repeated = x.repeat(4, 1)
    for scores in both(weights, repeated):
        assert_close(scores[:, 3, 0], scores[:, 7, 4], **CLOSE)
        assert_close(scores[:, 3, 2], scores[:, 5, 4], **CLOSE)
        assert float((scores[:, 3, 0] - scores[:, 3, 2]).abs().max()) > 1e-3
