"""Direct attribution of all heads at all positions, timed, weighed and checked beside the original library.

GPT-2-small's shape with random weights, 8 prompts of 256 tokens. Theirs (TransformerLens 4.3): `stack_head_results`
then `logit_attrs` on a cache of `hook_z` and the final scale; for the pass, `run_with_cache` limited to `hook_z` and
the norm scales. Ours: `direct_attribution` on light traces (all rows, with completeness), and pass plus attribution
together. Sides alternate in one process; the ratio is of the best times, and the median ratio of pairs stands beside.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformer_lens.model_bridge.sources import build_bridge_from_module

import mechview as mv
from tests.memory import peak_bytes

PROMPTS, LENGTH = 8, 256


@dataclass(frozen=True)
class Race:
    """Seconds of each pair of runs, and the processor's own seconds (all threads together)."""

    theirs: tuple[float, ...]
    ours: tuple[float, ...]
    their_work: tuple[float, ...]
    our_work: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return min(self.theirs) / min(self.ours)

    @property
    def median_ratio(self) -> float:
        return statistics.median(a / b for a, b in zip(self.theirs, self.ours, strict=True))

    @property
    def processor_ratio(self) -> float:
        return min(self.their_work) / min(self.our_work)


@dataclass(frozen=True)
class Bench:
    """One model on both sides, with the same random weights, prompts and targets."""

    bridge: Any
    model: mv.Model
    tokens: Tensor
    targets: Tensor

    def their_pass(self) -> Any:
        wanted = lambda name: name.endswith(("attn.hook_z", "hook_scale"))  # noqa: E731
        return self.bridge.run_with_cache(self.tokens, names_filter=wanted)[1]

    def their_heads(self, cached: Any, targets: Tensor | int) -> Tensor:
        """`[layer * head, prompt, pos]`; what stacking leaves in the cache is taken out again."""
        stack = cached.stack_head_results(layer=-1)
        found = cached.logit_attrs(stack, tokens=targets)
        for name in [name for name in cached.cache_dict if name.endswith("hook_result")]:
            del cached.cache_dict[name]
        return found

    def our_traces(self) -> list[mv.WriteTrace]:
        return list(mv.write_traces(self.model, self.tokens))

    def our_heads(self, traces: list[mv.WriteTrace]) -> Tensor:
        """The same numbers for a target of each position's own; every other row is computed as well."""
        return stacked(mv.direct_attribution(t, each=ids.tolist()) for t, ids in zip(traces, self.targets, strict=True))

    def our_ledgers(self) -> list[mv.Attribution]:
        """Passes and whole head-level ledgers along a direction, prompt by prompt."""
        return list(mv.direct_attributions(mv.write_traces(self.model, self.tokens), 5, 7))


def stacked(found: Any) -> Tensor:
    return torch.stack([one.heads.flatten(0, 1) for one in found], dim=1)


@cache
def bench(layers: int = 12, heads: int = 12, width: int = 768, vocabulary: int = 50257) -> Bench:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, n_positions=LENGTH, bos_token_id=0,
        eos_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    module = transformers.GPT2LMHeadModel(config).eval()
    bridge = build_bridge_from_module(copy.deepcopy(module), "GPT2LMHeadModel", hf_config=config).eval()
    tokens, targets = (torch.randint(vocabulary, (PROMPTS, LENGTH)) for _ in range(2))
    return Bench(bridge, mv.wrap(module, name="gpt2 shape"), tokens, targets)


def race(theirs: Callable[[], Any], ours: Callable[[], Any], repeats: int) -> Race:
    """Both sides alternately; one run of each before counts nothing."""
    theirs(), ours()
    measured: dict[Callable[[], Any], list[tuple[float, float]]] = {theirs: [], ours: []}
    for _ in range(repeats):
        for work, kept in measured.items():
            started, worked = time.perf_counter(), time.process_time()
            work()
            kept.append((time.perf_counter() - started, time.process_time() - worked))
    (their_wall, their_work), (our_wall, our_work) = (tuple(zip(*kept, strict=True)) for kept in measured.values())
    return Race(their_wall, our_wall, their_work, our_work)


@torch.no_grad()
def races(repeats: int) -> dict[str, Race]:
    """Heads with a target a position, heads with one target for all, and the pass with its ledger."""
    on = bench()
    cached, traces = on.their_pass(), on.our_traces()
    one = lambda: [mv.direct_attribution(trace, 5) for trace in traces]  # noqa: E731
    return {
        "heads, a target a position": race(
            lambda: on.their_heads(cached, on.targets), lambda: on.our_heads(traces), repeats
        ),
        "heads, one target": race(lambda: on.their_heads(cached, 5), one, repeats),
        "pass and ledger": race(on.their_pass, on.our_ledgers, repeats),
    }


@torch.no_grad()
def peaks(on: Bench) -> tuple[int, int]:
    """Extra bytes at the peak of attribution alone, theirs and ours."""
    cached, traces = on.their_pass(), on.our_traces()
    on.our_heads(traces)  # maps are read, as they would be for any earlier prompt
    return peak_bytes(lambda: on.their_heads(cached, on.targets)), peak_bytes(lambda: on.our_heads(traces))
