"""Frames: schemas, dtypes, and values against direct computation or planted patterns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

import mechview as mv
from conftest import family
from mechview.errors import CheckError
from mechview.heads.notes import NOTES
from mechview.tables import (
    SCHEMAS,
    attention_frame,
    check_schema,
    heads_frame,
    heads_wide,
    parity_frame,
    prompt_heads_frame,
    schema,
    svd_frame,
    tokens_frame,
)
from mechview.tables.heads import close_values
from mechview.tables.schemas import typed
from mechview.tables.summaries import summaries

PROMPT = "And the evening and the morning were the first day. And the evening"


@pytest.fixture(scope="module")
def trace(toy):
    return mv.trace(toy, PROMPT)


@pytest.fixture(scope="module")
def table(toy, trace):
    return mv.head_table(toy, parity=mv.parity(toy, trace))


@pytest.fixture(scope="module")
def attention(trace):
    return mv.attend(trace)


def value(frame: pd.DataFrame, label: str, metric: str, column: str = "value") -> float:
    return float(frame.loc[(frame["label"] == label) & (frame["metric"] == metric), column].item())


def test_every_frame_has_its_schema(table, trace, attention, toy):
    frames = {
        "heads": table.frame(),
        "svd": svd_frame(table),
        "parity": mv.parity(toy, trace).frame(),
        "attention": attention.frame(),
        "prompt_heads": prompt_heads_frame(attention),
        "tokens": tokens_frame(trace),
    }
    for name, frame in frames.items():
        assert len(frame)
        assert check_schema(frame, name) is frame


def test_norms_and_ranks_are_those_of_the_dense_maps(table, toy):
    frame = heads_frame(table)
    for layer, head in ((0, 3), (1, 2)):
        factors = mv.head_factors(toy, layer=layer, head=head)
        for side, low in (("pattern", factors.pattern(0)), ("message", factors.message)):
            sigma = torch.linalg.svdvals(low.dense().double()).numpy()
            share = sigma[sigma > 1e-9] / sigma.sum()
            expected = {
                "norm": np.linalg.norm(low.dense().double()),
                "top_singular_value": sigma[0],
                "stable_rank": (sigma**2).sum() / sigma[0] ** 2,
                "effective_rank": np.exp(-(share * np.log(share)).sum()),
            }
            for name, number in expected.items():
                assert value(frame, f"L{layer}H{head}", f"{side}_{name}") == pytest.approx(number, rel=1e-4)


def test_nulls_stand_beside_ranks_and_nowhere_else(table):
    frame = heads_frame(table)
    null = table.nulls["effective_rank"]
    row = frame[(frame["label"] == "L1H2") & (frame["metric"] == "message_effective_rank")].iloc[0]
    assert (row["null_mean"], row["null_sd"], row["n"]) == (null.mean, null.sd, null.n)
    assert row["z"] == pytest.approx((row["value"] - null.mean) / null.sd)
    without = frame[~frame["metric"].astype(str).str.endswith("_rank")]
    assert without[["null_mean", "null_sd", "z"]].isna().all().all()
    assert (without["n"] == 0).all()


def test_parity_errors_in_the_head_table_are_those_of_the_check(table, toy, trace):
    errors = mv.parity(toy, trace).errors("message")
    frame = heads_frame(table)
    assert {label: value(frame, label, "message_parity_error") for label in errors} == errors


def test_wide_form_holds_the_same_numbers(table):
    long, wide = heads_frame(table), heads_wide(table)
    assert len(wide) == 8
    assert list(wide["label"]) == list(dict.fromkeys(long["label"]))
    for label in wide["label"]:
        row = wide[wide["label"] == label].iloc[0]
        assert row["pattern_norm"] == value(long, label, "pattern_norm")
        assert row["message_stable_rank"] == value(long, label, "message_stable_rank")


def test_offset_is_missing_where_positions_are_not_rotary(table):
    learned, _ = family("gpt2")
    assert heads_frame(mv.head_table(learned))["offset"].isna().all()
    assert (heads_frame(table)["offset"] == 0).all()


def test_every_metric_has_a_note_with_all_its_parts(table, attention):
    names = set(heads_frame(table)["metric"]) | set(prompt_heads_frame(attention)["metric"])
    assert names <= set(NOTES)
    for note in NOTES.values():
        assert all(getattr(note, part).strip() for part in ("title", "definition", "unit", "source", "cannot"))


def test_singular_values_descend_and_rebuild_the_norm(table):
    frame = svd_frame(table)
    for (label, side), rows in frame.groupby(["label", "side"], observed=True):
        sigma = rows["sigma"].to_numpy()
        assert (np.diff(sigma) <= 0).all()
        assert rows["sigma_rel"].iloc[0] == 1.0
        norm = value(heads_frame(table), label, f"{side}_norm")
        assert np.sqrt((sigma**2).sum()) == pytest.approx(norm, rel=1e-6)


def test_degenerate_values_are_those_with_a_neighbour_within_one_percent():
    assert close_values(np.array([5.0, 4.96, 3.0, 2.0, 1.985, 1.0])).tolist() == [True, True, False, True, True, False]
    assert close_values(np.array([1.0, 0.5, 0.0, 0.0])).tolist() == [False, False, True, True]


def test_sparse_attention_and_dropped_mass_make_the_whole_row(trace):
    attention = mv.attend(trace, threshold=0.05)
    frame = attention_frame(attention, prompt_id=3)
    assert (frame["weight"] >= 0.05).all()
    assert (frame["prompt_id"] == 3).all()
    assert (frame["dropped_mass"] > 0).any()
    for _, rows in frame.groupby(["label", "q_pos"], observed=True):
        assert rows["weight"].sum() + rows["dropped_mass"].iloc[0] == pytest.approx(1.0, abs=1e-6)


def test_attention_rows_are_the_models_pattern_and_masked_cells_have_none(trace, attention):
    frame = attention_frame(dataclasses.replace(attention, threshold=0.0))
    assert (frame["k_pos"] <= frame["q_pos"]).all()
    size = len(trace.tokens)
    assert len(frame) == 8 * size * (size + 1) // 2
    rows = frame[frame["label"] == "L1H2"]
    grid = np.zeros((size, size))
    grid[rows["q_pos"], rows["k_pos"]] = rows["weight"]
    np.testing.assert_array_equal(grid, trace.patterns[1][2].double().numpy())
    last = rows.iloc[-1]
    assert last["score"] == float(trace.scores[1][2][last["q_pos"], last["k_pos"]])


def test_nan_weights_stay_in_the_sparse_table(attention):
    head = attention.heads[0]
    pattern = head.pattern.clone()
    pattern[4, 2] = float("nan")
    broken = dataclasses.replace(attention, heads=(dataclasses.replace(head, pattern=pattern),), threshold=0.5)
    found = attention_frame(broken)
    assert found[found["weight"].isna()][["q_pos", "k_pos"]].to_numpy().tolist() == [[4, 2]]


def test_tokens_keep_repeats_apart_by_position(trace):
    frame = tokens_frame(trace, 1)
    assert list(frame["pos"]) == list(range(len(trace.tokens)))
    assert list(frame["id"]) == [token.id for token in trace.tokens]
    assert frame["shown"].duplicated().any()
    assert frame["special"].tolist() == [True] + [False] * (len(frame) - 1)


def test_both_inputs_of_an_encoder_decoder_model_are_listed():
    t5, _ = family("t5")
    frame = tokens_frame(mv.trace(t5, [3, 4, 5]))
    assert frame.groupby("stack", observed=True).size().to_dict() == {"decoder": 1, "encoder": 3}


IDS = np.array([7, 8, 9, 7, 8, 9])
SEEN = np.tri(6, dtype=bool)


def planted(name: str, weight: np.ndarray) -> float:
    return {found.metric: found.value for found in summaries(weight, SEEN, IDS)}[name]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("first_key_mass", [0, 0, 0, 0, 0, 0]),
        ("previous_token_mass", [0, 0, 1, 2, 3, 4]),
        ("same_token_mass", [0, 0, 0, 0, 1, 2]),
        ("induction_mass", [0, 0, 0, 1, 2, 3]),
    ],
)
def test_a_planted_head_scores_one_and_another_zero(name, keys):
    weight = np.eye(6)[keys]
    assert planted(name, weight) == 1.0
    assert planted(name, np.eye(6)) == 0.0


def test_even_attention_scores_its_own_null():
    even = SEEN / SEEN.sum(axis=1, keepdims=True)
    found = summaries(even, SEEN, IDS)
    assert [fact.metric for fact in found] == [
        "first_key_mass", "entropy", "previous_token_mass", "same_token_mass", "induction_mass",
    ]  # fmt: skip
    assert all(fact.value == pytest.approx(fact.null_mean) for fact in found)
    assert found[1].value == pytest.approx(np.mean(np.log([2, 3, 4, 5, 6])))


def test_without_repeats_there_is_no_induction_number():
    found = {fact.metric: fact for fact in summaries(np.eye(3), np.tri(3, dtype=bool), np.array([1, 2, 3]))}
    assert found["induction_mass"].n == 0
    assert np.isnan(found["induction_mass"].value)
    assert found["previous_token_mass"].n == 2


def test_nan_in_a_pattern_reaches_the_summary():
    weight = np.eye(6)
    weight[5, 4] = np.nan
    assert np.isnan(planted("previous_token_mass", weight))
    assert np.isnan(planted("entropy", weight))


def test_a_nan_parity_error_has_not_passed(toy, trace):
    parity = mv.parity(toy, trace)
    rows = (dataclasses.replace(parity.rows[0], error=float("nan")), *parity.rows[1:])
    frame = parity_frame(dataclasses.replace(parity, rows=rows))
    assert frame["passed"].tolist() == [False] + [True] * (len(rows) - 1)
    assert frame["label"].iloc[-1] == ""


def test_check_schema_names_what_is_wrong(table):
    frame = heads_frame(table)
    with pytest.raises(CheckError, match="column layer of table heads is int64"):
        check_schema(frame.astype({"layer": "int64"}), "heads")
    with pytest.raises(CheckError, match="has columns"):
        check_schema(frame[list(reversed(frame.columns))], "heads")
    with pytest.raises(CheckError, match="no table nonsense"):
        check_schema(frame, "nonsense")
    with pytest.raises(CheckError, match="other columns: surplus"):
        typed({name: frame[name].tolist() for name in frame} | {"surplus": 1}, "heads")


def test_schemas_are_printed_with_their_version(table):
    from mechview.manifest import SCHEMA_VERSION

    printed = schema()
    assert printed["schema_version"] == SCHEMA_VERSION
    assert printed["tables"]["svd"]["sigma"]["dtype"] == "float64"
    assert set(printed["tables"]) == set(SCHEMAS)
    assert all(spec.meaning for columns in SCHEMAS.values() for spec in columns.values())


def test_frames_survive_parquet(table, tmp_path):
    frame = heads_frame(table)
    frame.to_parquet(tmp_path / "heads.parquet")
    pd.testing.assert_frame_equal(check_schema(pd.read_parquet(tmp_path / "heads.parquet"), "heads"), frame)
