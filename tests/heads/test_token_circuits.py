"""Token circuits against the original library and against dense products, family by family, and their invariances."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import families
import mechview as mv
from mechview.errors import UnsupportedError, UsageError
from mechview.heads.circuits import Thin, best_columns, sampled_ranks, sweep
from mechview.heads.vocabulary import Reading, embedding, first_mlp, kept_ids

IDS = torch.arange(families.VOCAB)
EMBEDDED = [
    "gpt2",
    "opt",
    "opt_post",
    "bloom",
    "bert",
    "albert",
    "gemma2",
    "granite",
    "cohere",
    "t5",
    "llama_bias_wide",
]
WITH_MLP = [*EMBEDDED, "gptj", "olmo2", "mixtral", "gpt_oss", "gemma3", "falcon", "phi3"]
SCORED = [
    "gpt2", "gptj", "gpt_neox", "opt", "bert", "albert", "llama_bias_wide", "qwen3", "olmo2", "cohere_qk_norm", "gemma3",
    "falcon", "phi", "granite", "mixtral",
]  # fmt: skip
POSITIONS = ("wpe", "position_embeddings", "embed_positions")


def unplaced(name: str, silent: bool = False):
    """A family in float64 whose learned positions are zero; `silent` also silences attention of the first block."""
    module = families.FAMILIES[name].build(dtype=torch.float64)
    with torch.no_grad():
        for path, parameter in module.named_parameters():
            if any(part in path for part in POSITIONS):
                parameter.zero_()
        if silent:
            for path, part in module.named_modules():
                if path.endswith(("o_proj", "out_proj", "c_proj", "attention.dense", "attention.output.dense", "SelfAttention.o",
                                  "self_attention.dense", "EncDecAttention.o")) and "mlp" not in path and "ffn" not in path:  # fmt: skip
                    for parameter in part.parameters():
                        parameter.zero_()
    return mv.wrap(module, name=name)


def streams(model, point: str):
    stack = model.shape.stacks[0]
    trace = mv.trace(model, IDS.tolist()[:40])
    return trace, trace.stream(0, point, stack).double(), stack


@pytest.mark.parametrize("name", EMBEDDED)
def test_rows_are_the_stream_before_the_first_block_with_positions_left_out(name):
    """Multipliers, token types, embedding norms and factorised embeddings, against a real pass."""
    model = unplaced(name)
    _, stream, _ = streams(model, "pre")
    rows = embedding(model.weights.ends(), IDS[:40])
    torch.testing.assert_close(rows, stream, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", WITH_MLP)
def test_the_first_mlp_writes_as_in_a_pass_whose_attention_is_silent(name):
    model = unplaced(name, silent=True)
    trace, stream, stack = streams(model, "post")
    written = trace.capture.attention[stack, 0].written
    assert float(written.abs().max()) == 0.0, "the reference's attention is not silent"
    rows = first_mlp(model.weights, stack)(embedding(model.weights.ends(), IDS[:40]))
    torch.testing.assert_close(rows, stream, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", SCORED)
def test_normed_rows_with_biases_give_the_models_own_scores_of_its_first_layer(name):
    """The whole chain against the original library: norms, query/key norms, biases, rotary offsets, groups, scale."""
    model = unplaced(name)
    trace, _, stack = streams(model, "pre")
    window = model.weights.attention(0, stack).window or 40
    for head in (0, model.shape.n_heads - 1):
        for offset in (0, 3):
            found = mv.pattern_pairs(
                model, layer=0, head=head, rows="normed", biases=True, offset=offset, queries=list(range(40)),
                k=families.VOCAB, stack=stack,
            )  # fmt: skip
            square = torch.full((40, families.VOCAB), torch.nan, dtype=torch.float64)
            square[found.high.row, found.high.column] = found.high.score.double()
            theirs = trace.scores[0][head].double() if len(model.shape.stacks) == 1 else None
            q = torch.arange(offset, 40)
            if offset >= window:
                continue
            torch.testing.assert_close(square[q, q - offset], theirs[q, q - offset], rtol=1e-5, atol=1e-5)
            if not model.weights.attention(0, stack).rotary:
                break


@pytest.mark.parametrize(
    "name", ["gpt2", "bloom", "gemma2", "cohere", "granite", "opt_post", "t5", "falcon_grouped", "olmo2"]
)
def test_both_circuits_equal_dense_products(name):
    """`E P E^T` and `E M U` from matrices of full size, the unembedding taken from the module's own logits."""
    model = unplaced(name)
    E = embedding(model.weights.ends(), IDS)
    factors = mv.head_factors(model, layer=1, head=2)
    at = 2 if factors.needs_offset else None
    dense = factors.scale * E @ factors.pattern(at).dense() @ E.mT
    found = mv.pattern_pairs(model, layer=1, head=2, k=10, offset=2)
    _same_as_dense(found, dense)
    _same_as_dense(
        mv.message_tokens(model, layer=1, head=2, k=10), E @ factors.message.dense() @ own_unembedding(model)
    )


