"""The rules of the verdicts on made-up series whose answer is known."""

from __future__ import annotations

import zlib

import pytest
import torch

from mechview.spins.layers import controls as c
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.linear import Sums
from mechview.spins.layers.reaction import Reaction
from mechview.spins.layers.relaxation import FROZEN
from mechview.spins.layers.verdicts import Judge, Verdict
from mechview.spins.layers.work import seeded

FIT = "H3 scalar couplings"


def series(samples: Samples, key: Key, level: float, spread: float = 0.01, count: int = 12) -> None:
    """`count` sequences around a level, exactly centred on it."""
    noise = torch.randn(count, generator=seeded(zlib.crc32(repr(key).encode()), count), dtype=torch.float64)
    for value in level + spread * (noise - noise.mean()):
        samples.add(key, float(value), 1.0)


def judged(levels: dict[str, float], tw: dict[str, float] | None = None, layers: int = 1, name: str = FIT, **keywords):
    samples = Samples()
    for metric, chosen in (("raw", levels), ("tw", tw or {})):
        for control, level in chosen.items():
            for draw in range(1 if control == c.REAL else 20):
                shift = 0.0 if control == c.REAL else 0.004 * (draw - 9.5) / 9.5
                series(samples, Key(name, None, metric, control, draw), level + shift, **keywords)
    rows = Judge(seeded(0), layers).rows(0, samples, frozenset([FIT]))
    raw = [row for row in rows if row.metric == "raw"]
    return next((row for row in raw if row.decides), raw[0])


ABOVE = {c.REAL: 0.4, c.SHUFFLE: 0.1, c.VALUES: 0.2}


def test_beating_both_controls_in_both_metrics_is_informative():
    row = judged(ABOVE, {c.REAL: 0.3, c.SHUFFLE: 0.1, c.VALUES: 0.1})
    assert row.verdict == Verdict.informative
    assert row.null_name == c.VALUES
    assert row.value == pytest.approx(0.4)
    assert row.null == pytest.approx(0.2)
    assert row.n_null == 20


def test_a_sign_that_changes_when_tokens_weigh_alike_is_weak():
    assert judged(ABOVE, {c.REAL: 0.1, c.SHUFFLE: 0.0, c.VALUES: 0.2}).verdict == Verdict.weak


def test_beating_the_shuffle_alone_is_weak():
    row = judged({c.REAL: 0.4, c.SHUFFLE: 0.1, c.VALUES: 0.4})
    assert (row.verdict, row.null_name) == (Verdict.weak, c.VALUES)


def test_beating_the_destroyed_structure_alone_is_weak_for_couplings():
    row = judged({c.REAL: 0.4, c.SHUFFLE: 0.4, c.VALUES: 0.1})
    assert (row.verdict, row.null_name) == (Verdict.weak, c.SHUFFLE)


def test_beating_none_is_vacuous():
    assert judged({c.REAL: 0.4, c.SHUFFLE: 0.4, c.VALUES: 0.4}).verdict == Verdict.vacuous
    assert judged({c.REAL: 0.1, c.SHUFFLE: 0.4, c.VALUES: 0.4}).verdict == Verdict.vacuous  # a fit must be above


def test_no_structure_to_destroy_is_not_applicable():
    row = judged({c.REAL: 0.4, c.SHUFFLE: 0.1})
    assert row.verdict == Verdict.not_applicable
    assert judged({c.REAL: 0.4}).null_name == ""


def test_a_significant_but_small_excess_is_weak():
    row = judged({c.REAL: 0.24, c.SHUFFLE: 0.1, c.VALUES: 0.2}, spread=0.001)
    assert row.verdict == Verdict.weak
    assert "0.040" in row.reason


def test_scalars_may_differ_either_way_and_proximity_only_downwards():
    assert judged({c.REAL: 0.1, c.KEYS: 0.3}, name="curl index").verdict == Verdict.informative
    assert judged({c.REAL: 0.3, c.KEYS: 0.1}, name="curl index").verdict == Verdict.informative
    assert judged({c.REAL: 0.1, c.TOKEN: 0.3}, name=FROZEN).verdict == Verdict.informative
    assert judged({c.REAL: 0.3, c.TOKEN: 0.1}, name=FROZEN).verdict == Verdict.vacuous


def test_many_rows_need_a_clearer_difference():
    close = {c.REAL: 0.118, c.KEYS: 0.1}
    assert judged(close, name="curl index").verdict == Verdict.informative
    assert judged(close, name="curl index", layers=10_000).verdict == Verdict.vacuous


def test_a_control_of_the_whole_model_decides_where_there_is_no_other():
    row = judged({c.REAL: 0.4, c.PERMUTED: 0.1, c.INITIAL: 0.9}, name="E_1 of spins")
    assert row.verdict == Verdict.informative
    assert row.null_name == c.PERMUTED


def test_the_interval_is_that_of_a_mean_over_sequences():
    row = judged({c.REAL: 1.0, c.KEYS: 0.0}, name="curl index", spread=0.3, count=200)
    assert (row.hi - row.lo) / 2 == pytest.approx(1.96 * 0.3 / 200**0.5, rel=0.2)
    assert row.n_sequences == 200


def test_false_alarms_are_rarer_than_one_in_twenty():
    """Real and null series from one law: sequences and draws both vary."""
    alarms = 0
    for trial in range(120):
        generator, samples = seeded(trial), Samples()
        own = torch.randn(12, 1, generator=generator, dtype=torch.float64)
        for draw in range(21):
            level = torch.randn(1, generator=generator, dtype=torch.float64)
            values = level + own + 0.5 * torch.randn(12, 1, generator=generator, dtype=torch.float64)
            key = Key("curl index") if draw == 20 else Key("curl index", control=c.KEYS, draw=draw)
            for value in values:
                samples.add(key, float(value))
        [row] = Judge(seeded(trial, 1)).rows(0, samples, frozenset())
        alarms += row.verdict == Verdict.informative
    assert alarms <= 6


def test_the_jackknife_spread_is_that_of_leaving_each_block_out():
    generator = seeded(4)
    found = Reaction()
    X = [torch.randn(30, 4, generator=generator, dtype=torch.float64) for _ in range(8)]
    M = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    for x in X:
        y = x @ M + torch.randn(30, 4, generator=generator, dtype=torch.float64)
        found.blocks["raw"].append(Sums(x.mT @ x, x.mT @ y, x.sum(0), y.sum(0), y.square().sum(), 30))
    found.ready()
    spread = found.spread("raw")["M4 symmetric share s(M)"]
    assert 0.001 < spread < 0.1
    found.blocks["raw"] = [found.blocks["raw"][0]] * 8
    assert found.spread("raw")["M4 symmetric share s(M)"] < 1e-9
