"""Bytes of tensors, counted by the allocator: exact and the same on every run, unlike resident memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most that `work` held at once beyond what was held when it began."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = work()
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = top = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        top = max(top, held)
    del kept
    return top


def held_bytes(*things: Any) -> int:
    """Bytes of the storages behind all tensors inside records, lists and dicts; each storage once."""
    found: dict[int, int] = {}
    queue = list(things)
    while queue:
        thing = queue.pop()
        if isinstance(thing, Tensor):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(thing, dict):
            queue += thing.values()
        elif isinstance(thing, list | tuple):
            queue += thing
        elif hasattr(thing, "__dataclass_fields__"):
            queue += [getattr(thing, name) for name in thing.__dataclass_fields__]
    return sum(found.values())
