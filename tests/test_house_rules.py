"""The rules of the house, as tests: sizes, axis words, no paths or addresses, tests beside what they test."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from mechview.axes import AXES

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*ROOT.glob("mechview/**/*.py"), *ROOT.glob("analyses/**/*.py"), *ROOT.glob("data/**/*.py")])
TESTS = sorted(ROOT.glob("tests/**/*.py"))


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_bodies_stay_short(path: Path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            statements = node.body[1:] if ast.get_docstring(node) else node.body
            length = statements[-1].end_lineno - statements[0].lineno + 1 if statements else 0
            assert length <= 40, f"{node.name} has a body of {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "a module opens with its idea"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_axis_words_come_from_the_vocabulary(path: Path):
    text = path.read_text(encoding="utf-8")
    strings = re.findall(r"(?:Float|Int|Bool)\[Tensor, \"([^\"]*)\"\]", text)
    words = {word for string in strings for word in string.split()}
    plain = {w for w in words if re.fullmatch(r"[a-z][a-z_]*", w)}
    local = {"d_in", "d_out", "d_fused", "d_embed", "d", "d2", "r", "d_model_plus_1"}
    assert plain <= set(AXES) | local, sorted(plain - set(AXES) - local)


def test_no_unfinished_words_and_no_asserts_in_the_package():
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", text), path
        asserts = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Assert)]
        assert not asserts, f"{path}: assert is gone under -O"


def test_no_paths_of_a_machine_and_no_package_addresses():
    wrong = re.compile(rb"/(?:home|Users|root|work)/\w|--(?:extra-)?index-url|--find-links|files\.pythonhosted")
    own = Path(__file__).resolve()
    for path in tracked():
        if path.resolve() != own and path.suffix not in {".safetensors", ".txt", ".png"}:
            found = wrong.search(path.read_bytes())
            assert not found, f"{path.relative_to(ROOT)}: {found.group() if found else b''!r}"


def test_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._\-]+==[A-Za-z0-9._]+", line), line


EXPECTS = re.compile(r"(^|\.)(raises|warns|assert_\w+|check\w*|expect\w*|refused\w*|fails\w*|exits\w*)$")


def test_every_test_function_asserts_or_expects():
    """A test that asserts nothing cannot fail; helpers of the same file count if they assert themselves."""
    for path in TESTS:
        functions = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)]
        asserting = {f.name for f in functions if any(isinstance(n, ast.Assert) for n in ast.walk(f))}
        for function in functions:
            if function.name.startswith("test_") and function.name not in asserting:
                calls = {ast.unparse(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
                assert calls & asserting or any(EXPECTS.search(c) for c in calls), f"{path.name}: {function.name}"
