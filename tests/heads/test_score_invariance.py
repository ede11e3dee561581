"""Every registered metric under changes that must not matter: bases, rotations, orders, groups, dtype, other prompts."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hand_made import random_model

import mechview as mv
from mechview.heads.registry import load_metrics

METRICS = sorted(name for name, one in load_metrics().items() if str(one.measure.__module__).startswith("mechview."))
PROMPTS = ([3, 9, 4, 17, 9], [8, 1, 30, 2], [21, 5, 21, 7, 6, 12, 35])
GROUPS = 2


@pytest.fixture(scope="module")
def plain():
    """Two layers with gains and biases, grouped heads, RMS norms, float64."""
    model = random_model(layers=2, heads=4, groups=GROUPS, gains=True, norm="rms", seed=11)
    scaled = [dataclasses.replace(a, W_Q=a.W_Q / 8, W_K=a.W_K / 4) for a in model.weights.attentions]
    return with_attentions(model, scaled)


@pytest.fixture(scope="module")
def known(plain):
    return scores(plain)


def with_attentions(model, attentions, **ends):
    weights = dataclasses.replace(model.weights, attentions=tuple(attentions))
    if ends:
        weights = dataclasses.replace(weights, end_weights=dataclasses.replace(weights.end_weights, **ends))
    return dataclasses.replace(model, weights=weights)


def scores(model, **more):
    found = mv.head_scores(model, METRICS, seeds=1, copies=0, **more)
    return {(row.metric, row.layer, row.head): row.value for row in found.rows}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(found, known, bound=1e-9, source=lambda layer, head: (layer, head)):
    measured = 0
    for (metric, layer, head), value in found.items():
        other = known[metric, *source(layer, head)]
        assert value == pytest.approx(other, abs=bound * max(1.0, abs(other)), nan_ok=True), (metric, layer, head)
        measured += not math.isnan(value)
    assert measured > 8 * 10


def test_the_basis_inside_a_head_is_no_matter(plain, known):
    S = drawn(4, 4, seed=1)
    back = torch.linalg.inv(S)
    turned = [
        dataclasses.replace(
            a, W_Q=a.W_Q @ S, b_Q=a.b_Q @ S, W_K=a.W_K @ back.mT, W_V=a.W_V @ S, b_V=a.b_V @ S, W_O=back @ a.W_O
        )
        for a in plain.weights.attentions
    ]
    assert_same(scores(with_attentions(plain, turned)), known)


def test_a_rotation_of_the_stream_is_no_matter_under_rms_norms(plain, known):
    """Gains and biases of norms move into what reads; embedding and unembedding turn with the stream."""
    ends = plain.weights.end_weights
    R = torch.linalg.qr(drawn(32, 32, seed=2)).Q
    unit = [folded(a) for a in plain.weights.attentions]
    turned = [dataclasses.replace(a, W_Q=R.mT @ a.W_Q, W_K=R.mT @ a.W_K, W_V=R.mT @ a.W_V, W_O=a.W_O @ R) for a in unit]
    assert_same(scores(with_attentions(plain, turned, W_E=ends.W_E @ R, W_U=R.mT @ ends.W_U)), known)


def folded(a):
    """The same layer with a gain of one and no bias in its norm."""
    gain, bias = a.norm.gain[:, None], a.norm.bias
    groups = a.kv_head
    q_bias, k_bias, v_bias = ((bias @ W) for W in (a.W_Q, a.W_K, a.W_V))
    norm = dataclasses.replace(a.norm, gain=torch.ones_like(a.norm.gain), bias=None)
    assert groups.tolist() == [0, 0, 1, 1]
    return dataclasses.replace(
        a, norm=norm, W_Q=gain * a.W_Q, W_K=gain * a.W_K, W_V=gain * a.W_V,
        b_Q=a.b_Q + q_bias, b_K=k_bias, b_V=a.b_V + v_bias,
    )  # fmt: skip


def test_the_order_of_groups_and_of_heads_in_them_only_moves_rows(plain, known):
    heads, groups = [3, 2, 0, 1], [1, 0]
    moved = [
        dataclasses.replace(
            a, W_Q=a.W_Q[heads], b_Q=a.b_Q[heads], W_O=a.W_O[heads], W_K=a.W_K[groups], W_V=a.W_V[groups],
            b_V=a.b_V[groups],
        )
        for a in plain.weights.attentions
    ]  # fmt: skip
    assert_same(scores(with_attentions(plain, moved)), known, source=lambda layer, head: (layer, heads[head]))


def test_prompts_are_scored_each_by_itself_in_any_order(plain):
    """No batch, hence no padding: the score of several prompts of several lengths is the mean of their own."""
    together, turned = (scores(plain, text=order) for order in (PROMPTS, PROMPTS[::-1]))
    alone = [scores(plain, text=[prompt]) for prompt in PROMPTS]
    mean = {key: math.fsum(one[key] for one in alone) / len(alone) for key in together}
    assert_same(together, turned, 1e-12)
    assert_same(together, mean, 1e-12)
    assert together["entropy", 0, 0] != pytest.approx(alone[0]["entropy", 0, 0], rel=1e-3)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-4), (torch.bfloat16, 2e-4)])
def test_the_dtype_changes_scores_within_a_bound(plain, dtype, bound):
    """The same numbers held narrower: rounded first, so that only the arithmetic differs.

    A share of names among the largest logits may move by one name where two logits are equal to rounding.
    """

    def cast(record, to):
        tensors = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        changed = {n: t.to(to) for n, t in tensors.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}
        if getattr(record, "norm", None) is not None:
            changed["norm"] = cast(record.norm, to)
        return dataclasses.replace(record, **changed)

    def as_dtype(to):
        weights = plain.weights
        rounded = [[cast(cast(one, dtype), to) for one in many] for many in (weights.attentions, weights.mlps)]
        ends = cast(cast(weights.end_weights, dtype), to)
        return dataclasses.replace(
            plain,
            weights=dataclasses.replace(
                weights, attentions=tuple(rounded[0]), mlps=tuple(rounded[1]), end_weights=ends
            ),
        )

    assert_same(scores(as_dtype(dtype)), scores(as_dtype(torch.float64)), bound)
