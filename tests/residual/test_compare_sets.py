"""Sets of prompts: means, intervals and tests against plain computations, under the null and with a planted effect."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

import mechview as mv
from mechview.errors import UsageError
from mechview.models.prompt_tables import Case
from mechview.residual.compare import compare
from mechview.residual.compare_statistics import mean_differences
from mechview.residual.ledger import ledger
from mechview.residual.shares import shares

VOCAB, D, HEADS, D_HEAD = 20, 12, 3, 4


@pytest.fixture(scope="module")
def model():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator) * 0.4

    def layer():
        projections = {name: draw(HEADS, D, D_HEAD) for name in ("W_Q", "W_K", "W_V")}
        return {**projections, "W_O": draw(HEADS, D_HEAD, D), "W_in": draw(D, 16), "W_out": draw(16, D)}

    return mv.from_arrays(
        W_E=draw(VOCAB, D), W_U=draw(D, VOCAB), W_pos=draw(12, D), position="learned", norm="rms",
        final_norm=torch.ones(D), layers=[layer(), layer()],
    )  # fmt: skip


def prompts(count: int, seed: int, length: int = 6) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, VOCAB, (count, length)).tolist()


def test_means_are_those_of_single_prompts(model):
    a, b = prompts(4, 1), prompts(5, 2, length=8)
    found = compare(a, b, model=model, target=3, against=4, draws=50)
    assert found.kind == "sets"
    for side, name in ((a, "side_a"), (b, "side_b")):
        alone = [shares(mv.trace(model, prompt), 3, 4) for prompt in side]
        expected = np.mean([each.values.numpy() for each in alone], axis=0)
        assert [getattr(row, name) for row in found.rows] == pytest.approx(expected.tolist())
        assert tuple(row.component for row in found.rows) == alone[0].components
    assert {row.quantity for row in found.rows} == {"share"}
    assert [row.delta for row in found.rows] == pytest.approx([row.side_b - row.side_a for row in found.rows])


def test_without_a_target_values_are_norms_at_the_position(model):
    a, b = prompts(3, 1), prompts(3, 2)
    found = compare(a, b, model=model, position=2, draws=50)
    expected = np.mean([ledger(mv.trace(model, p)).values[:, 2].norm(dim=-1).numpy() for p in a], axis=0)
    assert [row.side_a for row in found.rows] == pytest.approx(expected.tolist(), rel=1e-5)
    assert {row.quantity for row in found.rows} == {"norm"}


def test_a_prompt_does_not_depend_on_its_companions(model):
    """Longer prompts beside it, another order: the same numbers, because nothing is padded."""
    short, long = prompts(3, 1, length=4), prompts(2, 2, length=12)
    first = compare([*short, *long], long, model=model, draws=20)
    second = compare([*long, *reversed(short)], long, model=model, draws=20)
    assert [row.side_a for row in first.rows] == pytest.approx([row.side_a for row in second.rows], rel=1e-12)
    alone = compare(short, long, model=model, draws=20)
    again = [(3 * x.side_a + 2 * x.side_b) / 5 for x in alone.rows]
    assert [row.side_a for row in first.rows] == pytest.approx(again, rel=1e-12)


def test_targets_may_belong_to_each_prompt(model):
    a, b = prompts(3, 1), prompts(3, 2)
    targets = [(3, 4), (5, 6), (7, 8)]
    sides = [[Case(p, *t) for p, t in zip(side, targets, strict=True)] for side in (a, b)]
    found = compare(*sides, model=model, draws=20)
    expected = np.mean([shares(mv.trace(model, p), *t).values.numpy() for p, t in zip(a, targets, strict=True)], axis=0)
    assert [row.side_a for row in found.rows] == pytest.approx(expected.tolist())
    with pytest.raises(UsageError, match="3 of 6 prompts have a target"):
        compare(sides[0], b, model=model)


def test_traces_serve_as_well_as_prompts(model):
    a, b = prompts(3, 1), prompts(3, 2)
    traced = [mv.traces(model, side) for side in (a, b)]
    assert compare(*traced, draws=20).rows == compare(a, b, model=model, draws=20).rows


def test_equal_sets_are_identical(model):
    a = prompts(4, 1)
    for paired in (True, False):
        found = compare(a, a, model=model, paired=paired, draws=20)
        assert found.identical
        assert found.notes[0] == "identical"
        assert {row.delta for row in found.rows} == {0.0}
        assert min(row.p for row in found.rows) > 0.9
        assert {row.p_adjusted for row in found.rows if row.component.endswith("bias")} == {1.0}


def test_one_prompt_has_no_interval_and_says_so(model):
    found = compare(prompts(1, 1), prompts(4, 2), model=model, draws=20)
    assert any("one prompt" in note for note in found.notes)
    assert all(math.isnan(x) for row in found.rows for x in (row.lo, row.hi, row.p, row.p_adjusted))
    assert all(not math.isnan(row.delta) for row in found.rows)


def test_sides_that_change_places_change_signs(model):
    a, b = prompts(6, 1), prompts(5, 2)
    there, back = (compare(*sides, model=model, draws=200) for sides in ((a, b), (b, a)))
    for x, y in zip(there.rows, back.rows, strict=True):
        assert x.delta == pytest.approx(-y.delta)
        assert (x.side_a, x.side_b) == (y.side_b, y.side_a)


def test_chance_is_seeded(model):
    a, b = prompts(8, 1), prompts(8, 2)
    first, again, other = (compare(a, b, model=model, seed=seed, draws=100) for seed in (0, 0, 1))
    assert first.rows == again.rows
    assert first.rows != other.rows
    assert "seed 1" in other.method
    assert "100 draws" in other.method


def test_paired_sets_are_tested_by_their_differences(model):
    """Each prompt of b is a prompt of a with another last token but one: pairs differ less than prompts."""
    a = prompts(10, 1)
    b = [[*p[:-2], (p[-2] + 1) % VOCAB, p[-1]] for p in a]
    paired, unpaired = (compare(a, b, model=model, paired=p, draws=300) for p in (True, False))
    width = {p.method: {r.component: r.hi - r.lo for r in p.rows} for p in (paired, unpaired)}
    assert "paired sign" in paired.method
    assert [r.delta for r in paired.rows] == pytest.approx([r.delta for r in unpaired.rows], abs=1e-12)
    assert width[paired.method]["L0H1"] < width[unpaired.method]["L0H1"]
    with pytest.raises(UsageError, match="one length"):
        compare(a, b[:-1], model=model, paired=True)


def test_sources_are_refused_and_empty_sets_too(model):
    with pytest.raises(UsageError, match="do not share"):
        compare(prompts(2, 1), prompts(2, 2), model=model, by="source")
    with pytest.raises(UsageError, match="set of prompts is empty"):
        compare([], prompts(2, 2), model=model)
    with pytest.raises(UsageError, match="give model="):
        compare(prompts(2, 1), prompts(2, 2))
    with pytest.raises(UsageError, match="draws=0"):
        compare(prompts(2, 1), prompts(2, 2), model=model, draws=0)


def test_p_of_all_permutations_is_exact():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(3, 4)), generator.normal(size=(3, 3)) + 1.0
    found = mean_differences(a, b, paired=False, draws=1000, seed=0)
    for row in range(3):
        pool = np.concatenate([b[row], a[row]])
        null = []
        for chosen in itertools.combinations(range(7), 3):
            rest = [n for n in range(7) if n not in chosen]
            null.append(pool[list(chosen)].mean() - pool[rest].mean())
        observed = found.delta[row]
        upper = np.mean(np.array(null) >= observed - 1e-12)
        lower = np.mean(np.array(null) <= observed + 1e-12)
        assert found.p[row] == pytest.approx(min(1.0, 2 * min(upper, lower)))
    assert found.p_adjusted == pytest.approx(stats.false_discovery_control(found.p))


@pytest.mark.parametrize("paired", [True, False])
def test_p_is_uniform_where_nothing_differs(paired):
    """400 components of pure noise: no more below a level than the binomial law allows in 99 of 100 cases."""
    generator = np.random.default_rng(3)
    a, b = generator.normal(size=(400, 12)), generator.normal(size=(400, 12))
    found = mean_differences(a, b, paired=paired, draws=500, seed=1)
    for level in (0.01, 0.05, 0.2, 0.5):
        low, high = stats.binom.interval(0.99, 400, level)
        assert low <= (found.p <= level).sum() <= high, level
    assert (found.p_adjusted < 0.05).sum() == 0
    covered = ((found.lo <= 0) & (found.hi >= 0)).mean()
    assert 0.88 < covered < 0.98


def test_p_is_uniform_for_random_prompts_of_one_kind(model):
    """Shares of one head on 240 random prompts, split into two sets again and again."""
    values = np.array([shares(mv.trace(model, p), 3, 4).values.numpy() for p in prompts(240, 5, length=5)]).T
    generator = np.random.default_rng(0)
    splits = [generator.permutation(240)[:24] for _ in range(150)]
    head = values[1]
    a, b = (np.stack([head[chosen[half]] for chosen in splits]) for half in (slice(12), slice(12, None)))
    p = mean_differences(a, b, paired=False, draws=300, seed=0).p
    for level in (0.05, 0.2, 0.5):
        assert (p <= level).sum() <= stats.binom.ppf(0.995, 150, level), level


@pytest.mark.parametrize("paired", [True, False])
def test_a_planted_difference_is_found_among_noise(paired):
    generator = np.random.default_rng(4)
    a, b = generator.normal(size=(60, 20)), generator.normal(size=(60, 20))
    b[17] += 2.0
    found = mean_differences(a, b, paired=paired, draws=5000, seed=0)
    assert np.flatnonzero(found.p_adjusted < 0.05).tolist() == [17]
    assert found.lo[17] > 0.5
    assert not found.notes
    few = mean_differences(a, b, paired=paired, draws=200, seed=0)
    assert few.p_adjusted[17] > 0.05
    assert "1200 draws could show it" in few.notes[0]


def test_a_planted_head_is_found_in_prompts_that_differ_by_what_it_copies():
    """One head copies the previous token to the output; only it tells the two sets apart."""
    eye = torch.eye(8)
    previous = torch.cat([torch.zeros(8, 6), eye[:, :2] * 0], dim=1)
    positions = torch.zeros(6, 8)
    layer = {
        "W_Q": torch.zeros(2, 8, 8), "W_K": torch.zeros(2, 8, 8), "W_V": torch.stack([eye, torch.zeros(8, 8)]),
        "W_O": torch.stack([eye, previous]),
    }  # fmt: skip
    planted = mv.from_arrays(W_E=eye, W_U=eye, W_pos=positions, position="learned", layers=[layer])
    rest = [[x, y] for x in (3, 4, 5) for y in (4, 5, 6)]
    a, b = [[1, *r, 7] for r in rest], [[2, *r, 7] for r in rest]
    found = compare(a, b, model=planted, target=2, draws=2000)
    assert found.ranked()[0].component == "L0H0"
    first = next(row for row in found.rows if row.component == "L0H0")
    assert first.delta == pytest.approx(0.25)  # even attention over four tokens, one of them the target
    assert first.lo == first.hi == first.delta  # no resample of prompts can change it
    assert first.p_adjusted < 0.01
    assert {row.p for row in found.rows if row.component in ("embed", "L0H1", "L0.mlp")} == {1.0}
