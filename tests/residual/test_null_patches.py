"""The null of patching: a prompt patched from itself changes nothing, to the bit, in every family and of every kind."""

from __future__ import annotations

import math

import pytest
from test_patching import CLEAN, CORRUPTED, EVERY, decoder

from conftest import family
from mechview.errors import UsageError
from mechview.residual.patching import patch
from mechview.residual.paths import path_patch


@pytest.mark.parametrize("name", EVERY)
def test_a_prompt_patched_from_itself_changes_nothing_at_all(name):
    model, _ = family(name)
    for what in ("heads", "stream"):
        found = patch(model, CLEAN, CLEAN, 7, 9, what, "all", decoder=decoder(name))
        if what == "heads" or model.shape.placement == "parallel":
            assert {row.change for row in found.rows} == {0.0}
        assert max(abs(row.change) for row in found.rows) < 1e-6  # a middle is reached by way of a sum, and rounds
        assert (found.identical, found.error < 1e-6) == (True, True)
        assert all(math.isnan(row.normalised) for row in found.rows)
        assert found.direction.startswith("identical prompts")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("side", ["q", "k", "v"])
def test_a_path_from_the_same_prompt_carries_nothing_at_all(name, side):
    model, _ = family(name)
    receiver = ("X.L1H1", side) if name == "t5" else (1, 1, side)
    found = path_patch(model, CLEAN, CLEAN, 7, 9, receiver=receiver, decoder=decoder(name))
    assert len(found.rows) > 0
    assert {row.change for row in found.rows} == {0.0}
    assert found.error < 1e-4


def test_prompts_that_differ_where_the_metric_does_not_are_refused():
    """In a causal model nothing after the metric's position reaches it."""
    model, _ = family("gpt2")
    later = CLEAN[:5] + CORRUPTED[5:]
    for call in (patch, lambda *a, **k: path_patch(*a, receiver=(1, 0, "v"), **k)):
        with pytest.raises(UsageError, match="on both prompts: there is no difference to trace"):
            call(model, CLEAN, later, 7, 9, position=2)
