"""The wheel: data inside the package, nothing beside it, and a command that works outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)], check=True, capture_output=True
    )
    return next(out.glob("*.whl"))


def test_the_wheel_holds_data_inside_the_package_and_nothing_else_on_top(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"mechview", next(top for top in tops if top.endswith(".dist-info"))}
    assert "mechview/_data/toy/model.safetensors" in names
    assert "mechview/_data/index.toml" in names
    assert "mechview/py.typed" in names
    assert any(name.startswith("mechview/reporting/") and name.endswith(".html") for name in names)


def test_the_wheel_carries_licences_of_code_and_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "mechview/_data/LICENSES.md" in names


def test_an_unpacked_wheel_reports_on_toy_from_anywhere(wheel, tmp_path):
    """The wheel's own copy of package and data is used, from a folder that is not the checkout."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import mechview, mechview.models.bundled as b; print(mechview.__file__); print(b.data_folder());"
        "from mechview.cli import main; main()"
    )
    environment = os.environ | {"PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, "heads", "toy", "--json"], cwd=tmp_path, env=environment, capture_output=True
    )
    out = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert out.startswith(str(site))
    assert str(site / "mechview" / "_data") in out
    assert '"L1H3"' in out


def test_pyproject_names_every_import_of_the_package():
    import ast
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {part.split(">")[0].split("<")[0].split("=")[0] for part in project["dependencies"]}
    named |= {"mechview", "huggingface-hub", "httpx", "tokenizers"}  # parts of transformers
    named |= {part.split(">")[0] for extra in project["optional-dependencies"].values() for part in extra}
    renamed = {"lazy_loader": "lazy-loader", "transformer_lens": "transformer-lens", "yaml": "pyyaml"}
    imported = set()
    for path in ROOT.glob("mechview/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    third_party = {renamed.get(n, n).replace("_", "-") for n in imported - set(sys.stdlib_module_names)}
    assert third_party <= named, sorted(third_party - named)
