"""Cosines of the ledger's rows to a direction: of one length with the shares along it, and of known vectors known."""

from __future__ import annotations

import pytest
import torch
from test_ledger import TRACED, traced

import mechview as mv
from mechview.errors import UsageError

LINEAR = [name for name in TRACED if not name.startswith(("bert", "albert"))]


@pytest.mark.parametrize("name", LINEAR)
def test_a_share_is_the_rows_norm_times_its_cosine_times_one_length_for_all(name):
    """Two ways to the same angle: rows carried forwards, and the direction pushed backwards to each component."""
    trace = traced(name)
    parts = mv.ledger(trace, target=5, against=7)
    shares = mv.shares(trace, 5, 7, position=4)
    known = dict(zip(shares.components, shares.values, strict=True))
    along = parts.cos_direction[:, 4] * parts.values[:, 4].double().norm(dim=-1)
    values = torch.stack([known[name] for name in parts.components])
    seen = torch.isfinite(along)  # a row of zeros has no direction
    length = float(values[seen] @ along[seen]) / float(along[seen] @ along[seen])
    assert length > 0
    torch.testing.assert_close(values[seen], length * along[seen], rtol=1e-4, atol=1e-5 * float(values.abs().max()))
    assert float(parts.cos_direction[seen].abs().max()) <= 1 + 1e-9


def test_the_stream_of_one_row_has_cosine_one_to_itself():
    trace = traced("llama")
    parts = mv.ledger(trace, "layer", (0, "pre"), direction=2.5 * trace.stream(0, "pre")[3])
    assert parts.components == ("embed",)
    assert float(parts.cos_direction[0, 3]) == pytest.approx(1, abs=1e-6)
    assert float(parts.cos_direction[0, 5].abs()) < 0.999
    frame = parts.frame()
    assert list(frame["cos_direction"]) == pytest.approx(parts.cos_direction[0].tolist())
    assert set(frame["target"]) == {"vector"}


def test_without_a_direction_there_is_none():
    parts = mv.ledger(traced("llama"))
    assert parts.cos_direction is None
    assert parts.frame()["cos_direction"].isna().all()


def test_a_direction_that_cannot_be_met_is_a_sentence():
    trace = traced("llama")
    with pytest.raises(UsageError, match="leave out the point"):
        mv.ledger(trace, "head", (1, "pre"), target=5)
    with pytest.raises(UsageError, match="one of the two"):
        mv.ledger(trace, target=5, direction=torch.zeros(48))
    with pytest.raises(UsageError, match="against needs a target"):
        mv.ledger(trace, against=5)
    with pytest.raises(UsageError, match=r"the direction has \(3,\) numbers; the stream has 48"):
        mv.ledger(trace, direction=torch.zeros(3))
