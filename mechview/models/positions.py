"""What each family adds to content in a score: rotations of queries and keys, or a bias by position.

`R(t)` acts on row vectors, `q R(t)`, and turns each pair of coordinates by `t * frequency`, so that
`(q R(i)) (k R(j))^T = q R(i - j) k^T` times the squared attention factor. Pairs are `(n, n + width/2)`
(Llama, NeoX, ...) or `(2n, 2n + 1)` (GPT-J, Cohere: `interleaved`). Sources: Su et al. 2021 (rotary),
Press et al. 2021 (ALiBi), Raffel et al. 2020 (relative bias).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechview.models.weights import Alibi, RelativeBias, Rotary


def rotation(
    rotary: Rotary, offset: int, d_head: int, length: int | None = None, root: bool = False
) -> Float[Tensor, "d_head d_head"]:
    """The matrix that a score at `offset = q_pos - k_pos` puts between query and key, in float64.

    The squared attention factor of yarn and longrope is part of it; `root` takes the factor once, which
    is what one side gets. `length` is the context length that dynamic and longrope scaling depend on.
    """
    frequency, factor = rotary.frequencies(length)
    angle = offset * frequency.double()
    size = factor if root else factor**2
    cos, sin = angle.cos() * size, angle.sin() * size
    half = rotary.width // 2
    first = torch.arange(half) * 2 if rotary.interleaved else torch.arange(half)
    second = first + (1 if rotary.interleaved else half)
    R = torch.eye(d_head, dtype=torch.float64, device=frequency.device)
    R[first, first] = R[second, second] = cos
    R[first, second], R[second, first] = sin, -sin
    return R


def relative_bucket(offset: Int[Tensor, "q_pos k_pos"], bias: RelativeBias) -> Int[Tensor, "q_pos k_pos"]:
    """T5's bucket of `k_pos - q_pos`: exact for small distances, logarithmic up to `max_distance`."""
    buckets = bias.table.shape[0]
    distance = -offset
    side = torch.zeros_like(offset)
    if bias.bidirectional:
        buckets //= 2
        side = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(bias.max_distance / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return side + torch.where(distance < exact, distance, far)


def position_bias(
    bias: Alibi | RelativeBias | None, q_pos: Int[Tensor, "q_pos"], k_pos: Int[Tensor, "k_pos"], scale: float
) -> Float[Tensor, "head q_pos k_pos"] | None:
    """What is added to the scaled score; Falcon adds ALiBi before scaling, so there it is scaled too."""
    if bias is None:
        return None
    if isinstance(bias, Alibi):
        slopes = bias.slopes.bfloat16() if bias.half else bias.slopes
        added = slopes[:, None, None] * k_pos.to(slopes)[None, None, :].expand(1, len(q_pos), -1)
        return added.double() * (scale if bias.before_scale else 1.0)
    return bias.table[relative_bucket(q_pos[:, None] - k_pos[None, :], bias)].permute(2, 0, 1)


def visible(q_pos: Int[Tensor, "q_pos"], k_pos: Int[Tensor, "k_pos"], causal: bool, window: int | None) -> torch.Tensor:
    """Which keys each query may look at, `[q_pos, k_pos]` of bool."""
    offset = q_pos[:, None] - k_pos[None, :]
    allowed = offset >= 0 if causal else torch.ones_like(offset, dtype=torch.bool)
    return allowed if window is None else allowed & (offset < window)
