"""Hand-made models against the original libraries, against planted truths and against their own identities."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.testing import assert_close

from mechview.errors import HeadError, MechviewError, ModelError, PromptError, UsageError
from mechview.models.arrays import ACTIVATIONS, ArrayWeights, array_weights, run_arrays
from mechview.models.capture import Capture

IDS = [3, 17, 4, 4, 29, 0, 11, 8, 17, 5]
VOCAB, D, HEADS, D_HEAD, D_MLP, CONTEXT = 30, 16, 4, 4, 24, 12
EXACT = dict(rtol=0, atol=1e-10)


@contextmanager
def float64_throughout() -> Iterator[None]:
    """The original library with its float32 islands (norms, rotary angles, softmax) computed in float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(Tensor, "float", Tensor.double)
        yield


def drawn(module: nn.Module) -> nn.Module:
    """Every parameter anew, so that no bias is zero and no gain is one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(1 + 0.3 * noise if p.ndim == 1 else 0.3 * noise)
    return module.eval()


def reads(W: Tensor, d_head: int = D_HEAD) -> Tensor:
    """A torch Linear's `[head * d_head, d_model]` as `[head, d_model, d_head]`."""
    return W.detach().unflatten(0, (-1, d_head)).transpose(1, 2)


def writes(W: Tensor, d_head: int = D_HEAD) -> Tensor:
    return W.detach().T.unflatten(0, (-1, d_head))


def split(b: Tensor, d_head: int = D_HEAD) -> Tensor:
    return b.detach().unflatten(0, (-1, d_head))


SIZES: dict[str, Any] = dict(
    vocab_size=VOCAB, hidden_size=D, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=D_MLP,
    max_position_embeddings=CONTEXT, attn_implementation="eager",
)  # fmt: skip
LLAMA = SIZES | dict(
    num_key_value_heads=2, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2, pad_token_id=0, attention_bias=True,
    tie_word_embeddings=False,
)  # fmt: skip


def llama_arrays(model: Any, d_head: int) -> dict[str, Any]:
    layers = []
    for block in model.model.layers:
        a, m = block.self_attn, block.mlp
        fused = getattr(m, "gate_up_proj", None)
        gate, up = fused.weight.chunk(2) if fused is not None else (m.gate_proj.weight, m.up_proj.weight)
        layers.append(dict(
            W_Q=reads(a.q_proj.weight, d_head), W_K=reads(a.k_proj.weight, d_head), W_V=reads(a.v_proj.weight, d_head),
            W_O=writes(a.o_proj.weight, d_head), b_Q=split(a.q_proj.bias, d_head), b_K=split(a.k_proj.bias, d_head),
            b_V=split(a.v_proj.bias, d_head), b_O=a.o_proj.bias, W_gate=gate.T, W_in=up.T, W_out=m.down_proj.weight.T,
            ln1=block.input_layernorm.weight, ln2=block.post_attention_layernorm.weight,
        ))  # fmt: skip
    return dict(
        W_E=model.model.embed_tokens.weight, W_U=model.lm_head.weight.T, layers=layers, norm="rms", eps=1e-6,
        final_norm=model.model.norm.weight, position="rotary", activation="silu",
    )  # fmt: skip


def assert_same_pass(capture: Capture, logits: Tensor, attentions: tuple[Tensor, ...]) -> None:
    assert capture.logits is not None
    assert_close(capture.logits, logits.detach(), **EXACT)
    for (_, layer), found in capture.attention.items():
        assert_close(found.pattern, attentions[layer][0].detach(), **EXACT)