def own_unembedding(model):
    """Logits of unit streams behind the final norm's gain and centring, from a difference of the module's own head."""
    ends = model.weights.ends()
    gain = (
        torch.ones(model.shape.d_model, dtype=torch.float64)
        if ends.final_norm.gain is None
        else ends.final_norm.gain.double()
    )
    D = torch.diag(gain)
    if ends.final_norm.kind == "layer":
        D = D - gain[None, :].expand_as(D) / len(gain)
    head = model.module.get_output_embeddings()
    if ends.W_U.shape[0] != head.weight.shape[1]:  # OPT-350m projects down before it unembeds
        D = D @ model.module.model.decoder.project_out.weight.mT
    return D @ head.weight.double().mT * ends.logit_scale


def _same_as_dense(found, dense):
    flat = dense.flatten().sort(descending=True).values
    torch.testing.assert_close(found.high.score.double(), flat[:10], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.low.score.double(), flat.flip(0)[:10], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        dense[found.high.row, found.high.column], found.high.score.double(), rtol=1e-9, atol=1e-12
    )
    assert found.mean == pytest.approx(float(dense.mean()), abs=1e-9)
    assert found.sd == pytest.approx(float(dense.std(correction=0)), rel=1e-9)
    best = dense.argmax(1)
    assert found.accuracy[0].value == pytest.approx(float((best == torch.arange(len(dense))).double().mean()))
    assert found.completeness < 1e-9
    assert found.error < 1e-12


def test_centring_and_unit_rows_are_what_they_say():
    model = unplaced("llama_bias_wide")
    E = embedding(model.weights.ends(), IDS)
    E = E - E.mean(0)
    E = E / E.norm(dim=-1, keepdim=True)
    factors = mv.head_factors(model, layer=1, head=3)
    dense = factors.scale * E @ factors.pattern(0).dense() @ E.mT
    _same_as_dense(mv.pattern_pairs(model, layer=1, head=3, k=10, centre=True, rows="unit"), dense)
    U = own_unembedding(model)
    U = U - U.mean(1, keepdim=True)
    U = U / U.norm(dim=0)
    found = mv.message_tokens(model, layer=1, head=3, k=10, centre=True, rows="unit")
    _same_as_dense(found, E @ factors.message.dense() @ U)


def test_cross_attention_reads_the_encoder_behind_its_final_norm():
    model = unplaced("t5")
    E = embedding(model.weights.ends(), IDS)
    keys = E * model.weights.ends().encoder_final_norm.gain.double()
    factors = mv.head_factors(model, layer=1, head=1, stack="cross")
    dense = factors.scale * E @ factors.pattern().dense() @ keys.mT
    _same_as_dense(mv.pattern_pairs(model, layer=1, head=1, k=10, stack="cross"), dense)
    sent = keys @ factors.message.dense() @ own_unembedding(model)
    _same_as_dense(mv.message_tokens(model, layer=1, head=1, k=10, stack="cross"), sent)
    assert mv.message_tokens(model, layer=1, head=1, stack="cross").label == "X.L1H1"


def test_a_sum_of_heads_is_the_sum_of_their_dense_circuits():
    model = unplaced("gemma2")
    E = embedding(model.weights.ends(), IDS)
    heads = [mv.head_factors(model, layer=n, head=h) for n, h in ((0, 1), (1, 4))]
    dense = sum(E @ f.message.dense() @ own_unembedding(model) for f in heads)
    _same_as_dense(mv.message_tokens(model, heads=[(0, 1), "L1H4"], k=10), dense)


def test_what_cannot_be_computed_is_refused_with_a_sentence():
    for name in ("bert", "albert"):
        with pytest.raises(UnsupportedError, match="not linear in the stream"):
            mv.message_tokens(unplaced(name), layer=0, head=0)
    with pytest.raises(UnsupportedError, match="encoder's stream has no unembedding"):
        mv.message_tokens(unplaced("t5"), layer=0, head=0, stack="encoder")
    bare = mv.from_arrays(W_E=torch.eye(4), layers=[{n: torch.ones(1, 4, 4) for n in ("W_Q", "W_K", "W_V", "W_O")}])
    with pytest.raises(UnsupportedError, match="no MLP"):
        mv.pattern_pairs(bare, layer=0, head=0, space="mlp0")
    with pytest.raises(UsageError, match="is not a choice"):
        mv.pattern_pairs(bare, layer=0, head=0, space="mlp1")
    with pytest.raises(UsageError, match="say which head"):
        mv.pattern_pairs(bare, layer=0)
    with pytest.raises(UsageError, match="at least 1"):
        mv.message_tokens(bare, layer=0, head=0, k=0)


