"""The studies run on `toy`, and what they say they found is what they find."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

STUDIES = Path(__file__).resolve().parents[2] / "analyses"


def study(number: str):
    [path] = STUDIES.glob(f"{number}_*.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_study_01_finds_the_previous_token_head_in_the_weights():
    module = study("01")
    profiles = {found.label: found for found in module.main()}
    [margin, *others] = sorted((found.margin for found in profiles.values()), reverse=True)
    assert profiles["L0H3"].best == 1
    assert f"{profiles['L0H3'].margin:.2f}" in module.__doc__
    assert margin == profiles["L0H3"].margin
    [bound] = re.findall(r"margins of (0\.\d+) or less", module.__doc__)
    assert max(others) <= float(bound) + 0.005


def test_study_02_adds_up_to_the_numbers_it_prints():
    module = study("02")
    errors, parts = module.main()
    assert set(errors) == set(module.GRAINS)
    assert max(max(pair) for pair in errors.values()) < 1e-6
    for name in ("total", "L0.mlp", "L1.mlp", "L1.attn", "embed"):
        assert f"{parts[name]:.2f}" in module.__doc__, name
    rows = sum(value for name, value in parts.items() if name != "total")
    assert abs(rows - parts["total"]) < 1e-5


def test_study_09_trains_spin_blocks_to_the_numbers_it_states():
    module = study("09")
    found = module.main(steps=20)
    first, last = found["spin"][0], found["spin"][-1]
    for value in (first.loss, last.loss, found["attention"][-1].loss):
        assert f"{value:.2f}" in module.__doc__
    assert last.accuracy > 2 / module.ALPHABET
    assert len(last.energy) == module.BLOCKS
    assert max(last.participation) < max(first.participation)


def test_study_07_finds_what_it_says_of_the_stream_and_the_lstm():
    module = study("07")
    found, _, quoted = module.main()
    for name, value in quoted.items():
        if "cue" not in name and "16" not in name:
            assert f"{value:.2f}" in module.__doc__, name
    assert quoted["toy drop"] > 6 > 1 > quoted["twin drop"]
    verdicts = {one.mapping: one.verdict.value for one in found.analogies}
    assert verdicts["algebra"] == verdicts["effect: embedding"] == "vacuous"