@pytest.mark.parametrize(
    ("config", "architecture", "d_head", "rope", "rotary"),
    [
        ("LlamaConfig", "LlamaForCausalLM", 4, {"rope_theta": 500.0}, {"base": 500.0}),
        ("GlmConfig", "GlmForCausalLM", 8, {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
         {"width": 4, "interleaved": True}),
    ],
)  # fmt: skip
def test_rotary_models_are_the_original(
    config: str, architecture: str, d_head: int, rope: dict[str, Any], rotary: dict[str, Any]
) -> None:
    with float64_throughout():
        settings = LLAMA | dict(head_dim=d_head, rope_parameters={"rope_type": "default", **rope})
        model = drawn(getattr(hf, architecture)(getattr(hf, config)(**settings)).double())
        expected = model(torch.tensor([IDS]), output_attentions=True)
    arrays = llama_arrays(model, d_head)
    ours = array_weights(**arrays, rotary=rotary)
    assert_same_pass(run_arrays(ours, IDS), expected.logits[0], expected.attentions)
    assert (ours.shape.n_heads, ours.shape.n_kv_heads, ours.shape.n_ctx, ours.shape.tied) == (4, 2, None, False)
    for key in rotary:
        other = run_arrays(array_weights(**arrays, rotary={k: v for k, v in rotary.items() if k != key}), IDS)
        assert not torch.allclose(other.logits, expected.logits[0], atol=1e-3)


def gpt2_arrays(model: Any) -> dict[str, Any]:
    t, layers = model.transformer, []
    for block in t.h:
        (Q, K, V), (q, k, v) = block.attn.c_attn.weight.T.chunk(3), block.attn.c_attn.bias.chunk(3)
        layers.append(dict(
            W_Q=reads(Q), W_K=reads(K), W_V=reads(V), W_O=writes(block.attn.c_proj.weight.T),
            b_Q=split(q), b_K=split(k), b_V=split(v), b_O=block.attn.c_proj.bias,
            ln1=(block.ln_1.weight, block.ln_1.bias),
            ln2=(block.ln_2.weight, block.ln_2.bias), W_in=block.mlp.c_fc.weight, b_in=block.mlp.c_fc.bias,
            W_out=block.mlp.c_proj.weight, b_out=block.mlp.c_proj.bias,
        ))  # fmt: skip
    return dict(
        W_E=t.wte.weight, W_pos=t.wpe.weight, layers=layers, norm="layer", final_norm=(t.ln_f.weight, t.ln_f.bias),
        position="learned", activation="gelu_new",
    )  # fmt: skip


@pytest.fixture(scope="module")
def gpt2() -> Any:
    config = hf.GPT2Config(
        vocab_size=VOCAB, n_embd=D, n_layer=2, n_head=HEADS, n_positions=CONTEXT, bos_token_id=1, eos_token_id=2,
        attn_implementation="eager",
    )  # fmt: skip
    return drawn(hf.GPT2LMHeadModel(config).double())


def test_gpt2_is_the_original(gpt2: Any) -> None:
    ours, expected = array_weights(**gpt2_arrays(gpt2)), gpt2(torch.tensor([IDS]), output_attentions=True)
    assert_same_pass(run_arrays(ours, torch.tensor(IDS)), expected.logits[0], expected.attentions)
    assert (ours.shape.n_ctx, ours.shape.tied, ours.shape.stacks) == (CONTEXT, True, ("decoder",))
    other = run_arrays(array_weights(**gpt2_arrays(gpt2), eps=0.1), IDS)
    assert not torch.allclose(other.logits, expected.logits[0], atol=1e-3)


def test_bert_is_the_original_after_its_embedding_norm() -> None:
    model = drawn(hf.BertModel(hf.BertConfig(**SIZES, hidden_act="gelu")).double())
    model.embeddings.LayerNorm = nn.Identity()
    expected = model(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True)
    layers = []
    for block in model.encoder.layer:
        a, out, up, down = block.attention.self, block.attention.output, block.intermediate.dense, block.output
        layers.append(dict(
            W_Q=reads(a.query.weight), W_K=reads(a.key.weight), W_V=reads(a.value.weight), W_O=writes(out.dense.weight),
            b_Q=split(a.query.bias), b_K=split(a.key.bias), b_V=split(a.value.bias), b_O=out.dense.bias,
            ln1=(out.LayerNorm.weight, out.LayerNorm.bias), ln2=(down.LayerNorm.weight, down.LayerNorm.bias),
            W_in=up.weight.T, b_in=up.bias, W_out=down.dense.weight.T, b_out=down.dense.bias,
        ))  # fmt: skip
    e = model.embeddings
    ours = array_weights(
        W_E=e.word_embeddings.weight, W_pos=e.position_embeddings.weight + e.token_type_embeddings.weight[0],
        layers=layers, norm="layer", placement="post", eps=1e-12, position="learned", activation="gelu", causal=False,
    )  # fmt: skip
    capture = run_arrays(ours, IDS)
    last = expected.hidden_states[-1][0]
    assert_same_pass(capture, last @ e.word_embeddings.weight.T, expected.attentions)
    for layer in range(2):
        assert_close(capture.post["encoder", layer], expected.hidden_states[layer + 1][0].detach(), **EXACT)
    assert ours.shape.stacks == ("encoder",)
    assert (ours.attention(0).norm.kind, ours.mlp(1).stream_norm.kind) == ("none", "layer")


def random_arrays(dtype: type = np.float64, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Three heads on two key/value heads; the second layer has no MLP."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return (0.5 * rng.standard_normal(shape)).astype(dtype)

    def layer() -> dict[str, Any]:
        return dict(
            W_Q=draw(3, 6, 4), W_K=draw(2, 6, 4), W_V=draw(2, 6, 4), W_O=draw(3, 4, 6), b_Q=draw(3, 4), b_K=draw(2, 4),
            b_V=draw(2, 4), b_O=draw(6), kv_head=[0, 1, 0],
        )  # fmt: skip

    mlp = dict(W_in=draw(6, 8), W_out=draw(8, 6), b_in=draw(8), b_out=draw(6))
    return dict(W_E=draw(5, 6), W_U=draw(6, 5), b_U=draw(5), layers=[layer() | mlp, layer()]) | changes


def run(ids: list[int] | None = None, **changes: Any) -> Capture:
    return run_arrays(array_weights(**random_arrays(**changes)), [0, 3, 1, 4, 4] if ids is None else ids)


def logits(arrays: dict[str, Any]) -> Tensor:
    found = run_arrays(array_weights(**arrays), [1, 2, 3]).logits
    assert found is not None
    return found


def norms(placement: str) -> dict[str, Any]:
    arrays = random_arrays()
    arrays["layers"][0] |= dict(ln1=np.full(6, 1.5), ln2=(None, np.full(6, 0.2)))
    return arrays | dict(norm="layer", placement=placement, final_norm=np.full(6, 0.7))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_capture_adds_up(placement: str) -> None:
    weights = array_weights(**norms(placement))
    capture = run_arrays(weights, [0, 3, 1, 4, 4])
    stream = weights.ends().W_E[[0, 3, 1, 4, 4]]
    for layer in range(2):
        w, found, mlp = weights.attention(layer), capture.attention["decoder", layer], capture.mlp["decoder", layer]
        assert_close(found.stream, stream)
        heads = torch.stack([found.z[:, h] @ w.W_O[h] for h in range(3)])
        assert_close(heads.sum(0) + w.b_O, found.written)
        values = found.source @ w.W_V[w.kv_head] + w.b_V[w.kv_head][:, None]
        assert_close(found.z, (found.pattern @ values).transpose(0, 1))
        assert_close(found.scores.exp() / found.scores.exp().sum(-1, keepdim=True), found.pattern)
        assert torch.equal(found.scores.isneginf(), torch.ones(5, 5).triu(1).bool().expand(3, 5, 5))
        expected_reads = nn.functional.layer_norm(stream, [6]) * (1.5 if layer == 0 else 1.0)
        assert_close(found.reads, expected_reads if placement == "pre" else stream)
        after = stream + found.written
        if placement == "post":
            after = nn.functional.layer_norm(after, [6]) * (1.5 if layer == 0 else 1.0)
        assert_close(mlp.stream, after)
        stream = after + mlp.written
        if placement == "post" and layer == 0:
            stream = nn.functional.layer_norm(stream, [6]) + 0.2
        assert_close(capture.post["decoder", layer], stream)
    logits = 0.7 * nn.functional.layer_norm(stream, [6]) @ weights.ends().W_U + weights.ends().b_U
    assert_close(capture.logits, logits)
    assert capture.backend == "arrays"


def test_a_layer_without_an_mlp_writes_zeros_and_is_not_normalised() -> None:
    weights = array_weights(**norms("post"))
    assert (weights.mlp(1).W_in.shape, weights.mlp(1).stream_norm.kind) == ((6, 0), "none")
    assert not run_arrays(weights, [1, 2]).mlp["decoder", 1].written.any()
    assert weights.shape.d_mlp == 8


def test_mlps_may_differ_in_width() -> None:
    weights = array_weights(**in_layer(W_in=np.ones((6, 9)), W_out=np.ones((9, 6))))
    assert [weights.mlp(layer).W_in.shape[1] for layer in range(2)] == [8, 9]
    assert weights.shape.d_mlp == 9


def shift(n: int) -> np.ndarray:
    """Row `i` looks at column `i - 1`."""
    return np.eye(n, k=-1)


def test_planted_previous_token_and_induction_heads() -> None:
    """Stream: position, own token, previous token, prediction; the second head finds `A B ... A` and says B."""
    vocab, context = 7, 13
    blocks = np.cumsum([0, context, vocab, vocab, vocab])
    place, token, before, says = (slice(a, b) for a, b in pairwise(blocks))
    d, size = int(blocks[-1]), context
    embed, where, read_out = np.zeros((vocab, d)), np.zeros((context, d)), np.zeros((d, vocab))
    embed[:, token], where[:, place], read_out[says] = np.eye(vocab), np.eye(context), np.eye(vocab)

    def head(query: tuple[slice, np.ndarray], key: slice, source: slice, target: slice) -> dict[str, Any]:
        Q, K, V, W_O = (np.zeros((1, d, size)) for _ in range(4))
        where_from, matrix = query
        Q[0, where_from, : matrix.shape[1]] = matrix
        K[0, key, : key.stop - key.start] = np.eye(key.stop - key.start)
        V[0, source, :vocab], W_O[0, target, :vocab] = np.eye(vocab), np.eye(vocab)
        return dict(W_Q=Q, W_K=K, W_V=V, W_O=W_O.transpose(0, 2, 1), attn_scale=200.0)

    layers = [head((place, shift(context)), place, token, before), head((token, np.eye(vocab)), before, token, says)]
    weights = array_weights(W_E=embed, W_U=read_out, W_pos=where, position="learned", layers=layers)
    ids = [0, 4, 2, 6, 1, 3, 5, 4, 2, 6, 1, 3, 5]
    capture = run_arrays(weights, ids)
    previous, induction = (capture.attention["decoder", layer].pattern[0] for layer in range(2))
    assert_close(previous.diagonal(-1), torch.ones(12, dtype=torch.float64))
    assert_close(induction.diagonal(-5)[2:], torch.ones(6, dtype=torch.float64))
    assert capture.logits[7:12].argmax(-1).tolist() == ids[8:]


def test_kv_head_says_which_head_reads_which_group() -> None:
    arrays = random_arrays()
    spread = copy.deepcopy(arrays)
    for layer in spread["layers"]:
        for key in ("W_K", "W_V", "b_K", "b_V"):
            layer[key] = layer[key][layer["kv_head"]]
        del layer["kv_head"]
    assert_close(logits(arrays), logits(spread))
    assert array_weights(**spread).attention(0).kv_head.tolist() == [0, 1, 2]
    arrays["layers"][0]["kv_head"] = torch.tensor([1, 1, 0])
    assert array_weights(**arrays).attention(0).kv_head.tolist() == [1, 1, 0]
    assert not torch.allclose(logits(arrays), logits(spread))


def test_groups_are_of_equal_size_by_default() -> None:
    layer = {key: np.ones((4 if key in ("W_Q", "W_O") else 2, 2, 2)) for key in ("W_Q", "W_K", "W_V", "W_O")}
    assert array_weights(W_E=np.eye(2), layers=[layer]).attention(0).kv_head.tolist() == [0, 0, 1, 1]


def test_interleaved_pairs_are_a_permutation_of_halves() -> None:
    order = [0, 2, 1, 3]
    halves = random_arrays(position="rotary")
    pairs = copy.deepcopy(halves) | dict(rotary={"interleaved": True})
    for layer in pairs["layers"]:
        layer |= {key: layer[key][..., order] for key in ("W_Q", "W_K", "b_Q", "b_K")}
    assert_close(logits(pairs), logits(halves))
    for rotary in ({"interleaved": True}, {"width": 2}, {"base": 10.0}):
        assert not torch.allclose(logits(halves | dict(rotary=rotary)), logits(halves))


def test_rotary_scores_depend_only_on_the_offset() -> None:
    scores = run([2] * 5, position="rotary").attention["decoder", 0].scores
    for offset in range(5):
        diagonal = scores.diagonal(-offset, 1, 2)
        assert_close(diagonal, diagonal[:, :1].expand_as(diagonal))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: x * torch.special.ndtr(x)),
        ("gelu_new", lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("silu", lambda x: x * torch.sigmoid(x)),
        ("none", lambda x: x),
        ("identity", lambda x: x),
    ],
)
def test_activations_are_their_formulas(name: str, expected: Any) -> None:
    x = torch.linspace(-3, 3, 31, dtype=torch.float64)
    assert_close(ACTIVATIONS[name](x), expected(x))
    layer = {key: np.zeros((1, 31, 1)) for key in ("W_Q", "W_K", "W_V")} | dict(W_O=np.zeros((1, 1, 31)))
    mlp = dict(W_in=np.eye(31), W_out=np.eye(31))
    weights = array_weights(W_E=x[None], layers=[layer | mlp], activation=name)
    assert_close(run_arrays(weights, [0]).mlp["decoder", 0].written[0], expected(x))
    gate = dict(W_gate=2 * np.eye(31), b_in=np.ones(31))
    gated = array_weights(W_E=x[None], layers=[layer | mlp | gate], activation=name)
    assert_close(run_arrays(gated, [0]).mlp["decoder", 0].written[0], expected(2 * x) * (x + 1))


