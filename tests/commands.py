"""Running the command line in this process: its exit code, its stdout and its stderr."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from mechview.cli import run


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys):
    def call(*arguments: str) -> Done:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return call


def saved(name: str, folder):
    """A tiny random model of a family, as a Hugging Face folder without a tokenizer."""
    import families

    families.FAMILIES[name].build().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory):
    return saved("gpt2", tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def t5_folder(tmp_path_factory):
    return saved("t5", tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="session")
def falcon_alibi_folder(tmp_path_factory):
    return saved("falcon_alibi", tmp_path_factory.mktemp("falcon"))


@pytest.fixture
def toy_copy(tmp_path):
    """A folder that may be damaged: the toy without its checkpoints."""
    import shutil

    from mechview.models.bundled import data_folder

    target = tmp_path / "model"
    shutil.copytree(data_folder() / "toy", target, ignore=shutil.ignore_patterns("checkpoints"))
    return target
