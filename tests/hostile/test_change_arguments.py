"""Wrong arguments of comparison, patching, ablation and directions are one sentence, whatever their type."""

from __future__ import annotations

import pytest
import torch

import mechview as mv
from mechview.errors import MechviewError, UsageError

CLEAN, OTHER = "the man and the woman", "the man and the king"


@pytest.mark.parametrize("position", ["x", 0.5, True, 99, -99, None])
def test_no_function_takes_what_is_no_position(toy, position):
    trace = mv.trace(toy, CLEAN)
    direction = mv.named_direction("L1H1.message.v0", toy)
    for call in (
        lambda: mv.compare(trace, trace, target=" man", position=position),
        lambda: mv.compare_positions(trace, position, 1),
        lambda: mv.compare([CLEAN], [OTHER], model=toy, position=position, draws=5),
        lambda: mv.patch(toy, CLEAN, OTHER, " man", position=position),
        lambda: mv.path_patch(toy, CLEAN, OTHER, " man", position=position, receiver=(1, 0, "q")),
        lambda: mv.effects(toy, CLEAN, " man", position=position),
        lambda: mv.shares_along(trace, direction, position=position),
    ):
        with pytest.raises(UsageError, match="is not a whole number|does not exist"):
            call()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"receiver": "L1H0.q"}, "is no input of a head"),
        ({"receiver": (1, "q")}, "is no input of a head"),
        ({"receiver": ("L1H0", 0, "q")}, "is not a|does not exist|is no input"),
        ({"receiver": (1, 0, "q"), "sender": []}, "there are no senders"),
    ],
)
def test_ends_of_a_path_that_are_none(toy, given, sentence):
    with pytest.raises(MechviewError, match=sentence):
        mv.path_patch(toy, CLEAN, OTHER, " man", **given)


def test_a_missing_target_or_model_is_said(toy):
    for call in (
        lambda: mv.patch(toy, CLEAN, OTHER, None),
        lambda: mv.effects(toy, CLEAN, None),
        lambda: mv.path_patch(toy, CLEAN, OTHER, None, receiver=(1, 0, "q")),
    ):
        with pytest.raises(UsageError, match="say which token's logit"):
            call()
    with pytest.raises(UsageError, match="a model is needed"):
        mv.patch("toy", CLEAN, OTHER, " man")


def test_a_direction_of_nan_has_no_shares(toy):
    trace = mv.trace(toy, CLEAN)
    with pytest.raises(UsageError, match="NaN or infinity"):
        mv.shares(trace, direction=torch.full((toy.shape.d_model,), float("nan")))


def test_results_of_the_stream_become_grids_with_named_axes(toy):
    trace = mv.trace(toy, CLEAN)
    parts = mv.ledger(trace)
    grid = parts.to_xarray()
    assert {n: k for n, k in grid.sizes.items() if k > 1} == {
        "component": len(parts.components),
        "pos": len(trace.tokens),
    }
    assert float(grid["norm"].sel(component="L1H1", pos=2).squeeze()) == pytest.approx(
        float(parts.row("L1H1")[2].norm()), rel=1e-6
    )
    why = mv.score_ledger(trace, layer=1, head=1, query=-1, key=2).to_xarray()
    assert {n for n, k in why.sizes.items() if k > 1} == {"query_component", "key_component"}
    assert "component" in mv.shares(trace, " man").to_xarray().sizes
    assert {n for n, k in mv.lens(trace).to_xarray().sizes.items() if k > 1} == {"point", "pos"}
    effects = mv.effects(toy, CLEAN, " man")
    assert effects.to_xarray().sizes["component"] == effects.frame()["component"].nunique()