def test_attn_scale_multiplies_the_scores() -> None:
    arrays = random_arrays()
    plain = run().attention["decoder", 0].scores
    arrays["layers"][0]["attn_scale"] = np.float64(1.5)
    weights = array_weights(**arrays)
    assert (weights.attention(0).scale, weights.attention(1).scale) == (1.5, 0.5)
    assert_close(run_arrays(weights, [0, 3, 1, 4, 4]).attention["decoder", 0].scores, 3 * plain)


def test_not_causal_sees_everything() -> None:
    assert run(causal=False).attention["encoder", 1].scores.isfinite().all()


def as_(arrays: Any, change: Any) -> Any:
    if isinstance(arrays, dict):
        return {key: value if key == "kv_head" else as_(value, change) for key, value in arrays.items()}
    if isinstance(arrays, list):
        return [as_(value, change) for value in arrays]
    return change(arrays)


def test_lists_arrays_and_tensors_are_one_model() -> None:
    arrays = random_arrays()
    expected = logits(arrays)
    tensors = as_(arrays, lambda x: torch.tensor(x, requires_grad=True))
    lists = as_(arrays, np.ndarray.tolist)
    assert torch.equal(logits(tensors), expected)
    assert torch.equal(logits(lists | {"W_E": arrays["W_E"]}), expected)
    assert torch.equal(run_arrays(array_weights(**arrays), np.array([1, 2, 3])).logits, expected)
    alone = logits(lists)
    assert alone.dtype == torch.float32
    assert_close(alone.double(), expected, rtol=0, atol=1e-5)


