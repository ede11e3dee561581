"""Two layers set by hand, every direction of the stream named: who writes what is known, and so is the answer.

L0H1 copies the previous token into `prev`; L1H0 looks for the token whose `prev` is its own and copies it into
`next` (induction); L0H0 and L1H1 write nothing. Queries and keys are large, so that patterns are all but 0 or 1.
"""

from __future__ import annotations

import pytest
import torch

import mechview as mv

TOKENS, POSITIONS, SHARP = 6, 10, 12.0
TOKEN, PREV, NEXT = (slice(n * TOKENS, (n + 1) * TOKENS) for n in range(3))
PLACE = slice(3 * TOKENS, 3 * TOKENS + POSITIONS)
D_MODEL, D_HEAD = 3 * TOKENS + POSITIONS, POSITIONS
NAMED = {"token": TOKEN, "prev": PREV, "next": NEXT, "place": PLACE}
PROMPT = [1, 4, 2, 5, 3, 1, 4]


def reads(where: slice, shift: int = 0, size: float = 1.0) -> torch.Tensor:
    """A matrix that reads one group of directions into the head's first coordinates, shifted."""
    matrix, width = torch.zeros(D_MODEL, D_HEAD), where.stop - where.start
    for n in range(width):
        if 0 <= n + shift < D_HEAD:
            matrix[where.start + n, n + shift] = size
    return matrix


def writes(where: slice) -> torch.Tensor:
    return reads(where).mT.clone()


@pytest.fixture(scope="module")
def planted():
    nothing_in, nothing_out = torch.zeros(D_MODEL, D_HEAD), torch.zeros(D_HEAD, D_MODEL)
    previous = dict(Q=reads(PLACE, 0, SHARP), K=reads(PLACE, 1, SHARP), V=reads(TOKEN), O=writes(PREV))
    induction = dict(Q=reads(TOKEN, 0, SHARP), K=reads(PREV, 0, SHARP), V=reads(TOKEN), O=writes(NEXT))
    none = dict(Q=nothing_in, K=nothing_in, V=nothing_in, O=nothing_out)
    layers = [
        {f"W_{name}": torch.stack([a[name], b[name]]) for name in "QKVO"}
        for a, b in ((none, previous), (induction, none))
    ]
    W_E, W_pos, W_U = torch.zeros(TOKENS, D_MODEL), torch.zeros(POSITIONS, D_MODEL), torch.zeros(D_MODEL, TOKENS)
    W_E[:, TOKEN], W_pos[:, PLACE], W_U[NEXT] = torch.eye(TOKENS), torch.eye(POSITIONS), torch.eye(TOKENS)
    return mv.from_arrays(W_E=W_E, W_pos=W_pos, W_U=W_U, position="learned", layers=layers)


@pytest.fixture(scope="module")
def seen(planted):
    return mv.trace(planted, PROMPT)


def test_each_direction_has_its_one_writer(seen):
    parts = mv.ledger(seen)
    should = {"token": "embed", "place": "pos_embed", "prev": "L0H1", "next": "L1H0"}
    for name, where in NAMED.items():
        for component, row in zip(parts.components, parts.values, strict=True):
            wrote = float(row[:, where].abs().max())
            assert wrote == 0.0 if component != should[name] else wrote > 0.99, (name, component)


def test_the_answer_is_the_token_that_followed_and_one_head_gives_it(seen):
    assert int(seen.logits[-1].argmax()) == 2
    found = mv.shares(seen, target=2, against=5)
    assert found.top(1)[0] == ("L1H0", pytest.approx(1.0, abs=1e-3))
    others = found.values[[n for n, name in enumerate(found.components) if name != "L1H0"]]
    assert torch.equal(others, torch.zeros_like(others))


def test_the_score_is_written_by_the_embedding_and_the_previous_token_head(seen):
    why = mv.score_ledger(seen, layer=1, head=0, query=6, key=2)
    assert why.top(1)[0] == ("embed", "L0H1", pytest.approx(SHARP**2 * D_HEAD**-0.5, rel=1e-3))
    assert why.error < 1e-6
    assert float(why.values.sum()) == pytest.approx(why.top(1)[0][2], rel=1e-6)


def test_taking_the_writer_away_takes_the_answer_away(planted):
    cases = [mv.Case(PROMPT, 2, 5), mv.Case([3, 5, 1, 2, 4, 3, 5], 1, 4), mv.Case([2, 4, 5, 1, 2, 4], 5, 1)]
    found = mv.effects_over(planted, cases, draws=200)
    for name, expected in (("L1H0", 1.0), ("L0H0", 0.0), ("L1H1", 0.0)):
        assert found.row(name).mean == pytest.approx(expected, abs=1e-3), name
    assert found.row("L0H1").mean > 0.5  # without it every key is as good, and the answer is spread
    assert found.row("L0H1", "direct").mean == 0.0
