"""Factors of single heads: exact identities, planted heads, and the original library's own rotation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers.models.cohere import modeling_cohere
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

import families
import mechview as mv
from conftest import family
from mechview.errors import HeadError, UsageError
from mechview.factors import factor_head, homogeneous
from mechview.models.norms import apply_norm, norm_scale
from mechview.models.positions import rotation
from mechview.models.weights import AttentionWeights, ModelShape, Rotary, Stack

D, D_HEAD = 48, 8
EXACT = dict(rtol=0, atol=1e-12)
ROTARY = [
    "gptj",
    "gpt_neox",
    "falcon",
    "phi",
    "phi3",
    "llama",
    "llama_yarn",
    "llama_longrope",
    "qwen3",
    "gemma3",
    "cohere_qk_norm",
]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(**changes: object) -> AttentionWeights:
    """Four query heads over two key/value heads, in float64, with biases."""
    fields = dict(
        layer=0, stack="decoder", W_Q=drawn(4, D, D_HEAD, seed=1), W_K=drawn(2, D, D_HEAD, seed=2),
        W_V=drawn(2, D, D_HEAD, seed=3), W_O=drawn(4, D_HEAD, D, seed=4), b_Q=drawn(4, D_HEAD, seed=5),
        b_K=drawn(2, D_HEAD, seed=6), b_V=drawn(2, D_HEAD, seed=7), b_O=drawn(D, seed=8),
        kv_head=torch.tensor([0, 0, 1, 1]), scale=0.25,
    )  # fmt: skip
    return AttentionWeights(**{**fields, **changes})


def rotary(base: float = 10.0, width: int = D_HEAD, interleaved: bool = False) -> Rotary:
    turn = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return Rotary(width, interleaved, lambda length: (turn, 1.0))


def head(name: str, layer: int = 1, index: int = 2, stack: Stack = "decoder", fold: bool = False) -> mv.HeadFactors:
    return mv.head_factors(family(name, "float64")[0], layer=layer, head=index, stack=stack, fold=fold)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo", "opt", "bloom", "bert", "albert", "t5"])
def test_without_rotation_the_pattern_is_the_product_of_query_and_key(name: str) -> None:
    weights = family(name, "float64")[0].weights.attention(1)
    factors = head(name)
    for offset in (None, 0, 3):
        assert_close(factors.pattern(offset).dense(), weights.W_Q[2] @ weights.W_K[2].mT, **EXACT)
    assert_close(factors.message.dense(), weights.W_V[2] @ weights.W_O[2], **EXACT)


@pytest.mark.parametrize("name", ROTARY)
def test_at_offset_zero_the_rotation_is_the_squared_attention_factor(name: str) -> None:
    factors = head(name)
    query, key = (side[:-1] if gain is None else side[:-1] @ gain for side, gain in (
        (factors.query, factors.query_gain), (factors.key, factors.key_gain)))  # fmt: skip
    factor = factors.rotary.frequencies(None)[1]
    assert (factor != 1.0) is (name in ("llama_yarn", "llama_longrope"))
    size = torch.ones(len(factors.output), dtype=torch.float64)
    size[: factors.rotary.width] = factor**2
    assert_close(factors.pattern(0).dense(), (query * size) @ key.mT, **EXACT)


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_heads_have_no_pattern_without_an_offset(name: str) -> None:
    factors = head(name)
    assert factors.needs_offset
    for pattern in (factors.pattern, factors.pattern_affine):
        with pytest.raises(UsageError) as error:
            pattern()
        assert str(error.value) == (
            "L1H2 uses rotary positions: its pattern depends on the offset q_pos - k_pos; give offset="
        )


def by_library(q: Tensor, k: Tensor, turn: Rotary, positions: int) -> Tensor:
    """Scores of the original library's own rotation, `[q_pos, k_pos]`."""
    angle = torch.arange(positions)[:, None] * turn.frequencies(None)[0].double()
    w = turn.width
    q4, k4 = q[None, None, :, :w], k[None, None, :, :w]
    if turn.interleaved:
        cos, sin = (f(angle).repeat_interleave(2, dim=-1)[None] for f in (torch.cos, torch.sin))
        q4, k4 = modeling_cohere.apply_rotary_pos_emb(q4, k4, cos, sin)
    else:
        cos, sin = (f(torch.cat([angle, angle], dim=-1))[None] for f in (torch.cos, torch.sin))
        q4, k4 = modeling_llama.apply_rotary_pos_emb(q4, k4, cos, sin)
    q, k = (torch.cat([turned[0, 0].double(), x[:, w:]], dim=-1) for turned, x in ((q4, q), (k4, k)))
    return q @ k.mT


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [4, 8])
def test_the_pattern_at_an_offset_is_the_librarys_rotation(
    interleaved: bool, width: int, float64_throughout: None
) -> None:
    turn = rotary(width=width, interleaved=interleaved)
    weights = attention(rotary=turn)
    x = drawn(9, D, seed=20)
    for index in range(4):
        factors = factor_head(weights, index, fold=False)
        q = x @ weights.W_Q[index] + weights.b_Q[index]
        k = x @ weights.W_K[index // 2] + weights.b_K[index // 2]
        expected = by_library(q, k, turn, len(x))
        for i in range(9):
            for j in range(9):
                score = homogeneous(x[i]) @ factors.pattern_affine(i - j).dense() @ homogeneous(x[j])
                assert_close(score, expected[i, j], rtol=0, atol=1e-9)


def test_interleaved_pairs_are_those_of_gpt_j(float64_throughout: None) -> None:
    turn = rotary(interleaved=True)
    q = drawn(5, D_HEAD, seed=21)
    angle = torch.arange(5)[:, None] * turn.frequencies(None)[0]
    turned = modeling_gptj.apply_rotary_pos_emb(q[None, :, None], angle.sin()[None], angle.cos()[None])[0, :, 0]
    for position in range(5):
        assert_close(q[position] @ rotation(turn, position, D_HEAD), turned[position], **EXACT)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_planted_previous_token_head_peaks_at_offset_one(interleaved: bool) -> None:
    """Its key is its query turned on by one position: the offset is q_pos - k_pos, not the other way."""
    turn = rotary(base=100.0, interleaved=interleaved)
    W = torch.linalg.qr(drawn(D, D_HEAD, seed=9))[0]
    planted = factor_head(
        attention(W_Q=W[None].expand(4, -1, -1), W_K=(W @ rotation(turn, 1, D_HEAD))[None].expand(2, -1, -1), rotary=turn),
        0, fold=False,
    )  # fmt: skip
    strength = {offset: float(planted.pattern(offset).dense().trace()) for offset in range(-3, 4)}
    assert max(strength, key=strength.__getitem__) == 1
    assert strength[1] == pytest.approx(D_HEAD)
    assert strength[-1] < strength[1] - 1


def test_rotations_compose_and_are_orthogonal() -> None:
    turn = rotary()
    R = {t: rotation(turn, t, D_HEAD) for t in range(-7, 8)}
    assert_close(R[3] @ R[4], R[7], **EXACT)
    assert_close(R[-3], R[3].mT, **EXACT)
    assert_close(R[5] @ R[5].mT, torch.eye(D_HEAD, dtype=torch.float64), **EXACT)


FOLDED = ["gpt2", "opt_plain", "bloom", "gpt_neox", "llama", "qwen3", "gemma2", "cohere", "olmo2", "bert", "granite"]


@pytest.mark.parametrize("name", FOLDED)
def test_folded_maps_on_the_stream_are_raw_maps_on_the_normed_input(name: str) -> None:
    weights = family(name, "float64")[0].weights.attention(1)
    raw, folded = (factor_head(weights, 3, fold) for fold in (False, True))
    stream = drawn(6, D, seed=30)
    reads, over_rho = apply_norm(stream, weights.norm), stream / norm_scale(stream, weights.norm)
    for offset in (0, 2):
        ours = homogeneous(over_rho) @ folded.pattern_affine(offset).dense() @ homogeneous(over_rho).mT
        assert_close(
            ours, homogeneous(reads) @ raw.pattern_affine(offset).dense() @ homogeneous(reads).mT, rtol=0, atol=1e-10
        )
    sent, expected = (homogeneous(x) @ f.message_affine.dense() for x, f in ((over_rho, folded), (reads, raw)))
    gain = 1.0 if weights.post_norm.gain is None else weights.post_norm.gain
    assert_close(sent[:, :-1], expected[:, :-1] * gain * weights.multiplier, rtol=0, atol=1e-10)
    assert (raw.folded, folded.folded) == (False, True)


@pytest.mark.parametrize("name", ["gpt2", "bloom", "cohere"])
def test_folding_a_layer_norm_makes_constants_invisible(name: str) -> None:
    factors = head(name, fold=True)
    ones = torch.ones(D, dtype=torch.float64)
    assert float((ones @ factors.pattern(1).dense()).abs().max()) < 1e-12
    assert float((ones @ factors.message.dense()).abs().max()) < 1e-12
    assert float((factors.message.dense() @ ones).abs().max()) > 1e-3, "writes are never centred"


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "olmo2"])
def test_the_affine_message_passes_the_constant_on(name: str, fold: bool) -> None:
    factors = head(name, fold=fold)
    affine = factors.message_affine.dense()
    assert affine.shape == (D + 1, D + 1)
    assert_close(affine[:, -1], torch.eye(D + 1, dtype=torch.float64)[-1], rtol=0, atol=0)
    assert_close(affine[:-1, :-1], factors.message.dense(), **EXACT)
    assert_close(affine[-1, :-1], factors.value[-1] @ factors.output, **EXACT)
    at = 2 if factors.needs_offset else None
    assert_close(factors.pattern_affine(at).dense()[:-1, :-1], factors.pattern(at).dense(), **EXACT)


