"""What a command loads: nothing heavy to say what it can do, no module and no bridge for weights alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pandas", "plotly", "transformer_lens", "pyarrow", "numpy")
AFTER = "import sys; print('LOADED', *(name for name in {names!r} if name in sys.modules))"


def loaded_by(code: str, names: tuple[str, ...] = HEAVY) -> set[str]:
    script = f"{code}\n{AFTER.format(names=names)}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "LOADED"
    return set(last[1:])


def verb(*arguments: str) -> str:
    return f"from mechview.cli import run\nassert run({list(arguments)!r}) == 0"


def test_the_import_is_light():
    assert loaded_by("import mechview") == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], [], ["heads", "--help"], ["models"], ["models", "--json"]]
)
def test_help_and_listing_are_light(arguments):
    assert loaded_by(verb(*arguments)) == set()


def test_the_check_sees_what_it_looks_for():
    assert loaded_by("import numpy") == {"numpy"}


def test_weights_alone_build_no_module_and_no_bridge():
    code = "\n".join(
        [
            "import mechview.models.load as load",
            "def refuse(*_): raise AssertionError('a module was built')",
            "load.load_module = refuse",
            *(
                verb(*arguments)
                for arguments in (["heads"], ["head", "L1H0", "--no-roles"], ["pattern", "1.0"], ["message", "toy"])
            ),
        ]
    )
    assert loaded_by(code, ("torch", "transformer_lens", "plotly")) == {"torch"}
