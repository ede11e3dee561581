"""A run killed without warning (SIGKILL, of a real process) goes on from its finished layers, to the same rows."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import mechview as mv

SMALL = dict(quick=True, length=24, train=4, test=3, draws=2, seed=3)
RUN = """
import sys, time
import mechview as mv
import mechview.spins.layers.fit as fit
fit.AT_ONCE = 1.0

def told(line):
    if line.startswith("layer 1"):
        print("in the second layer", flush=True)
        time.sleep(600)

mv.fit_spins(mv.load("toy"), folder=sys.argv[1], told=told, **{small})
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_killed_run_leaves_whole_layers_and_goes_on_from_them(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("mechview.spins.layers.fit.AT_ONCE", 1.0)
    program = RUN.replace("{small}", repr(SMALL))
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "in the second layer\n"
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["spin-layer-000.json"]
    told = []
    again = mv.fit_spins(toy, folder=tmp_path, told=told.append, **SMALL)
    assert told
    assert not any(line.startswith("layer 0") for line in told)
    assert again.rows == mv.fit_spins(toy, **SMALL).rows
