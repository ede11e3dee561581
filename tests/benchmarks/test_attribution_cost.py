"""Attribution against the original library: same numbers, a hundredth of its memory; times are recorded only.

On fewer layers than GPT-2 small, in its proportions, so that a busy machine can run it; `python -m tests.benchmarks`
measures the whole shape. Bytes are the allocator's, the same on every run, and may fail it.
"""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks.attribution import bench, peaks, race, stacked
from tests.benchmarks.factors import conditions

pytestmark = pytest.mark.bench
# 2 x 6e-8 x sqrt(768) for two float32 dots of 768 terms, relative to the largest share
CLOSE = 4e-6


@pytest.fixture(scope="module")
def small():
    return bench(layers=3, vocabulary=2000)


@torch.no_grad()
def test_the_same_numbers_for_a_target_a_position_and_for_one_target(small, record_property):
    cached, traces = small.their_pass(), small.our_traces()
    import mechview as mv

    pairs = [
        (small.their_heads(cached, small.targets), small.our_heads(traces)),
        (small.their_heads(cached, 5), stacked(mv.direct_attribution(trace, 5) for trace in traces)),
    ]
    for theirs, ours in pairs:
        assert theirs.shape == ours.shape == (36, 8, 256)
        assert float((theirs - ours).abs().max() / ours.abs().max()) < CLOSE
    run = race(lambda: small.their_heads(cached, small.targets), lambda: small.our_heads(traces), repeats=1)
    record_property("time_ratio", round(run.ratio, 2))
    record_property("conditions", conditions())
    print(f"heads, a target a position: {run.ratio:.1f} times faster; {conditions()}")


def test_a_hundredth_of_the_memory(small, record_property):
    """In three layers their stack is a quarter of what it is in twelve; ours does not grow with layers but for answers."""
    theirs, ours = peaks(small)
    record_property("memory_ratio", round(theirs / ours))
    print(f"extra peak memory: {theirs / 1e6:.0f} MB against {ours / 1e6:.1f} MB")
    assert ours * 100 < theirs


@torch.no_grad()
def test_a_pass_with_its_ledger_is_complete(small, record_property):
    run = race(small.their_pass, small.our_ledgers, repeats=1)
    record_property("time_ratio", round(run.ratio, 2))
    print(f"pass and ledger: {run.ratio:.2f} times faster; {conditions()}")
    assert max(one.error for one in small.our_ledgers()) < 1e-5
