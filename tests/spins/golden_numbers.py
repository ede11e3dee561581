"""The golden numbers (float64, independent derivation), read as nested values and tensors."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch

FILE = Path(__file__).resolve().parents[1] / "golden" / "golden.json"
RTOL, ATOL = 1e-9, 1e-12


@cache
def everything():
    return json.loads(FILE.read_text(encoding="utf-8"))


def group(name: str):
    return everything()[name]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def assert_golden(found, expected):
    found = found.detach().double() if isinstance(found, torch.Tensor) else tensor(found)
    torch.testing.assert_close(found, tensor(expected).reshape(found.shape), rtol=RTOL, atol=ATOL)