def test_special_and_unused_tokens_stay_out_unless_asked_for(toy, minilm):
    found = mv.message_tokens(toy, layer=1, head=1, k=1)
    assert found.excluded == 1
    assert 0 not in found.ids.tolist()
    assert mv.message_tokens(toy, layer=1, head=1, k=1, special=True).excluded == 0
    with pytest.raises(UsageError, match="takes no part"):
        mv.message_tokens(toy, layer=1, head=1, sources=[0])
    assert mv.message_tokens(toy, layer=1, head=1, k=1, exclude=[5, 9]).excluded == 3
    names = {minilm.tokenizer.convert_ids_to_tokens(i) for i in range(minilm.shape.d_vocab)}
    kept = {
        minilm.tokenizer.convert_ids_to_tokens(i) for i in kept_ids(minilm.shape.d_vocab, minilm.tokenizer).tolist()
    }
    assert {"[unused7]", "[CLS]", "[PAD]"} <= names - kept
    assert {"paris", "the"} <= kept


@pytest.fixture(scope="module")
def thin():
    generator = torch.Generator().manual_seed(1)
    return Thin(*(torch.randn(97, 6, generator=generator, dtype=torch.float64) for _ in range(2)))


@pytest.mark.parametrize("numbers", [97, 500, 10**6])
def test_block_size_changes_nothing_but_memory(thin, numbers):
    whole, found = sweep(thin, 9), sweep(thin, 9, numbers=numbers)
    for one, other in ((whole.high, found.high), (whole.low, found.low)):
        assert (one.row.tolist(), one.column.tolist()) == (other.row.tolist(), other.column.tolist())
    assert found.above.tolist() == whole.above.tolist()
    assert found.total == pytest.approx(whole.total, rel=1e-12)


def test_blocks_hold_no_more_scores_than_they_may(thin):
    sizes = [scores.numel() for _, scores in thin.blocks(500)]
    assert max(sizes) <= 500
    assert sum(sizes) == 97 * 97


def test_each_bounds_the_pairs_of_one_row_and_ranks_are_counts(thin):
    dense = thin.rows @ thin.columns.mT
    few = sweep(thin, 12, each=1, numbers=300).high
    assert len(set(few.row.tolist())) == 12
    torch.testing.assert_close(few.score, dense.amax(1).sort(descending=True).values[:12])
    above, below = sampled_ranks(thin, torch.tensor([3, 50]))
    for place, up, down in zip((3, 50), above.tolist(), below.tolist(), strict=True):
        assert up == int((dense[place] > dense[place, place]).sum())
        assert down == int((dense[place] < dense[place, place]).sum())
    high, low = best_columns(thin, torch.tensor([8]), 4)
    assert high.column.tolist() == dense[8].argsort(descending=True)[:4].tolist()
    assert low.column.tolist() == dense[8].argsort()[:4].tolist()


def rewritten(model, change):
    """The same arrays with every layer's attention changed."""
    weights = model.weights
    attentions = tuple(change(attention) for attention in weights.attentions)
    return dataclasses.replace(weights, attentions=attentions)


def test_circuits_do_not_change_with_the_basis_inside_a_head():
    from hand_made import random_model

    model = random_model(layers=1)
    S = torch.randn(4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    other = rewritten(model, lambda a: dataclasses.replace(
        a, W_Q=a.W_Q @ S, W_K=a.W_K @ torch.linalg.inv(S).mT, W_V=a.W_V @ S, W_O=torch.linalg.inv(S) @ a.W_O))  # fmt: skip
    for one, two in (
        (mv.message_tokens(model, layer=0, head=1, k=5), mv.message_tokens(other, layer=0, head=1, k=5)),
        (mv.pattern_pairs(model, layer=0, head=1, k=5), mv.pattern_pairs(other, layer=0, head=1, k=5)),
    ):
        torch.testing.assert_close(one.high.score, two.high.score, rtol=1e-9, atol=1e-9)
        assert one.high.row.tolist() == two.high.row.tolist()


def test_half_precision_weights_are_upcast_and_stay_near(toy):
    """bfloat16 keeps 8 bits: scores move by less than 2 % of the largest."""
    module = toy.module
    half = mv.wrap(type(module)(module.config).to(torch.bfloat16), tokenizer=toy.tokenizer)
    half.weights.source.module.load_state_dict(module.state_dict())
    words = [" man", " the"]
    one, two = (mv.message_tokens(m, layer=1, head=1, sources=words, k=3) for m in (toy, half))
    at = Reading()
    assert one.reading == at
    best = float(one.high.score.abs().max())
    assert float((one.high.score.double() - two.high.score.double()).abs().max()) < 0.02 * best


def test_the_toys_induction_heads_copy_and_its_previous_token_head_does_not(toy):
    for head in (1, 2, 3):
        found = mv.message_tokens(toy, layer=1, head=head, k=1, space="mlp0")
        one = found.accuracy[1]
        assert one.value > one.null_mean + 5 * max(one.null_sd, 0.01)
    other = mv.message_tokens(toy, layer=0, head=3, k=1).accuracy[1]
    assert abs(other.value - other.null_mean) < 0.02
