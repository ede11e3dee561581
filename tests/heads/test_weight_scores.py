"""Scores from weights alone: against direct computation, against random models, and under changes that mean nothing."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hand_made import random_model
from scipy.stats import binom

import mechview as mv
from conftest import family
from mechview.errors import UnsupportedError, UsageError
from mechview.heads.geometry import directionality
from mechview.heads.relations import hits
from mechview.heads.words import ordinal_lists, relation_names, relation_pairs, single_token
from mechview.lowrank import LowRank
from mechview.models.positions import position_bias, rotation


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "falcon_grouped", "opt_post"])
def test_copying_is_that_of_the_dense_circuit(name):
    """Eigenvalues of `E M U` over the whole vocabulary, V x V, against those of the r x r product."""
    model, _ = family(name)
    from mechview.heads.vocabulary import Reading, embedding, unembedding

    ids = torch.arange(100)
    ends = model.weights.ends()
    U = unembedding(model.weights, ends, ids, model.shape.stacks[0], Reading())
    f = mv.head_factors(model, layer=1, head=1)
    square = embedding(ends, ids) @ f.message.dense().double() @ U.columns(ids).mT
    exact = torch.linalg.eigvals(square)
    found = mv.copying(model, layers=[1]).heads[1]
    rank = len(found.eigenvalues)  # the others are zero but for rounding
    exact = exact[exact.abs().argsort(descending=True)[:rank]]
    assert found.score.value == pytest.approx(float(exact.sum().real / exact.abs().sum()), abs=1e-6)
    torch.testing.assert_close(found.eigenvalues.abs(), exact.abs(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_copying_and_symmetry_of_random_models_lie_in_their_band():
    model = random_model(layers=6, heads=8, width=6, d_model=48, gains=True, norm="rms", seed=2)
    rows = [h.score for h in mv.copying(model, draws=200).heads]
    symmetry = [row for row in mv.geometry(model, draws=200).rows if row.metric == "pattern_symmetry"]
    for found in (rows, symmetry):
        outside = sum(abs(row.z) > 1.96 for row in found)
        assert len(found) == 48
        assert outside <= binom.ppf(0.99, 48, 0.05)


def test_the_toys_induction_heads_have_positive_eigenvalues(toy):
    found = mv.copying(toy)
    for head in (1, 2, 3):
        assert found.score(f"L1H{head}").z > 4
    eig = found.frame()
    own = eig[(eig["label"] == "L1H1") & eig["draw"].isna()]
    assert own["score"].iloc[0] == pytest.approx(found.score("L1H1").value, abs=1e-9)
    assert eig["draw"].nunique() == 16


def rewritten(model, **changes):
    weights = model.weights
    return dataclasses.replace(weights, attentions=tuple(
        dataclasses.replace(a, **{name: change(a) for name, change in changes.items()}) for a in weights.attentions))  # fmt: skip


def test_scores_do_not_change_with_the_basis_inside_a_head():
    model = random_model(layers=2, norm="rms", gains=True, seed=7)
    S = torch.randn(4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    T = torch.linalg.inv(S)
    other = rewritten(
        model, W_Q=lambda a: a.W_Q @ S, W_K=lambda a: a.W_K @ T.mT, W_V=lambda a: a.W_V @ S, W_O=lambda a: T @ a.W_O
    )
    for measure in (
        lambda m: [h.score.value for h in mv.copying(m).heads],
        lambda m: [row.value for row in mv.geometry(m).rows],
        lambda m: [row.value for row in mv.copy_scores(m, space="embed").rows],
        lambda m: mv.similarity(m).values.flatten().tolist(),
        lambda m: mv.similarity(m, side="pattern", space="tokens").values.flatten().tolist(),
    ):
        assert measure(other) == pytest.approx(measure(model), abs=1e-8)


def test_a_rotation_of_the_stream_leaves_symmetry_and_changes_directionality():
    generator = torch.Generator().manual_seed(1)
    left, right = (
        torch.randn(1, 24, 3, generator=generator, dtype=torch.float64),
        torch.ones(1, 24, 3, dtype=torch.float64),
    )
    left[0, 0] = 9.0
    R = torch.linalg.qr(torch.randn(24, 24, generator=generator, dtype=torch.float64)).Q
    plain, turned = LowRank(left, right.mT), LowRank(R @ left, right.mT @ R.mT)
    assert LowRank(left[0], right[0].mT).symmetry() == pytest.approx(
        LowRank(R @ left[0], right[0].mT @ R.mT).symmetry()
    )
    assert float(directionality(plain)) == -1.0
    assert float(directionality(turned)) != pytest.approx(-1.0)


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "falcon_grouped", "qwen3", "gemma2"])
def test_symmetry_and_directionality_are_those_of_the_dense_pattern(name):
    model, _ = family(name)
    rows = mv.geometry(model, offset=2).rows
    for layer, head in ((0, 1), (1, model.shape.n_heads - 1)):
        P = mv.head_factors(model, layer=layer, head=head).pattern(2).dense().double()
        mine = {row.metric: row.value for row in rows if (row.layer, row.head) == (layer, head)}
        assert mine["pattern_symmetry"] == pytest.approx(float((P * P.mT).sum() / P.square().sum()), abs=1e-6)
        r, c = (x.norm(dim=1) for x in (P, P.mT))
        r, c = (float((x - x.mean() - 2 * x.std())[x > x.mean() + 2 * x.std()].sum()) for x in (r, c))
        assert mine["pattern_directionality"] == pytest.approx((c - r) / (c + r) if c + r else 0.0, abs=1e-6)
    total = sum(mv.head_factors(model, layer=0, head=h).pattern(2).dense().double() for h in range(model.shape.n_heads))
    whole = mv.geometry(model, layers=[0], offset=2).layers[0]
    assert whole.symmetry == pytest.approx(float((total * total.mT).sum() / total.square().sum()), abs=1e-6)


@pytest.mark.parametrize("name", ["llama", "gptj", "llama_yarn", "gpt_neox"])
def test_offset_curves_are_those_of_dense_patterns(name):
    model, _ = family(name)
    found = mv.offset_curves(model, layer=1, head=2, offsets=[0, 1, 7, -3])
    factors = mv.head_factors(model, layer=1, head=2)
    P0 = factors.pattern(0).dense().double()
    for n, t in enumerate((0, 1, 7, -3)):
        P = factors.pattern(t).dense().double()
        assert float(found.norm[n]) == pytest.approx(float(P.norm()), rel=1e-6)
        assert float(found.cosine[n]) == pytest.approx(float((P * P0).sum() / (P.norm() * P0.norm())), abs=1e-6)
        assert float(found.symmetry[n]) == pytest.approx(float((P * P.mT).sum() / P.square().sum()), abs=1e-6)


def test_random_factors_follow_the_closed_form_of_the_cosine():
    """Mean over 300 random heads against tr R(t) / d_head, within 4 standard errors."""
    model, _ = family("llama")
    rotary = model.weights.attention(0).rotary
    generator = torch.Generator().manual_seed(0)
    Q, K = (torch.randn(300, 200, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    R = rotation(rotary, 5, 8)
    flat = [((Q @ turn) @ K.mT).flatten(1) for turn in (R, torch.eye(8, dtype=torch.float64))]
    cosine = torch.nn.functional.cosine_similarity(*flat)
    null = mv.offset_curves(model, layer=0, head=0, offsets=[5]).cosine_null
    assert abs(float(cosine.mean()) - float(null)) < 4 * float(cosine.std()) / math.sqrt(300) + 0.01


def test_the_toys_previous_token_head_scores_most_at_offset_one(toy):
    found = mv.offset_curves(toy, layer=0, head=3, offsets=list(range(0, 65)))
    assert int(found.kernel.argmax()) == 1
    other = mv.offset_curves(toy, layer=1, head=1, offsets=list(range(0, 65)))
    assert float(found.kernel[1] - found.kernel[2:].max()) > float(other.kernel[1] - other.kernel[2:].max())


@pytest.mark.parametrize("name", ["bloom", "t5", "gpt2"])
def test_kernels_of_other_positions(name):
    model, _ = family(name)
    found = mv.offset_curves(model, layer=0, head=1, offsets=[0, 2, 5])
    attention = model.weights.attention(0)
    if name == "gpt2":
        p, P = model.weights.ends().W_pos.double(), mv.head_factors(model, layer=0, head=1).pattern().dense().double()
        score = attention.scale * p @ P @ p.mT
        expected = [score.diagonal(-t).mean() for t in (0, 2, 5)]
    else:
        at = torch.tensor([9])
        bias = position_bias(attention.position_bias, at, torch.arange(10), attention.scale)[1, 0].double()
        expected = [bias[9 - t] - (bias[9] if name == "bloom" else 0) for t in (0, 2, 5)]
    torch.testing.assert_close(found.kernel, torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert found.cosine.isnan().all()
    with pytest.raises(UnsupportedError, match="does not depend on distance"):
        mv.offset_curves(random_model(layers=1), layer=0, head=0)


def test_hits_count_ties_against_themselves():
    logits = torch.tensor([[3.0, 2.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert hits(logits, torch.tensor([0, 1, 3]), 1).tolist() == [[True, False, False], [False] * 3]
    assert hits(logits, torch.tensor([0, 1, 3]), 3).tolist() == [[True, True, False], [False] * 3]


def test_relation_scores_are_shares_of_dense_rows(toy):
    """Against the full message of one head, row by row, at the embedding."""
    pairs = [
        (" king", " kings"),
        (" man", " men"),
        (" son", " sons"),
        (" day", " days"),
        (" he", " she"),
        (" hand", " hands"),
    ]
    pairs = [
        (s, t)
        for s, t in pairs
        if all(len(toy.tokenizer(x, add_special_tokens=False)["input_ids"]) == 1 for x in (s, t))
    ]
    pairs += [(n, n + 1) for n in range(300, 306)]
    found = mv.relation_scores(toy, pairs, k=50, layers=[1], space="embed").of("L1H2", "relation_own")
    ids = [
        [toy.tokenizer(x, add_special_tokens=False)["input_ids"][0] if isinstance(x, str) else x for x in pair]
        for pair in pairs
    ]
    rows = mv.message_tokens(toy, layer=1, head=2, sources=[s for s, _ in ids], k=50)
    top = rows.ids[rows.high.column].view(len(ids), 50)
    assert found.value == pytest.approx(sum(t in row for (_, t), row in zip(ids, top.tolist(), strict=True)) / len(ids))


def test_the_toys_induction_heads_copy_tokens_and_suppress_none(toy):
    rows = mv.copy_scores(toy)
    for head in (1, 2, 3):
        assert rows.of(f"L1H{head}", "copy").z > 10
        assert rows.of(f"L1H{head}", "copy_suppression").value == 0.0
    assert rows.of("L0H3", "copy").z < 4
    assert mv.copy_scores(toy, seed=1, layers=[1]).of("L1H1", "copy").value == pytest.approx(
        rows.of("L1H1", "copy").value, abs=0.15
    )


def test_bundled_words_are_pairs_and_lists():
    assert {"country_capital", "singular_plural", "year_next"} <= set(relation_names())
    for name in relation_names():
        pairs = relation_pairs(name)
        assert len(pairs) >= 30
        assert len({p.source for p in pairs}) == len(pairs)
        assert all(p.source.strip() == p.source != p.target for p in pairs)
    assert ordinal_lists()["days"][:2] == ["Monday", "Tuesday"]
    with pytest.raises(UsageError, match="is not a relation"):
        relation_pairs("king_queen")


def test_words_take_part_as_single_tokens_only(toy):
    assert single_token("man", toy.tokenizer) == toy.tokenizer(" man", add_special_tokens=False)["input_ids"][0]
    assert single_token("incomprehensible", toy.tokenizer) is None
    with pytest.raises(UsageError, match="a relation needs 5 pairs"):
        mv.relation_scores(toy, "country_capital")
    model, _ = family("gpt2")
    with pytest.raises(UsageError, match="no tokenizer"):
        mv.relation_scores(model, "year_next")
    with pytest.raises(UnsupportedError, match="not linear"):
        mv.copy_scores(family("bert")[0])


def test_similarity_is_the_cosine_of_dense_maps_and_blind_to_the_basis_through_tokens(toy):
    old = mv.load("toy", revision="step-002000")
    found = mv.similarity(toy, old, side="message")
    A = mv.head_factors(toy, layer=1, head=1).message.dense().double()
    B = mv.head_factors(old, layer=1, head=3).message.dense().double()
    assert float(found.values[5, 7]) == pytest.approx(float((A * B).sum() / (A.norm() * B.norm())), abs=1e-6)
    assert [found.nearest(label, 1)[0][0] for label in found.labels_a] == list(found.labels_b)
    assert mv.similarity(toy).nearest("L1H1", 1)[0][0] in ("L1H2", "L1H3")
    with pytest.raises(UsageError, match="compare with space='tokens'"):
        mv.similarity(toy, family("gpt2")[0])
    with pytest.raises(UsageError, match="do not share a vocabulary"):
        mv.similarity(toy, family("gpt2")[0], space="tokens")


def test_heads_of_one_model_written_in_two_bases_are_the_same_through_tokens():
    model = random_model(layers=2, seed=3)
    d = model.shape.d_model
    R = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(6), dtype=torch.float64)).Q
    a = model.weights.attentions
    turned = [dict(W_Q=R.mT @ w.W_Q, W_K=R.mT @ w.W_K, W_V=R.mT @ w.W_V, W_O=w.W_O @ R) for w in a]
    other = mv.from_arrays(W_E=model.weights.ends().W_E @ R, W_U=R.mT @ model.weights.ends().W_U, layers=turned)
    for side in ("pattern", "message"):
        through = mv.similarity(model, other, side=side, space="tokens").values
        torch.testing.assert_close(through.diagonal(), torch.ones(8, dtype=torch.float64))
        assert float(mv.similarity(model, other, side=side).values.diagonal().abs().max()) < 0.5


def test_readings_hold_tokens_against_two_controls(toy):
    found = mv.svd_readings(toy, layer=1, head=1, components=2, k=6)
    assert len(found.lists) == 8
    assert {part.end for part in found.lists} == {"read", "written"}
    for part in found.lists:
        assert abs(part.shuffled_mean) < 0.1 < part.random_mean
    U, S, _ = mv.head_factors(toy, layer=1, head=1).message.svd()
    E = toy.weights.ends().W_E.double()[1:]
    first = next(p for p in found.lists if (p.index, p.end, p.sign) == (0, "read", 1))
    projected = (E - E.mean(0)) @ U[:, 0].double()
    assert first.ids.tolist() == (projected.topk(6).indices + 1).tolist()
    assert first.share == pytest.approx(float(S[0] ** 2 / S.square().sum()))
    with pytest.raises(UsageError, match="not a side"):
        mv.svd_readings(toy, layer=1, head=1, side="value")
