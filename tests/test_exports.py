"""Files are whole or absent, old ones survive, and every format gives back the numbers it was given."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from mechview import exports
from mechview.errors import OutputError

ABOUT = {"schema_version": 1, "model": "toy", "seed": 0}


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "label": pd.array(["L0H0", "a|b<i>\n", "=1"], dtype="str"),
            "layer": np.array([0, 1, 2], dtype="int16"),
            "value": [0.1 + 0.2, np.nan, np.inf],
            "offset": pd.array([1, None, 0], dtype="Int16"),
        }
    )


def test_a_file_is_written_whole_with_ordinary_permissions(tmp_path):
    path = tmp_path / "a.txt"
    previous = os.umask(0o022)
    try:
        exports.write_text(path, "héllo \ud800")
    finally:
        os.umask(previous)
    assert path.read_bytes() == "héllo ".encode() + b"\\ud800"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert leftovers(tmp_path) == ["a.txt"]


def test_an_existing_file_needs_force(tmp_path):
    path = tmp_path / "a.txt"
    exports.write_text(path, "old")
    with pytest.raises(OutputError, match="exists already; --force replaces it"):
        exports.write_text(path, "new")
    assert path.read_text() == "old"
    exports.write_text(path, "new", force=True)
    assert path.read_text() == "new"


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, broken):
    path = tmp_path / "a.txt"
    exports.write_text(path, "old")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if broken == "write":
        real = os.fdopen

        class Full(io.FileIO):
            write = full

        monkeypatch.setattr(
            os, "fdopen", lambda handle, mode: Full(handle, mode) if mode == "wb" else real(handle, mode)
        )
    else:
        monkeypatch.setattr(os, broken, full)
    with pytest.raises(OutputError, match=r"a\.txt cannot be written: No space left on device"):
        exports.write_text(path, "new", force=True)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == ["a.txt"]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        exports.write_text(tmp_path / "a.txt", "new")
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_device_is_written_to_and_stays_a_device():
    with pytest.raises(OutputError, match="No space left on device"):
        exports.write_text(Path("/dev/full"), "x" * 10)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_places_that_cannot_hold_a_file(tmp_path):
    with pytest.raises(OutputError, match="is a folder"):
        exports.check_output(tmp_path)
    with pytest.raises(OutputError, match="there is no folder"):
        exports.check_output(tmp_path / "absent" / "a.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="there is no folder"):
        exports.check_output(tmp_path / "file" / "a.txt")


def test_an_unwritable_folder_is_refused_before_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == tmp_path.resolve() and mode == os.W_OK))
    with pytest.raises(OutputError, match="no permission"):
        exports.check_output(tmp_path / "a.txt")


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    exports.write_text(link, "new", force=True)
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.parametrize(
    ("path", "asked", "found"),
    [("a.CSV", None, "csv"), ("a.txt", "json", "json"), (None, "md", "md"), ("a.parquet", "parquet", "parquet")],
)
def test_format_from_option_or_suffix(path, asked, found):
    assert exports.format_of(Path(path) if path else None, asked, exports.TABLES) == found


@pytest.mark.parametrize(
    ("path", "asked"), [("a.txt", None), ("a", None), ("a.csv", "json"), ("a.npz", None), (None, "npz")]
)
def test_formats_that_do_not_fit(path, asked):
    with pytest.raises(OutputError):
        exports.format_of(Path(path) if path else None, asked, exports.TABLES)


def test_json_is_strict_and_counts_what_is_not_finite():
    def refuse(name):
        raise AssertionError(f"bare {name} is not JSON")

    text = exports.table_bytes(frame(), "json", ABOUT, "heads", lambda: {"tokens": frame()[["label"]]})
    found = json.loads(text, parse_constant=refuse)
    assert found["schema_version"] == 1
    assert found["manifest"] == ABOUT
    assert found["table"] == "heads"
    assert found["not_finite"] == {"value": {"nan": 1, "inf": 1}}
    assert [row["value"] for row in found["rows"]] == [0.1 + 0.2, None, "inf"]
    assert [row["offset"] for row in found["rows"]] == [1, None, 0]
    assert found["tokens"][1] == {"label": "a|b<i>\n"}


def test_csv_gives_the_numbers_back():
    text = exports.table_bytes(frame(), "csv", ABOUT, "heads").decode()
    found = pd.read_csv(io.StringIO(text))
    assert text.splitlines()[0] == "label,layer,value,offset"
    assert found["value"].tolist()[0] == 0.1 + 0.2
    assert np.isnan(found["value"][1])
    assert np.isinf(found["value"][2])
    assert found["label"][1] == "a|b<i>\n"


def test_parquet_keeps_dtypes_and_manifest():
    buffer = io.BytesIO(exports.table_bytes(frame(), "parquet", ABOUT, "heads"))
    pd.testing.assert_frame_equal(pd.read_parquet(buffer), frame())
    assert json.loads(pq.read_schema(buffer).metadata[b"mechview"]) == {"table": "heads", **ABOUT}


def test_markdown_has_one_line_a_row_whatever_the_cells_hold():
    lines = exports.table_bytes(frame(), "md", ABOUT, "heads").decode().splitlines()
    assert len(lines) == 2 + len(frame())
    assert lines[0] == "| label | layer | value | offset |"
    assert lines[3].startswith("| a\\|b&lt;i> ")
    assert lines[2] == "| L0H0 | 0 | 0.3 | 1 |"


@pytest.mark.parametrize("kind", exports.FACTORS)
def test_factor_files_give_the_matrices_back(kind, tmp_path):
    matrices = {"left": torch.randn(5, 2, dtype=torch.float64), "right": torch.randn(5, 2, dtype=torch.float64).mT}
    path = tmp_path / f"a.{kind}"
    exports.write_bytes(path, exports.matrices_bytes(matrices, kind, ABOUT | {"offset": None, "label": "L0H0"}))
    if kind == "npz":
        with np.load(path, allow_pickle=False) as file:
            found = {name: torch.from_numpy(file[name]) for name in matrices}
            about = json.loads(str(file["metadata"]))
    else:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            found = {name: file.get_tensor(name) for name in names}
            about = file.metadata()
            about = {key: value if key in ("model", "label") else json.loads(value) for key, value in about.items()}
    assert set(found) == set(matrices)
    assert all(torch.equal(found[name], matrices[name]) for name in matrices)
    assert about == ABOUT | {"offset": None, "label": "L0H0"}
