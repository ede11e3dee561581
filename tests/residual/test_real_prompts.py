"""SmolLM2 on the shipped IOI table: a positive mean difference, and heads' shares that sum to it."""

from __future__ import annotations

import pytest
import torch

import mechview as mv

pytestmark = pytest.mark.real
KINDS = [(template, order) for template in range(4) for order in ("ABBA", "BABA")]


@pytest.fixture(scope="module")
def asked(smollm2):
    """One prompt of each sentence and order, with what the model's own logits say."""
    table = mv.prompt_table("ioi").fitting(smollm2)
    found = []
    for template, order in KINDS:
        case = table.where(template=template, order=order).cases[0]
        seen = mv.trace(smollm2, case.prompt)
        right, wrong = (smollm2.tokenizer(name)["input_ids"][0] for name in (case.target, case.against))
        own = float(seen.logits[-1, right].double() - seen.logits[-1, wrong].double())
        found.append((own, mv.shares(seen, case.target, case.against)))
    return found


def test_the_indirect_object_is_preferred_on_average(asked):
    differences = torch.tensor([own for own, _ in asked])
    assert float(differences.mean()) > 1.0
    assert int((differences > 0).sum()) >= len(asked) - 1


def test_shares_of_heads_sum_to_the_difference_on_every_prompt_and_on_average(asked):
    for own, parts in asked:
        assert parts.total == pytest.approx(own, abs=1e-6)
        assert float(parts.values.sum()) == pytest.approx(own, abs=1e-3)
        assert parts.error < 1e-4
    mean = torch.stack([parts.values for _, parts in asked]).mean(0)
    average = sum(own for own, _ in asked) / len(asked)
    assert float(mean.sum()) == pytest.approx(average, abs=1e-3)


def test_the_average_is_carried_by_few_late_heads(asked):
    """Moving a name to the end takes heads late in the model: the largest shares of heads are there."""
    components = asked[0][1].components
    mean = torch.stack([parts.values for _, parts in asked]).mean(0)
    heads = {name: float(v) for name, v in zip(components, mean, strict=True) if "H" in name}
    best = max(heads, key=heads.__getitem__)
    assert int(best[1:].split("H")[0]) >= 15
    assert heads[best] > 0.5
