"""SmolLM2 against the prototype of the specification: signs and order that another corpus cannot turn."""

from __future__ import annotations

import pytest

from mechview.spins.layers import balance, energies, ladder, ladder_mlp, maxwell, reaction
from mechview.spins.layers.fit import fit_spins

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def tenth(smollm2):
    return fit_spins(smollm2, layers=[10], quick=True, length=64, train=6, test=3, draws=3)


def test_scalar_couplings_fail_in_the_whole_space_and_work_in_a_heads_own(tenth):
    """C.6: H1 .001, H3 .025, READ .118 (shuffled .002); head 8 .62, the best of its layer."""
    assert tenth.row(ladder.H1, 10).value < 0.05
    assert tenth.row(ladder.H3, 10).value < 0.1
    whole, shuffled = tenth.row(ladder.READ, 10), tenth.row(ladder.READ, 10, null="N1")
    assert whole.value > shuffled.null + 0.05
    heads = [tenth.row(ladder.READ, 10, head).value for head in range(9)]
    assert max(range(9), key=lambda head: heads[head]) == 8
    assert heads[8] > tenth.row(ladder.READ, 10, 8, null="N1").null + 0.3


def test_the_mlp_opposes_its_field_with_a_symmetric_matrix(tenth):
    """C.6: s(M) .66 and negative mass .91 token-weighted, nulls at one half; erasure -.23, null 0 +- .012."""
    for quantity in (reaction.SHARE, reaction.NEGATIVE):
        row = tenth.row(quantity, 10, metric="tw")
        assert row.value > row.null_hi + 0.05
    erased = tenth.row(energies.ERASURE, 10)
    assert erased.value < min(erased.null_lo, -0.1)
    assert tenth.row(reaction.REACTION["symmetric"], 10, metric="tw").value > 0.1
    assert tenth.row(maxwell.MLP, 10).value > tenth.row(maxwell.MLP, 10).null_hi


def test_what_the_specification_calls_vacuous_is_not_informative(tenth):
    """M1 and M3 explain at most .02; the curl is below that of rotated keys."""
    for quantity in (ladder_mlp.M1, ladder_mlp.M3, ladder_mlp.M3C, ladder.H7):
        assert tenth.row(quantity, 10).verdict != "informative"
    assert tenth.row(balance.CURL, 10).value < tenth.row(balance.CURL, 10, null="N3 rotated keys").null