def test_unusual_arrays_are_read_without_a_warning() -> None:
    arrays = random_arrays()
    frozen = arrays["W_E"].copy()
    frozen.setflags(write=False)
    layers = [layer | dict(W_Q=[torch.tensor(head) for head in layer["W_Q"]]) for layer in arrays["layers"]]
    odd = arrays | dict(W_E=frozen, W_U=arrays["W_U"][:, ::-1][:, ::-1], b_U=arrays["b_U"].astype(">f8"), layers=layers)
    assert torch.equal(logits(odd), logits(arrays))


@pytest.mark.parametrize(
    ("given", "kept", "run_in"),
    [
        (np.float32, torch.float32, torch.float32),
        (np.float64, torch.float64, torch.float64),
        (np.float16, torch.float16, torch.float32),
        (np.int64, torch.float32, torch.float32),
    ],
)
def test_dtypes(given: type, kept: torch.dtype, run_in: torch.dtype) -> None:
    weights = array_weights(**random_arrays(given))
    assert {weights.ends().W_E.dtype, weights.attention(1).b_O.dtype, weights.mlp(0).W_in.dtype} == {kept}
    assert weights.mlp(1).W_in.dtype == kept
    assert run_arrays(weights, [1, 2]).logits.dtype == run_in


def test_half_precision_is_run_in_float32() -> None:
    half = as_(random_arrays(), lambda x: torch.tensor(x).bfloat16()) | dict(position="rotary")
    wide = as_(random_arrays(), lambda x: torch.tensor(x).bfloat16().float()) | dict(position="rotary")
    assert torch.equal(logits(half), logits(wide))