def test_biases_are_in_the_affine_forms_and_nowhere_else() -> None:
    plain, biased = (factor_head(attention(**none), 1, fold=False)
                     for none in (dict(b_Q=None, b_K=None, b_V=None), {}))  # fmt: skip
    assert_close(plain.pattern().dense(), biased.pattern().dense(), **EXACT)
    assert_close(plain.message.dense(), biased.message.dense(), **EXACT)
    assert float(plain.pattern_affine().dense()[-1].abs().max()) == 0.0
    expected = attention().b_Q[1] @ attention().b_K[0]
    assert_close(biased.pattern_affine().dense()[-1, -1], expected, **EXACT)


def test_each_head_reads_its_own_group() -> None:
    """Planted: group 1 alone has keys and values, so only heads 2 and 3 have maps."""
    silent = torch.stack([torch.zeros(D, D_HEAD, dtype=torch.float64), drawn(D, D_HEAD)])
    factors = [factor_head(attention(W_K=silent, W_V=silent), n, fold=False) for n in range(4)]
    assert [f.kv_head for f in factors] == [0, 0, 1, 1]
    assert [float(f.message.dense().abs().max()) > 0 for f in factors] == [False, False, True, True]
    assert [float(f.pattern().dense().abs().max()) > 0 for f in factors] == [False, False, True, True]
    crossed = factor_head(attention(W_K=silent, W_V=silent, kv_head=torch.tensor([1, 0, 1, 0])), 0, fold=False)
    assert (crossed.kv_head, float(crossed.message.dense().abs().max()) > 0) == (1, True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_give_float64(dtype: torch.dtype) -> None:
    names = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
    halves = {name: getattr(attention(), name).to(dtype) for name in names}
    factors = factor_head(attention(**halves), 2, fold=True)
    assert factors.message.left.dtype == torch.float64
    assert_close(factors.message.dense(), halves["W_V"][1].double() @ halves["W_O"][2].double(), **EXACT)
    assert (
        factor_head(attention(**{n: t.float() for n, t in halves.items()}), 2, fold=True).output.dtype == torch.float32
    )


@pytest.mark.parametrize("turned", [None, rotary()])
def test_maps_do_not_depend_on_the_basis_inside_a_head(turned: Rotary | None) -> None:
    """`W_V A, A^-1 W_O` is the same message; so is `W_Q A, W_K A^-T` the same pattern without rotation."""
    A = drawn(D_HEAD, D_HEAD, seed=40) + 3 * torch.eye(D_HEAD, dtype=torch.float64)
    one, w = attention(rotary=turned), attention()
    changed = dict(W_V=w.W_V @ A, b_V=w.b_V @ A, W_O=A.inverse() @ w.W_O)
    if turned is None:
        changed |= dict(W_Q=w.W_Q @ A, b_Q=w.b_Q @ A, W_K=w.W_K @ A.inverse().mT, b_K=w.b_K @ A.inverse().mT)
    other = attention(rotary=turned, **changed)
    for index in range(4):
        a, b = factor_head(one, index, fold=True), factor_head(other, index, fold=True)
        assert_close(a.message_affine.dense(), b.message_affine.dense(), rtol=0, atol=1e-10)
        assert_close(a.pattern_affine(2).dense(), b.pattern_affine(2).dense(), rtol=0, atol=1e-10)


def test_the_multiplier_of_the_branch_is_part_of_a_folded_message_only() -> None:
    plain, scaled = attention(), attention(multiplier=0.5)
    assert_close(
        factor_head(scaled, 0, True).message.dense(), 0.5 * factor_head(plain, 0, True).message.dense(), **EXACT
    )
    assert_close(factor_head(scaled, 0, False).message.dense(), factor_head(plain, 0, False).message.dense(), **EXACT)


def test_the_attention_scale_stands_beside_the_pattern() -> None:
    one, other = factor_head(attention(scale=0.25), 0, True), factor_head(attention(scale=2.0), 0, True)
    assert (one.scale, other.scale) == (0.25, 2.0)
    assert_close(one.pattern().dense(), other.pattern().dense(), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "layer", "index", "stack", "message"), [
    ("llama", 2, 0, "decoder", "layer 2 does not exist: this model has layers 0 to 1"),
    ("llama", 0, 6, "decoder", "head 6 does not exist: layer 0 has heads 0 to 5"),
    ("t5_deep_decoder", 2, 0, "encoder", "layer 2 does not exist: this model has layers 0 to 1"),
    ("t5_deep_decoder", 3, 0, "cross", "layer 3 does not exist: this model has layers 0 to 2"),
    ("t5_deep_decoder", 2, 4, "cross", "head 4 does not exist: layer 2 has heads 0 to 3"),
])  # fmt: skip
def test_heads_that_do_not_exist(name: str, layer: int, index: int, stack: Stack, message: str) -> None:
    with pytest.raises(HeadError) as error:
        mv.head_factors(family(name)[0], layer=layer, head=index, stack=stack)
    assert str(error.value) == message


