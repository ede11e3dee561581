"""Verbs of the stream and of change write their figure where a picture's or a page's name is given."""

from __future__ import annotations

import pytest

pytest_plugins = ["commands"]
P, O = "the man and the woman", "the man and the king"  # noqa: E741
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!doctype html>"}
VERBS = {
    "waterfall": ("resid", "-p", P, "-t", " man"),
    "heat map": ("resid", "-p", P),
    "growth": ("resid", "-p", P, "--growth"),
    "lens": ("lens", "-p", P, "-t", " man"),
    "steps": ("lens", "-p", P, "-t", " man", "--changes"),
    "score": ("why", "L1H1", "-p", P),
    "strip": ("compare", P, O, "--model", "toy"),
    "grid": ("compare", "toy", "toy", "--revision-a", "step-000400"),
    "effects": ("ablate", "-p", P, "-t", " man"),
    "patches": ("patch", "-p", P, "--corrupted", O, "-t", " man"),
    "path": ("patch", "-p", P, "--corrupted", O, "-t", " man", "--receiver", "L1H0.v"),
    "cost": ("resid", "-p", P, "--dry-run"),
}


@pytest.fixture(autouse=True)
def no_browser(monkeypatch):
    monkeypatch.setattr("mechview.figures.static.available", lambda: "matplotlib")


@pytest.mark.parametrize("name", VERBS)
def test_each_figure_is_written_by_its_verb(cli, tmp_path, name):
    kind = "html" if name == "strip" else "svg"
    out = tmp_path / f"picture.{kind}"
    done = cli(*VERBS[name], "--out", out)
    assert (done.code, done.out) == (0, ""), done.err
    assert out.read_bytes().startswith(STARTS[kind])
    again = cli(*VERBS[name], "--out", out)
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.parametrize("kind", STARTS)
def test_every_kind_of_file(cli, tmp_path, kind):
    out = tmp_path / f"fall.{kind}"
    assert cli("resid", "-p", P, "-t", " man", "--out", out).code == 0
    assert out.read_bytes().startswith(STARTS[kind])
    assert cli("resid", "-p", P, "--format", kind).err.count("not for a terminal") == 1


def test_a_page_of_a_figure_fetches_nothing(cli, tmp_path):
    out = tmp_path / "fall.html"
    cli("resid", "-p", P, "-t", " man", "--out", out)
    assert "<script src=" not in out.read_text()


def test_verbs_without_a_figure_refuse_a_picture(cli, tmp_path):
    done = cli("heads", "--out", tmp_path / "heads.png")
    assert (done.code, "does not fit here" in done.err) == (2, True)
