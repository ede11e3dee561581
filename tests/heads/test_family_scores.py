"""Word scores and readings of every family of architecture, against whole rows and dense singular vectors."""

from __future__ import annotations

import pytest
import torch

import mechview as mv
from conftest import family
from families import FAMILIES, VOCAB
from mechview.errors import UnsupportedError
from mechview.heads.vocabulary import embedding


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_scores_of_words_are_shares_of_the_full_message_in_every_family(name):
    """Relation, suppression and copying against whole rows of `E M U`; no linear logits, no score."""
    model, _ = family(name)
    pairs = [(n, (3 * n + 1) % VOCAB) for n in range(10, 22)]
    if model.weights.ends().head_transform is not None:
        for refused in (lambda: mv.relation_scores(model, pairs), lambda: mv.copy_scores(model)):
            with pytest.raises(UnsupportedError, match="not linear in the stream"):
                refused()
        return
    found = mv.relation_scores(model, pairs, k=30, layers=[1], space="embed")
    copied = mv.copy_scores(model, k=30, sample=VOCAB, layers=[1], space="embed")
    rows = mv.message_tokens(model, layer=1, head=1, sources=list(range(VOCAB)), k=VOCAB)
    for metric, whole in (("", rows.high), ("suppression", rows.low)):
        best = whole.column.view(VOCAB, VOCAB)[:, :30].tolist()
        share = sum(t in best[s] for s, t in pairs) / len(pairs)
        assert found.of(found.rows[2].label, f"{metric or 'relation'}_own").value == pytest.approx(share)
        own = sum(token in best[token] for token in range(VOCAB)) / VOCAB
        metric = "copy_suppression" if metric else "copy"
        assert copied.of(found.rows[2].label, metric).value == pytest.approx(own, abs=1 / VOCAB)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_readings_are_projections_on_singular_vectors_of_the_dense_map_in_every_family(name):
    model, _ = family(name)
    factors = mv.head_factors(model, layer=1, head=1)
    dense = {"message": factors.message, "pattern": factors.pattern(2 if factors.needs_offset else None)}
    rows = embedding(model.weights.ends(), torch.arange(VOCAB))
    rows = rows - rows.mean(0)
    for side, end, column in (("message", "read", 0), ("pattern", "query", 0), ("pattern", "key", 1)):
        if side == "message" and model.weights.ends().head_transform is not None:
            with pytest.raises(UnsupportedError, match="not linear"):
                mv.svd_readings(model, layer=1, head=1)
            continue
        found = mv.svd_readings(model, layer=1, head=1, side=side, offset=2, components=1, k=5, draws=2)
        U, S, Vh = torch.linalg.svd(dense[side].dense().double())
        along = rows @ (U[:, 0] if column == 0 else Vh[0])
        listed = [part for part in found.lists if part.end == end]
        assert listed[0].sigma == pytest.approx(float(S[0]), rel=1e-5)
        mine = sorted(float(value) for part in listed for value in part.values.abs())
        both = [*along.topk(5).values.tolist(), *(-along).topk(5).values.tolist()]
        assert mine == pytest.approx(sorted(abs(value) for value in both), rel=1e-4, abs=1e-6)