def test_the_widest_dtype_wins() -> None:
    arrays = random_arrays(np.float32)
    arrays["layers"][1]["b_O"] = arrays["layers"][1]["b_O"].astype(np.float64)
    arrays["layers"][0]["attn_scale"] = np.float64(0.5)
    assert array_weights(**arrays).ends().W_E.dtype == torch.float64
    arrays["layers"][1]["b_O"] = arrays["layers"][1]["b_O"].astype(np.float16)
    assert array_weights(**arrays).ends().W_E.dtype == torch.float32


def test_the_model_is_a_copy_that_travels() -> None:
    arrays = as_(random_arrays(), torch.tensor)
    weights = array_weights(**arrays, position="rotary")
    before = run_arrays(weights, [1, 2, 3]).logits
    for tensor in (arrays["W_E"], arrays["layers"][0]["W_Q"]):
        tensor.zero_()
    assert torch.equal(run_arrays(weights, [1, 2, 3]).logits, before)
    sent: ArrayWeights = pickle.loads(pickle.dumps(weights))
    assert torch.equal(run_arrays(sent, [1, 2, 3]).logits, before)


def in_layer(layer: int = 1, **keys: Any) -> dict[str, Any]:
    arrays = random_arrays()
    arrays["layers"][layer] |= keys
    return arrays


