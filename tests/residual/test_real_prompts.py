"""SmolLM2 on the shipped IOI table: a positive mean difference of logits, and a ledger whose rows sum to it.

Light passes over all 48 prompts. Measured (float32): mean difference 4.02, positive on 43 of 48; the largest share is
L23H3's, 2.47.
"""

from __future__ import annotations

import pytest
import torch

import mechview as mv

pytestmark = pytest.mark.real
PROMPTS = 48
# 30 layers of float32 writes are summed: a few units in the last place of the largest row
CLOSE = 5e-5


@pytest.fixture(scope="module")
def asked(smollm2):
    """Of each prompt what the model's own logits say, and the shares at its last position."""
    found = []
    for case in mv.prompt_table("ioi").fitting(smollm2):
        seen = mv.write_trace(smollm2, case.prompt)
        right, wrong = (smollm2.tokenizer(name)["input_ids"][0] for name in (case.target, case.against))
        own = float(seen.logits[-1, right].double() - seen.logits[-1, wrong].double())
        found.append((own, mv.direct_attribution(seen, case.target, case.against)))
    return found


def test_the_indirect_object_is_preferred(asked):
    """36 of 48 by chance: p = 3.5e-4 for a model that does not prefer it."""
    differences = torch.tensor([own for own, _ in asked])
    assert len(differences) == PROMPTS
    assert float(differences.mean()) == pytest.approx(4.02, abs=0.05)
    assert int((differences > 0).sum()) >= 36


def test_rows_of_the_ledger_sum_to_the_difference_on_every_prompt_and_on_average(asked):
    for own, parts in asked:
        assert float(parts.total[-1]) == pytest.approx(own, abs=1e-5)
        assert float(parts.values[:, -1].double().sum()) == pytest.approx(own, abs=CLOSE)
        assert parts.error < CLOSE
    mean = mv.mean_attribution([parts for _, parts in asked])
    assert mean.total == pytest.approx(sum(own for own, _ in asked) / PROMPTS, abs=1e-5)
    assert float(mean.mean.sum()) == pytest.approx(mean.total, abs=CLOSE)


def test_the_average_is_carried_by_few_late_heads(asked):
    """Moving a name to the end takes heads late in the model: the largest shares of heads are there."""
    mean = mv.mean_attribution([parts for _, parts in asked])
    heads = {name: float(v) for name, v in zip(mean.components, mean.mean, strict=True) if "H" in name}
    first, second, third = sorted(heads, key=heads.__getitem__, reverse=True)[:3]
    assert first == "L23H3"
    assert all(int(name[1:].split("H")[0]) >= 20 for name in (second, third))
    assert heads[first] + heads[second] + heads[third] > mean.total / 2


def test_shares_of_one_position_in_float64_agree(asked, smollm2):
    case = mv.prompt_table("ioi").fitting(smollm2).cases[0]
    parts = mv.shares(mv.trace(smollm2, case.prompt), case.target, case.against)
    assert parts.components == asked[0][1].components
    torch.testing.assert_close(parts.values, asked[0][1].values[:, -1].double(), rtol=0, atol=2e-4)
