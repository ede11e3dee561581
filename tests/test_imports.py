"""What an import costs, and which way imports point: read from the source, and from a fresh interpreter."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import mechview

PACKAGE = Path(mechview.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "transformers", "transformer_lens", "pandas", "plotly", "pyarrow", "scipy")
STOREYS = [
    "cli", "serving", ("reporting", "doctor"), "figures", "tables", "sweeping", ("residual", "heads", "spins", "recurrent"),
    ("checks", "scores"), ("factors", "lowrank"), "models",
    ("tokens", "axes", "results", "errors", "exports", "manifest", "version", "reprs"),
]  # fmt: skip
LEVEL = {name: n for n, names in enumerate(STOREYS) for name in ((names,) if isinstance(names, str) else names)}


PARTS = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}


def storey(module: str) -> str | None:
    """`heads` for `mechview.heads.table`; None outside mechview and for the package itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "mechview" and len(parts) > 1 else None


def module_of(path: Path) -> str:
    return ".".join(["mechview", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Every module a file names in an import, also inside functions; relative imports made absolute."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import mechview", "import mechview; dir(mechview); mechview.__version__"])
def test_importing_mechview_loads_nothing_heavy(code: str) -> None:
    loaded = loaded_after(code)
    assert "mechview" in loaded
    assert not loaded & set(HEAVY)


def test_a_name_that_needs_torch_loads_it_on_use() -> None:
    assert "torch" in loaded_after("import mechview; mechview.HeadFactors")


def test_every_public_name_exists() -> None:
    assert {"load", "wrap", "trace", "parity", "head_factors", "LowRank", "__version__"} <= set(mechview.__all__)
    for name in mechview.__all__:
        assert getattr(mechview, name) is not None


def test_only_the_bridge_imports_transformer_lens() -> None:
    users = {module_of(path) for path in SOURCES if "transformer_lens" in roots(path)}
    assert users == {"mechview.models.bridge"}


def test_nothing_below_tables_imports_pandas_or_plotly() -> None:
    users = {storey(module_of(path)) for path in SOURCES if roots(path) & {"pandas", "plotly"}}
    assert {name for name in users if LEVEL[name] > LEVEL["tables"]} == set()
    assert "tables" in users


def test_figures_and_reports_import_no_torch() -> None:
    edge = [path for path in SOURCES if storey(module_of(path)) in ("figures", "reporting")]
    assert not [path.name for path in edge if "torch" in roots(path)]


def test_imports_between_storeys_point_downwards_only() -> None:
    upwards = [
        f"{module_of(path)} -> {name}"
        for path in SOURCES
        for name in imports(path)
        if storey(module_of(path)) not in (None, "__main__") and storey(name) in PARTS
        if LEVEL[storey(name)] < LEVEL[storey(module_of(path))]
    ]
    assert not upwards


def test_every_part_of_the_package_has_its_storey() -> None:
    assert PARTS - {"__init__", "__main__"} <= set(LEVEL)


def test_no_module_shares_a_name_with_a_public_function() -> None:
    shared = PARTS & set(mechview.__all__)
    assert not [name for name in shared if not inspect.ismodule(getattr(mechview, name))]
    assert inspect.ismodule(mechview.spins)
    inner = {path.stem for path in (PACKAGE / "spins").iterdir() if path.suffix == ".py"}
    assert not inner & set(mechview.spins.__all__)