def assert_refused(arrays: dict[str, Any], error: type[MechviewError], message: str) -> None:
    with pytest.raises(error) as raised:
        array_weights(**arrays)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("layer", "key", "shape", "needed"),
    [
        (0, "W_Q", [6, 4], "head, d_model = 6, d_head"),
        (0, "W_Q", [0, 6, 4], "head, d_model = 6, d_head"),
        (1, "W_Q", [3, 7, 4], "head = 3, d_model = 6, d_head = 4"),
        (1, "W_V", [3, 6, 4], "kv_head = 2, d_model = 6, d_head = 4"),
        (1, "W_O", [3, 6, 4], "head = 3, d_head = 4, d_model = 6"),
        (0, "W_out", [9, 6], "d_mlp = 8, d_model = 6"),
    ],
)
def test_a_wrong_shape_is_named(layer: int, key: str, shape: list[int], needed: str) -> None:
    message = f"layer {layer}: {key} has shape {shape}, but must be [{needed}]"
    assert_refused(in_layer(layer, **{key: np.ones(shape)}), ModelError, message)


def test_numbers_that_are_not_finite_are_counted() -> None:
    W_Q = np.zeros((3, 6, 4))
    W_Q[0, 1, :2] = np.nan, np.inf
    message = "layer 1: W_Q is not finite: 2 of its 72 numbers are NaN or infinite"
    assert_refused(in_layer(W_Q=W_Q), ModelError, message)


@pytest.mark.parametrize("b_O", [["a"] * 6, [[1.0], [1.0, 2.0]], np.ones(6) * 1j, torch.ones(6) * 1j, [None] * 6])
def test_what_is_not_numeric_is_named(b_O: Any) -> None:
    assert_refused(in_layer(b_O=b_O), ModelError, "layer 1: b_O is not a rectangular array of real numbers")


NO_ATTENTION = "is missing; a layer may lack an MLP, but not attention"
NO_NORM = "was given, but norm is 'none': set norm='rms' or norm='layer'"
HALF_AN_MLP = "layer 1: an MLP needs both W_in and W_out, and its other keys need an MLP"
KEYS = "W_Q W_K W_V W_O b_Q b_K b_V b_O kv_head attn_scale ln1 W_in W_out W_gate b_in b_out ln2"


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (dict(W_q=1), UsageError, f"layer 1: W_q is not a key; the keys are {KEYS}"),
        (dict(W_O=None), ModelError, f"layer 1: W_O {NO_ATTENTION}"),
        (dict(W_in=np.ones((6, 8))), ModelError, HALF_AN_MLP),
        (dict(ln2=np.ones(6)), ModelError, HALF_AN_MLP),
        (dict(ln1=np.ones(6)), UsageError, f"layer 1: ln1 {NO_NORM}"),
        (dict(kv_head=None), ModelError, "layer 1: 3 heads cannot share 2 key/value heads evenly; give kv_head"),
        (dict(kv_head=[0, 1, 2]), ModelError, "layer 1: kv_head is [0, 1, 2], but must be 3 numbers from 0 to 1"),
        (dict(kv_head=[0, 1]), ModelError, "layer 1: kv_head is [0, 1], but must be 3 numbers from 0 to 1"),
        (dict(kv_head=[0, 0.5, 1]), ModelError, "layer 1: kv_head is [0, 0.5, 1], but must be 3 numbers from 0 to 1"),
        (dict(attn_scale=0.0), ModelError, "layer 1: attn_scale is 0.0, but must be one positive number"),
        (dict(attn_scale=float("nan")), ModelError, "layer 1: attn_scale is nan, but must be one positive number"),
        (dict(attn_scale=[1.0, 2.0]), ModelError, "layer 1: attn_scale is [1.0, 2.0], but must be one positive number"),
    ],
)
def test_a_wrong_layer_is_named(keys: dict[str, Any], error: type[MechviewError], message: str) -> None:
    assert_refused(in_layer(**keys), error, message)


