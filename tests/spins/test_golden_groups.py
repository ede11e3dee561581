"""Every golden group is read by a test, or is named here with the part it belongs to or what it does not state."""

from __future__ import annotations

import re
from pathlib import Path

import golden_numbers as golden
import numpy as np
import torch
from golden_numbers import assert_golden, tensor

import mechview as mv

S = mv.spins
CORRESPONDENCE = (
    "attention_row_thermo", "symmetry_score", "detailed_balance", "jacobian_symmetry", "scalar_coupling_fit",
)  # fmt: skip
MEMORY = ("lstm_constant", "lstm_small", "stream_retention", "stream_linear_decay")
UNSTATED = {
    "vector3": "the specification prints sizes of errors to two digits, and no couplings or fields",
    "kl": "two numbers for D = 16 without the two fields; the formulas are tested against each other instead",
    "kinetic_vector_step": "errors to two digits without inputs; their orders in J are tested",
    "afem_largeD": "errors to three digits without saying how the fields grow with D; their order 1/D is tested",
    "et_energy": "no number is printed; its force is tested as the derivative of its energy",
    "entropy_production": "the causal row's couplings are not stated; the other three rows are tested",
}


def read_by_tests() -> set[str]:
    here = Path(__file__).parent
    return {
        name for path in here.glob("test_*.py") for name in re.findall(r'golden\.group\("(\w+)"\)', path.read_text())
    }


def test_every_group_of_the_solvers_is_read_by_a_test():
    solvers = set(golden.everything()) - set(CORRESPONDENCE) - set(MEMORY)
    assert len(solvers) == 15
    assert solvers <= read_by_tests()
    assert read_by_tests() <= set(golden.everything())
    assert not set(UNSTATED) & set(golden.everything())


def test_golden_coupling_term_in_closed_form():
    """Its inputs are not in the file, but in one stream of chance with `C`'s: the file's own m shows which."""
    case, stream = golden.group("eq8_softmax"), np.random.RandomState(3).randn(40)
    n, W_Q, W_K, m = (tensor(part.tolist()) for part in np.split(stream, (12, 20, 28)))
    assert_golden(m, np.ravel(case["m"]).tolist())
    m, n, W_Q, W_K = m.reshape(3, 4), n.reshape(3, 4), W_Q.reshape(2, 4).mT, W_K.reshape(2, 4).mT
    assert_golden(S.coupling_term(n, W_Q, W_K, m @ m.mT, 0.7), case["value"])


def test_divergence_of_two_forms_agree_in_large_dimension():
    """What `kl` would show: at D = 16 the large-D form is near the exact one, and nearer as D grows."""
    off = []
    for dim in (16, 64, 256):
        a, b = torch.zeros(2, dim, dtype=torch.float64)
        a[0], b[1] = dim**0.5 / 2, dim**0.5 / 3
        radius = (dim / 2 - 1) ** 0.5
        values = [float(S.divergence(a, b, 1.0, radius, form)) for form in ("exact", "large_d")]
        off.append(values[1] / values[0] - 1)
    assert off[0] < 0.2
    assert 3 < off[0] / off[1] < 6
    assert 3 < off[1] / off[2] < 5
