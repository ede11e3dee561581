"""Results find their frames and figures in registries, and say so plainly where there is none."""

from __future__ import annotations

import importlib
from dataclasses import FrozenInstanceError, dataclass

import pandas as pd
import pytest

from mechview import results
from mechview.errors import (
    CheckError,
    HeadError,
    MechviewError,
    ModelError,
    OutputError,
    PromptError,
    UnsupportedError,
    UsageError,
)
from mechview.results import Result, figure_of, frame_of


@dataclass(frozen=True)
class Answer(Result):
    number: int


@dataclass(frozen=True)
class Unseen(Result):
    number: int


@pytest.fixture(autouse=True)
def fresh_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("mechview.figures")  # registered once a process: never into the copies below
    importlib.import_module("mechview.tables")
    monkeypatch.setattr(results, "FRAMES", dict(results.FRAMES))
    monkeypatch.setattr(results, "FIGURES", dict(results.FIGURES))


def test_a_registered_view_is_used() -> None:
    frame_of(Answer)(lambda answer: pd.DataFrame({"layer": [0, 1], "value": [answer.number, -answer.number]}))
    figure_of("Answer")(lambda answer: f"figure of {answer.number}")
    answer = Answer(number=3)
    assert answer.frame()["value"].tolist() == [3, -3]
    assert answer.figure() == "figure of 3"


def test_registering_returns_the_function_itself() -> None:
    def maker(answer: Answer) -> int:
        return answer.number

    assert frame_of(Answer)(maker) is maker


@pytest.mark.parametrize("view", ["frame", "figure"])
def test_a_result_without_a_view_says_so(view: str) -> None:
    with pytest.raises(UsageError, match="^Unseen has no such view$"):
        getattr(Unseen(number=1), view)()


def test_to_xarray_has_the_key_columns_as_axes() -> None:
    frame_of(Answer)(lambda answer: pd.DataFrame({"layer": [0, 1], "head": [0, 0], "value": [1.0, 2.0]}))
    data = Answer(number=0).to_xarray()
    assert set(data.sizes) == {"layer", "head"}
    assert data["value"].sel(layer=1, head=0).item() == 2.0


def test_results_are_frozen_and_equal_whatever_their_manifest() -> None:
    assert Answer(number=1, manifest={"seed": 0}) == Answer(number=1, manifest={"seed": 1})
    assert Answer(number=1) != Answer(number=2)
    with pytest.raises(FrozenInstanceError):
        Answer(number=1).number = 2


def test_each_result_has_a_manifest_of_its_own() -> None:
    one, other = Answer(number=1), Answer(number=1)
    assert one.manifest is not other.manifest


@pytest.mark.parametrize(
    ("error", "code"),
    [(MechviewError, 1), (CheckError, 1), (UsageError, 2), (HeadError, 2), (PromptError, 2), (OutputError, 2),
     (ModelError, 3), (UnsupportedError, 3)],
)  # fmt: skip
def test_errors_carry_their_exit_code(error: type[MechviewError], code: int) -> None:
    assert error("a sentence").exit_code == code
    assert issubclass(error, MechviewError)


@pytest.mark.parametrize(
    ("columns", "sizes"),
    [
        (
            {"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "label": ["L0H0", "L0H1", "L1H0", "L1H1"]},
            {"layer": 2, "head": 2},
        ),
        ({"layer": [0, 0], "head": [0, 0]}, {"row": 2}),
        ({"q_pos": list(range(9)), "k_pos": list(range(9))}, {"q_pos": 9}),
        ({"q_pos": list(range(9)), "k_pos": [0, 0, 1, 2, 3, 4, 5, 6, 0]}, {"q_pos": 9}),
        ({"component": ["embed", "L0H0"], "head": pd.array([None, 0], dtype="Int16")}, {"component": 2}),
        ({"layer": list(range(8)) * 2, "pos": [0] * 15 + [9]}, {"row": 16}),
    ],
)
def test_axes_are_the_keys_that_tell_rows_apart(columns, sizes):
    values = [float(n) for n in range(len(next(iter(columns.values()))))]
    frame_of(Answer)(lambda answer: pd.DataFrame(columns | {"value": values}))
    data = Answer(number=0).to_xarray()
    assert dict(data.sizes) == sizes
    assert sorted(data["value"].values.ravel()) == values
    assert set(columns) <= {*data.data_vars, *data.coords}


def test_real_results_become_datasets_that_hold_every_number(toy):
    import mechview as mv

    seen = mv.trace(toy, "And the evening and the morning")
    heads = mv.head_table(toy)
    data = heads.to_xarray()
    assert dict(data.sizes) == {"stack": 1, "layer": 2, "head": 4, "metric": data.sizes["metric"]}
    frame = heads.frame()
    norm = frame[(frame["label"] == "L1H2") & (frame["metric"] == "message_norm")]["value"].item()
    assert data["value"].sel(layer=1, head=2, metric="message_norm").item() == norm
    for result in (
        mv.parity(toy, seen),
        mv.attend(seen),
        mv.ledger(seen),
        mv.shares(seen, 5),
        mv.lens(seen),
        mv.head_scores(toy, ["induction"]),
    ):
        table, cube = result.frame(), result.to_xarray()
        for column in table.select_dtypes("float"):
            assert cube[column].notnull().sum().item() == table[column].notna().sum()


def test_without_xarray_one_sentence_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(UsageError, match=r"^to_xarray\(\) needs xarray: pip install 'mechview\[notebook\]'$"):
        Answer(number=1).to_xarray()
