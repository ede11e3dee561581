"""`models` and `schema`: what is on this machine, found without opening any of it."""

from __future__ import annotations

import pandas as pd
import pytest

from mechview.models.bundled import bundled_lstms, bundled_models, data_folder
from mechview.models.found import converted, found_models, hub_cache, packages
from mechview.recurrent.load import is_lstm, load_lstm
from mechview.tables import SCHEMAS

pytest_plugins = ["commands"]


@pytest.fixture
def empty_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("MECHVIEW_CACHE", str(tmp_path / "cache"))
    return tmp_path


def snapshot(hub, name: str, commit: str, *files: str):
    folder = hub / f"models--{name.replace('/', '--')}" / "snapshots" / commit
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("license: mit\n" if file == "README.md" else "x" * 10)
    return folder


def test_bundled_models_with_their_licence_and_checkpoints(cli, empty_caches):
    rows = [row for row in cli("models", "--json").json["rows"] if row["kind"] == "bundled"]
    assert [row["name"] for row in rows] == bundled_models()
    assert rows[0]["licence"] == "MIT"
    steps = sorted(path.name for path in (data_folder() / "toy" / "checkpoints").iterdir())
    assert len(steps) >= 8
    assert rows[0]["checkpoints"].split() == steps
    assert all(step in cli("models").out for step in steps)


def test_every_lstm_listed_is_one_that_memory_opens_and_no_other_model_is(cli, empty_caches):
    """A bundled or packaged model is listed under the kind of thing that opens it."""
    rows = {row["name"]: row for row in cli("models", "--json").json["rows"]}
    lstms = {name for name, row in rows.items() if "LSTM" in row["kind"]}
    assert lstms >= set(bundled_lstms()) == {"twin"}
    assert {name for name in rows if is_lstm(name)} == lstms
    assert rows["twin"]["licence"] == "MIT"
    assert rows["twin"]["size_mb"] > 0.1
    assert "twin is an LSTM: mechview memory twin opens it" in cli("models").out
    assert len(load_lstm("twin").layers) == 2


def test_packages_that_hold_weights_and_no_others(tmp_path, monkeypatch):
    for name, files in {
        "good": ["good/config.json", "good/model.safetensors"],
        "quantised": ["quantised/q8.gguf"],
        "adapter": ["adapter/model.safetensors"],
        "plain": ["plain/config.json", "plain/__init__.py"],
        "textgenrnn": ["textgenrnn/textgenrnn_weights.hdf5", "textgenrnn/__init__.py"],
    }.items():
        about = tmp_path / f"{name}-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nLicense: MIT\n")
        (about / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / file).write_text("x" * 100)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = {model.name: model for model in packages()}
    assert set(found) == {"package:good", "package:quantised", "package:textgenrnn"}
    assert (found["package:textgenrnn"].kind, found["package:textgenrnn"].size) == ("package with an LSTM", 100)
    assert (found["package:good"].size, found["package:good"].revision, found["package:good"].licence) == (
        100,
        "1.2",
        "MIT",
    )


def test_hub_cache_shows_complete_models_at_their_pinned_revision(empty_caches):
    hub = empty_caches / "hub"
    snapshot(hub, "acme/tiny", "a" * 40, "config.json", "model.safetensors", "README.md")
    snapshot(hub, "acme/tiny", "b" * 40, "config.json", "model.safetensors")
    (hub / "models--acme--tiny" / "refs").mkdir()
    (hub / "models--acme--tiny" / "refs" / "main").write_text("a" * 40)
    snapshot(hub, "acme/halfway", "c" * 40, "config.json")
    snapshot(hub, "acme/tokenizer-only", "d" * 40, "tokenizer.json")
    (found,) = hub_cache()
    assert (found.name, found.revision, found.licence, found.kind) == ("acme/tiny", "a" * 40, "mit", "hub cache")
    assert found.size == 33


def test_converted_files_are_named_by_the_folder_that_opens(empty_caches):
    folder = empty_caches / "cache" / "gguf" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert [model.name for model in converted()] == [str(folder)]


def test_no_caches_are_no_error(empty_caches):
    assert {model.kind for model in found_models()} <= {"bundled", "bundled LSTM", "package", "package with an LSTM"}


def test_models_as_a_file(cli, empty_caches, tmp_path):
    path = tmp_path / "models.csv"
    assert cli("models", "-o", path).code == 0
    assert "toy" in pd.read_csv(path)["name"].tolist()


def test_schema_names_every_column_of_every_table(cli):
    found = cli("schema", "--json").json
    assert found["schema_version"] == 1
    assert {name: list(columns) for name, columns in found["tables"].items()} == {
        n: list(c) for n, c in SCHEMAS.items()
    }
    text = cli("schema").out
    assert all(column in text for columns in SCHEMAS.values() for column in columns)
    assert cli("schema", "--format", "csv").out.startswith("table,column,dtype,meaning\n")