def test_a_layers_heads_are_its_heads_one_by_one() -> None:
    model = family("qwen3")[0]
    for index, factors in enumerate(mv.layer_factors(model, layer=1)):
        alone = mv.head_factors(model.weights, layer=1, head=index)
        assert (factors.label, factors.kv_head) == (alone.label, alone.kv_head) == (f"L1H{index}", index // 3)
        assert torch.equal(factors.message.dense(), alone.message.dense())


def test_dynamic_and_long_rotary_patterns_depend_on_the_length() -> None:
    for name, short, long in (("llama_dynamic", 12, 90), ("llama_longrope", 12, 30)):
        factors = head(name)
        assert not torch.allclose(factors.pattern(5, length=short).dense(), factors.pattern(5, length=long).dense())
        assert torch.equal(factors.pattern(5, length=short).dense(), factors.pattern(5).dense())
    fixed = head("llama_yarn")
    assert torch.equal(fixed.pattern(5, length=12).dense(), fixed.pattern(5, length=40).dense())


def test_shapes_promise_what_the_weights_hold() -> None:
    for name in families.FAMILIES:
        shape: ModelShape = family(name)[0].shape
        factors = head_of(name)
        assert factors.query.shape == (shape.d_model + 1, shape.d_head)
        assert factors.output.shape == (shape.d_head, shape.d_model)


def head_of(name: str) -> mv.HeadFactors:
    return mv.head_factors(family(name)[0], layer=0, head=0)
