"""Copying, cues and probes: planted states, a model that copies by construction, and toy beside its twin."""

from __future__ import annotations

import pytest
import torch

import mechview as mv
from conftest import family
from mechview.errors import UnsupportedError, UsageError
from mechview.figures import by_lag
from mechview.recurrent.probe import probe
from mechview.tables import check_schema


def test_a_probe_finds_what_was_put_into_the_state_and_nothing_else():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(8, (40, 20), generator=generator)
    states = torch.randn(40, 20, 24, generator=generator)
    states[:, 3:, :8] += 4 * torch.nn.functional.one_hot(labels[:, :-3], 8)
    planted, empty = (probe(states, labels, lag, 8, generator) for lag in (3, 1))
    assert planted.accuracy > 0.95
    assert planted.control < 0.3
    assert empty.accuracy < 0.3
    assert planted.chance == 1 / 8
    assert planted.n == 10 * 17


@pytest.fixture(scope="module")
def pair(toy):
    return mv.recall(toy, "twin", rows=8)


def test_toy_copies_and_its_twin_does_not(pair):
    frame = check_schema(pair.frame(), "memory")
    assert set(frame["over"]) == {"behaviour"}
    assert pair.value("transformer", "loss_drop", 50) > 5
    assert pair.value("lstm", "loss_drop", 50) < 0.5
    assert pair.value("transformer", "loss_at_distance", 50) < pair.value("lstm", "loss_at_distance", 50) - 4
    assert pair.value("lstm", "probe_accuracy", 0) > 0.6 > pair.value("lstm", "probe_accuracy", 16)
    with pytest.raises(UsageError, match="no loss_drop of the lstm at 7"):
        pair.value("lstm", "loss_drop", 7)


def test_both_read_the_very_same_tokens(toy, pair):
    alone = mv.recall(toy, rows=8)
    for quantity, lag in (("loss_first_copy", 50), ("loss_at_distance", 20), ("cue_gain", 5)):
        assert alone.value("transformer", quantity, lag) == pair.value("transformer", quantity, lag)
    other = mv.recall(toy, rows=8, seed=1)
    assert other.value("transformer", "loss_first_copy", 50) != alone.value("transformer", "loss_first_copy", 50)


def test_a_behaviour_has_a_figure_by_lag(pair):
    figure = by_lag(pair.frame(), "probe_accuracy", "probe", "accuracy")
    assert {trace.name for trace in figure.data} == {"transformer all", "lstm all"}
    assert pair.figure().data


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_models_that_foretell_no_next_token_are_refused(name):
    with pytest.raises(UnsupportedError, match="does not foretell the next token"):
        mv.recall(family(name)[0], rows=2)
