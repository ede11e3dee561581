"""`mechview spin`: tables, claims, JSON, files, resuming, and refusals."""

from __future__ import annotations

import pytest

pytest_plugins = ["commands"]

FAST = ("--quick", "--length", "24", "--sequences", "4", "--draws", "2", "--layers", "0")


def test_a_layer_is_printed_with_nulls_and_verdicts(cli):
    done = cli("spin", "toy", *FAST)
    assert done.code == 0
    for word in (
        "H3 scalar couplings",
        "N1 within-row shuffle",
        "vacuous",
        "entropy S",
        "curl index",
        "2 other documents",
    ):
        assert word in done.out


def test_json_holds_every_table_and_the_manifest(cli):
    found = cli("spin", "toy", *FAST, "--json", "-q").json
    assert found["table"] == "spin_models"
    assert found["manifest"]["arguments"]["draws"] == 2
    assert {"thermo", "spin_weights", "spin_spectra"} <= set(found)
    rows = [row for row in found["rows"] if row["quantity"] == "H4 head spins (read)" and row["head"] is not None]
    assert {row["label"] for row in rows} == {"L0H0", "L0H1", "L0H2", "L0H3"}


def test_claims_are_printed_and_written(cli, tmp_path):
    path = tmp_path / "claims.md"
    done = cli("spin", "toy", "--claims", *FAST, "-o", path)
    assert done.code == 0
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 + 20
    assert "the residual stream is the external field" in "".join(lines)


def test_a_folder_keeps_finished_layers(cli, tmp_path):
    kept = tmp_path / "kept"
    first = cli("spin", "toy", *FAST, "--folder", kept, "--format", "csv")
    before = (kept / "spin-layer-000.json").stat().st_mtime_ns
    again = cli("spin", "toy", *FAST, "--folder", kept, "--format", "csv")
    assert first.out == again.out
    assert (kept / "spin-layer-000.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("toy", "-p", "one document and nothing else " * 50), "at least two documents"),
        (("toy", "--quantity", "identity R2"), "is refused, for it is no evidence"),
        (("toy", "--layers", "7"), "layer 7"),
        (("toy", "--heldout", "nowhere.txt"), "nowhere.txt cannot be read"),
        (("toy", "--length", "4"), "too short"),
    ],
)
def test_wrong_requests_are_one_sentence(cli, arguments, said):
    done = cli("spin", *arguments, "-q")
    assert done.code == 2
    assert done.out == ""
    assert said in done.err
    assert done.err.count("\n") == 1


def test_an_encoder_decoder_model_is_refused(cli, t5_folder):
    done = cli("spin", t5_folder, "-q")
    assert done.code == 3
    assert "causal decoders" in done.err