TURNED = "base must be positive, width even and <= 4"
LEARNED = "W_pos and position='learned' need each other: only one of them was given"
ROTARY = "rotary needs position='rotary' and holds nothing but base, width and interleaved"
ACTIVATION = "must be one of relu, silu, gelu, none, gelu_new, gelu_tanh, identity"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(norm="batch"), "norm is 'batch', but must be one of none, rms, layer"),
        (dict(placement="sandwich"), "placement is 'sandwich', but must be one of pre, post"),
        (dict(position="alibi"), "position is 'alibi', but must be one of none, learned, rotary"),
        (dict(activation="swish"), f"activation is 'swish', but {ACTIVATION}"),
        (dict(eps=-1.0), "eps is -1.0, but must be a finite number of at least 0"),
        (dict(final_norm=np.ones(6)), f"final_norm {NO_NORM}"),
        (dict(position="learned"), LEARNED),
        (dict(W_pos=np.ones((9, 6))), LEARNED),
        (dict(rotary={}), ROTARY),
        (dict(position="rotary", rotary={"theta": 1}), ROTARY),
        (dict(position="rotary", rotary={"width": 3}), f"rotary base = 10000.0, width = 3: {TURNED}"),
        (dict(position="rotary", rotary={"base": 0.0}), f"rotary base = 0.0, width = 4: {TURNED}"),
    ],
)
def test_a_wrong_option_is_named(changes: dict[str, Any], message: str) -> None:
    assert_refused(random_arrays(**changes), UsageError, message)


def test_wrong_arrays_outside_the_layers_are_named() -> None:
    assert_refused(random_arrays(layers=[]), ModelError, "layers is empty: a model needs at least one layer")
    mlp = dict(W_in=np.ones((6, 8)), W_out=np.ones((8, 6)))
    assert_refused(random_arrays(layers=[mlp]), ModelError, f"layer 0: W_Q {NO_ATTENTION}")
    W_U = "W_U has shape [5, 6], but must be [d_model = 6, d_vocab = 5]"
    assert_refused(random_arrays(W_U=np.ones((5, 6))), ModelError, W_U)
    W_pos = "W_pos has shape [9, 5], but must be [n_ctx, d_model = 6]"
    assert_refused(random_arrays(W_pos=np.ones((9, 5)), position="learned"), ModelError, W_pos)
    pair = in_layer(ln1=(np.ones(6), np.ones(5))) | dict(norm="layer")
    assert_refused(pair, ModelError, "layer 1: ln1 has shape [5], but must be [d_model = 6]")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 5], "token id 5 does not exist: the model has ids 0 to 4"),
        ([-1], "token id -1 does not exist: the model has ids 0 to 4"),
        ([0] * 4, "the prompt has 4 tokens, but the model has positions for 3"),
        ([], "a prompt is a non-empty list of integer token ids, without a batch axis"),
        ([[0, 1]], "a prompt is a non-empty list of integer token ids, without a batch axis"),
        ([0.0, 1.0], "a prompt is a non-empty list of integer token ids, without a batch axis"),
    ],
)
def test_prompts_that_cannot_be_read(ids: Any, message: str) -> None:
    weights = array_weights(**random_arrays(W_pos=np.ones((3, 6)), position="learned"))
    with pytest.raises(PromptError) as raised:
        run_arrays(weights, torch.tensor(ids))
    assert str(raised.value) == message


def test_layers_and_stacks_that_do_not_exist() -> None:
    weights = array_weights(**random_arrays())
    assert weights.attention(1, "decoder") is weights.attention(1)
    for ask in (lambda: weights.attention(2), lambda: weights.mlp(-1), lambda: weights.mlp(0, "cross")):
        with pytest.raises(HeadError, match="does not exist: the model has decoder layers 0 to 1"):
            ask()
