"""The first rows of the ledger: token, position and token-type embedding, and the norm over their sum."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.models.trace import Trace
from mechview.models.weights import EndWeights, Stack
from mechview.residual.rows import Step, Transport, Write, transport


def embed_steps(trace: Trace, stack: Stack) -> Iterator[Step]:
    """Steps from nothing to the stream before the first block."""
    ids = [token.id for token in trace.tokens_of(stack)[0]]
    yield from token_steps(trace.weights.ends(), ids, trace.stream(0, "pre", stack), trace.start_of(stack))


def token_steps(ends: EndWeights, ids: list[int], like: Float[Tensor, "pos d_model"], start: int = 0) -> Iterator[Step]:
    """The same from token ids, in the dtype and on the device of `like`; `start` is the first one's position."""
    names, rows = embedding_rows(ends, torch.tensor(ids, device=like.device), like.dtype, start)
    yield Write(names, rows)
    total = rows.sum(0)
    if ends.embed_norm.kind != "none":
        yield from transport(ends.embed_norm, total, "embed_norm_bias")
    if ends.embed_projection is not None and not projects_first(ends):
        yield Transport(ends.embed_norm, torch.ones_like(total[:, :1]), "", ends.embed_projection)
        if ends.embed_projection_bias is not None:
            yield Write(("embed_projection_bias",), ends.embed_projection_bias.to(like).expand_as(like)[None])


def embedding_rows(
    ends: EndWeights, ids: Int[Tensor, "pos"], dtype: torch.dtype, start: int = 0
) -> tuple[tuple[str, ...], Float[Tensor, "component pos d_embed"]]:
    """Token embedding (with its multiplier), then position and token type 0 where the family has them."""
    named = {"embed": ends.W_E[ids].to(dtype) * ends.embed_scale}
    if ends.embed_projection is not None and projects_first(ends):
        named["embed"] = named["embed"] @ ends.embed_projection.to(dtype)
    if ends.W_pos is not None:
        named["pos_embed"] = ends.W_pos[start : start + len(ids)].to(dtype)
    if ends.W_type is not None:
        named["type_embed"] = ends.W_type[:1].to(dtype).expand(len(ids), -1)
    return tuple(named), torch.stack(list(named.values()))


def projects_first(ends: EndWeights) -> bool:
    """OPT-350m projects the token embedding before positions are added, ALBERT the normed sum."""
    return ends.embed_projection is not None and ends.embed_norm.kind == "none"
