"""The form of a layout: which tensors and modules a family has, by role, and which of its habits matter.

A name may hold `{layer}`. Names are those of the original library's module tree, so they serve as
tensor names (`.weight`, `.bias` appended) and as module paths for hooks. A missing role is `None`.
The rows themselves stand in `families.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Placement = Literal["pre", "post", "sandwich", "parallel", "write"]


@dataclass(frozen=True)
class Fused:
    """Query, key and value in one matrix.

    `concat`: all queries, then all keys, then all values. `grouped`: per key/value head its queries,
    then its key, then its value (NeoX and BLOOM are the case of one query per group).
    """

    name: str
    order: Literal["concat", "grouped"]


@dataclass(frozen=True)
class AttentionNames:
    """Modules of one attention layer, relative to its block.

    `norm` stands before it, `post_norm` on its write (sandwich norms), `stream_norm` on the stream after
    the write was added (post-norm models).
    """

    query: str | Fused
    output: str
    key: str | None = None
    value: str | None = None
    norm: str | None = None
    post_norm: str | None = None
    stream_norm: str | None = None
    q_norm: str | None = None
    k_norm: str | None = None
    sinks: str | None = None
    relative_bias: str | None = None


@dataclass(frozen=True)
class MlpNames:
    """`up`, `gate`, `down` are modules; `fused_gate` holds gate then up; experts are 3-d parameters."""

    module: str
    down: str
    up: str | None = None
    gate: str | None = None
    fused_gate: str | None = None
    norm: str | None = None
    post_norm: str | None = None
    stream_norm: str | None = None
    router: str | None = None
    experts: Literal["none", "out in", "in out interleaved"] = "none"


@dataclass(frozen=True)
class EndNames:
    """Modules before the first and after the last block, by their full paths."""

    embed: str
    unembed: str = "lm_head"
    unembed_bias: str | None = None
    position: str | None = None
    position_offset: int = 0
    token_type: str | None = None
    embed_norm: str | None = None
    embed_projection: str | None = None
    unembed_projection: str | None = None
    final_norm: str | None = None
    transform: str | None = None
    transform_norm: str | None = None


@dataclass(frozen=True)
class Layout:
    """One family. `base` is the prefix that checkpoints of the bare model (without a head) leave out.

    `linear` is the orientation of stored matrices, `gain_offset` what is added to stored norm gains.
    `bridge` says whether TransformerLens gives this family's quantities, `bridge_scores` whether its score
    hook is the score (elsewhere it holds the pattern), `bridge_mlp` the hook of the MLP's own output.
    """

    base: str
    block: str
    attention: AttentionNames
    mlp: MlpNames
    ends: EndNames
    norm: Literal["rms", "layer"] = "rms"
    placement: Placement = "pre"
    gain_offset: float = 0.0
    linear: Literal["out in", "in out"] = "out in"
    qk_norm_across_heads: bool = False
    rotary_interleaved: bool = False
    causal: bool = True
    bridge: bool = True
    bridge_scores: bool = True
    bridge_mlp: str = "mlp.hook_out"
    cross: AttentionNames | None = None
    encoder: Layout | None = None
