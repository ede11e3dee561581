"""A model made by hand whose heads do one thing each, and nothing else, so that every role is known.

The stream has a slot for the token, one for the position, one for the previous token and one for what is
promoted; queries and keys pick slots with a gain that makes attention exact, messages move slots.
"""

from __future__ import annotations

from functools import cache

import torch

import mechview as mv

VOCAB, LENGTH, HEADS, GAIN = 52, 104, 4, 400.0
TOKEN, PLACE, BEFORE, OUT = (slice(start, stop) for start, stop in ((0, 52), (52, 156), (156, 208), (208, 260)))
WIDTH, INNER = 260, 104


def layer() -> dict[str, torch.Tensor]:
    shape = (HEADS, WIDTH, INNER)
    return {name: torch.zeros(shape) for name in ("W_Q", "W_K", "W_V")} | {"W_O": torch.zeros(HEADS, INNER, WIDTH)}


def moves(arrays: dict[str, torch.Tensor], head: int, source: slice, target: slice) -> None:
    """The head's message: the source slot, as it is, into the target slot."""
    size = source.stop - source.start
    arrays["W_V"][head, source, :size] = torch.eye(size)
    arrays["W_O"][head, :size, target] = torch.eye(size)


def matches(arrays: dict[str, torch.Tensor], head: int, query: slice, key: slice) -> None:
    """The head looks where the key's slot equals the query's."""
    size = query.stop - query.start
    arrays["W_Q"][head, query, :size] = torch.eye(size) * GAIN
    arrays["W_K"][head, key, :size] = torch.eye(size)


def back(arrays: dict[str, torch.Tensor], head: int, distance: int) -> None:
    """The head looks `distance` positions back; where there is none, everywhere alike."""
    arrays["W_Q"][head, PLACE, :] = torch.eye(LENGTH) * GAIN
    arrays["W_K"][head, PLACE, :] = torch.eye(LENGTH).roll(distance, 1)
    arrays["W_K"][head, PLACE, :distance] = 0.0


ROLES = {
    "L0H0": {"previous_token"},
    "L0H1": {"duplicate_token"},
    "L0H2": {"sink"},
    "L0H3": {"unknown"},
    "L1H0": {"induction", "copier", "name_mover"},
    "L1H1": {"positional"},
    "L1H2": {"copier", "name_mover"},
    "L1H3": {"copy_suppressor"},
}


@cache
def model(order: tuple[int, ...] = (0, 1, 2, 3), dtype: torch.dtype = torch.float32):
    """The hand-made model; `order` permutes the heads of both layers."""
    first, second = layer(), layer()
    back(first, 0, 1)
    moves(first, 0, TOKEN, BEFORE)
    matches(first, 1, TOKEN, TOKEN)
    first["W_Q"][2, TOKEN, 0] = GAIN
    first["W_K"][2, PLACE.start, 0] = 1.0
    matches(second, 0, TOKEN, BEFORE)
    moves(second, 0, TOKEN, OUT)
    back(second, 1, 5)
    moves(second, 2, TOKEN, OUT)
    moves(second, 3, TOKEN, OUT)
    second["W_V"][3] *= -1.0
    embed, place, unembed = torch.zeros(VOCAB, WIDTH), torch.zeros(LENGTH, WIDTH), torch.zeros(WIDTH, VOCAB)
    embed[:, TOKEN], place[:, PLACE], unembed[OUT] = torch.eye(VOCAB), torch.eye(LENGTH), torch.eye(VOCAB)
    layers = [{name: W[list(order)].to(dtype) for name, W in arrays.items()} for arrays in (first, second)]
    return mv.from_arrays(
        W_E=embed.to(dtype),
        W_pos=place.to(dtype),
        W_U=unembed.to(dtype),
        position="learned",
        layers=layers,
        name="planted",
    )
