"""Detailed balance: how far the unmasked logits are from those of a reversible chain.

With `N = (l - l^T)/2` and the potential `u_i = mean_j N_ij`, the curl is `N_ij - (u_i - u_j)`; the index is its
square over `|l - rowmean|^2`, off the diagonal. It is 0 if and only if the chain with rows `softmax(l)` obeys
detailed balance (Kolmogorov), and does not change when a constant is added to a row. A causal pattern
itself is asymmetric by its mask and says nothing, so the content `scale q_i . k_j` of all pairs is used.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.spins.layers import controls as c
from mechview.spins.layers.controls import Null
from mechview.spins.layers.keys import Key, Samples
from mechview.spins.layers.site import Site

CURL = "curl index"


def curl_index(logits: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """Squared curl over squared row-centred logits, off the diagonal; 0 for a reversible chain."""
    off = ~torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
    curl = curl_of(logits).masked_fill(~off, 0.0)
    spread = (logits - logits.mean(-1, keepdim=True)).masked_fill(~off, 0.0)
    return curl.square().sum((-1, -2)) / spread.square().sum((-1, -2)).clamp(min=1e-30)


def curl_of(logits: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """What is left of the antisymmetric half after the best potential."""
    N = (logits - logits.mT) / 2
    u = N.mean(-1)
    return N - (u[..., :, None] - u[..., None, :])


def measure(site: Site, nulls: list[Null], samples: Samples) -> None:
    """Every head's index without position 0, and its three controls."""
    series = [(Key(CURL), site.content)]
    for null in nulls:
        series.append((Key(CURL, control=c.KEYS, draw=null.draw), null.content))
        if null.entry_content is not None:
            series.append((Key(CURL, control=c.ENTRIES, draw=null.draw), null.entry_content))
    kv_head = site.layer.attention.kv_head
    group = len(kv_head) // max(1, len(kv_head.unique()))
    for n in range(1, len(kv_head.unique())):
        series.append((Key(CURL, control=c.GROUP, draw=n - 1), site.query @ site.key.roll(group * n, 0).mT))
    for key, content in series:
        samples.add_mean(key, curl_index(content[:, 1:, 1:]).tolist())
