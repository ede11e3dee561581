"""Maps of a whole layer are those of its heads one by one, in every family."""

from __future__ import annotations

import pytest
import torch

from conftest import family
from families import FAMILIES
from mechview.factors import factor_head
from mechview.heads.layer_maps import messages, patterns


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_batches_equal_the_factors_of_single_heads(name, fold):
    model, _ = family(name)
    for stack in model.shape.stacks:
        attention = model.weights.attention(1, stack)
        sent, looked = messages(attention, fold), patterns(attention, 3, fold)
        for head in range(model.shape.n_heads):
            one = factor_head(attention, head, fold)
            pattern = one.pattern(3 if one.needs_offset else None)
            for batch, single in ((sent, one.message), (looked, pattern)):
                torch.testing.assert_close(batch.left[head], single.left, rtol=1e-6, atol=1e-7)
                torch.testing.assert_close(batch.right[head], single.right, rtol=1e-6, atol=1e-7)
