"""Roles of a model made by hand: every head does one thing, and is named by it and by nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import mechview as mv

sys.path.insert(0, str(Path(__file__).parent))

import behaving

from mechview.heads.batteries import Batteries

MAYBE = {"L0H0": {"positional"}, "L0H2": {"positional"}}


@pytest.fixture(scope="module")
def found():
    return mv.roles(behaving.model(), seeds=2)


@pytest.mark.parametrize("label", behaving.ROLES)
def test_each_head_is_named_by_what_it_was_built_to_do(found, label):
    """Heads that are exact by position may be called positional too, where the null allows it."""
    named = set(found.card(label).roles)
    assert named - MAYBE.get(label, set()) == behaving.ROLES[label]


def test_scores_of_exact_heads_are_exact(found):
    value = lambda label, metric: found.scores.row(label, metric).value  # noqa: E731
    assert value("L0H0", "previous_token") == pytest.approx(1.0, abs=1e-6)
    assert value("L0H1", "duplicate_token") == pytest.approx(0.5, abs=1e-6)  # half of it rests on the token itself
    assert value("L0H2", "sink_mass") == pytest.approx(1.0, abs=1e-6)
    assert value("L1H0", "induction") > 0.98  # the first position has no previous token: it stands for itself
    assert value("L1H0", "prefix_matching") > 0.98
    assert value("L1H1", "positional_share") == pytest.approx(1.0, abs=1e-6)
    assert value("L1H2", "copying_eigenvalue") == pytest.approx(1.0, abs=1e-9)
    assert value("L1H2", "name_mover") == 1.0
    assert value("L1H3", "copying_eigenvalue") == pytest.approx(-1.0, abs=1e-9)
    assert value("L1H3", "copy_suppression") == 1.0


def test_heads_that_attend_evenly_score_what_even_attention_gives(found):
    """Means of 1 / (visible keys) over the queries that a test counts, prompt by prompt."""
    prompts = Batteries(behaving.model()).draw("repeats", 0)
    even = [sum(1 / (q + 1) for q in range(1, len(p.ids))) / (len(p.ids) - 1) for p in prompts]
    assert found.scores.row("L0H3", "previous_token").value == pytest.approx(sum(even) / len(even), abs=1e-6)
    seconds = [[1 / (q + 1) for q in range(p.period, 2 * p.period)] for p in prompts]
    stripe = sum(sum(rows) / len(rows) for rows in seconds) / len(seconds)
    assert found.scores.row("L0H3", "induction").value == pytest.approx(stripe, abs=1e-6)


def test_a_copier_copies_on_tokens_and_a_suppressor_does_not():
    scores = mv.head_scores(behaving.model(), ["copying"], seeds=1, copies=0)
    assert scores.row("L1H2", "copying").value == pytest.approx(1.0, abs=1e-6)
    assert scores.row("L1H3", "copying").value == pytest.approx(-1.0, abs=1e-6)


def test_permuting_heads_permutes_the_scores():
    order = (2, 0, 3, 1)
    metrics = ["previous_token", "induction", "sink_mass", "name_mover", "copying"]
    plain = mv.head_scores(behaving.model(), metrics, seeds=1, copies=0)
    turned = mv.head_scores(behaving.model(order), metrics, seeds=1, copies=0)
    for metric in metrics:
        for layer in (0, 1):
            for place, source in enumerate(order):
                here, there = turned.row(f"L{layer}H{place}", metric), plain.row(f"L{layer}H{source}", metric)
                assert here.value == pytest.approx(there.value, abs=1e-6, nan_ok=True), metric


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-6), (torch.bfloat16, 1e-6)])
def test_the_dtype_of_the_weights_changes_scores_within_a_bound(dtype, bound):
    """Planted numbers are exact in bfloat16 too, whose passes run in float32."""
    metrics = ["previous_token", "induction", "entropy", "direct_effect_size"]
    plain = mv.head_scores(behaving.model(), metrics, seeds=1, copies=0)
    other = mv.head_scores(behaving.model(dtype=dtype), metrics, seeds=1, copies=0)
    for one, two in zip(plain.rows, other.rows, strict=True):
        assert two.value == pytest.approx(one.value, abs=bound, nan_ok=True), one.label


@pytest.mark.parametrize("method", ["mean", "zero"])
def test_only_heads_of_the_induction_pair_matter_for_repeats(method):
    """The prediction of repeats is made by the pair; copies by even attention move it little."""
    check = mv.causal_check(behaving.model(), ["L0H0", "L1H0", "L0H3"], task="repeats", method=method, others=5)
    assert check.error < 1e-6
    for label in ("L0H0", "L1H0"):
        row = check.row(label, "repeats")
        assert row.value > 0.3
        assert row.outside
    assert check.row("L0H3", "repeats").value == pytest.approx(0.0, abs=1e-6)
