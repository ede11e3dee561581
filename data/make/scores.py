"""What a bundled model can do, measured with the original library alone.

On `BOS + R + R`, R being n random tokens (positions 1..n and n+1..2n):
    previous token   mean of A[i, i-1] over i >= 2, for each head
    induction        mean of A[i, i-n+1] over the second copy, for each head: the weight on
                     the token that followed the present one the first time
    loss             nats per token in the first and in the second copy, and their difference
On held-out text: nats per token, over windows that start with BOS and do not overlap.

Definitions as in Olsson et al. 2022, "In-context learning and induction heads".
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from corpus import BOS_ID

HALF = 50
ROWS = 32


def repeated_random(vocab: int, generator: torch.Generator, half: int = HALF, rows: int = ROWS) -> Tensor:
    segment = torch.randint(BOS_ID + 1, vocab, (rows, half), generator=generator)
    return torch.nn.functional.pad(torch.cat([segment, segment], 1), (1, 0), value=BOS_ID)


def diagonal(patterns: Tensor, offset: int, first: int) -> Tensor:
    """Mean of A[i, i - offset] over i >= first: [head, q_pos, k_pos] -> [head]."""
    return patterns.diagonal(-offset, -2, -1)[..., first - offset :].mean(-1)


def token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Nats for each token after the first: [row, position - 1]."""
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)


def by_label(scores: Tensor) -> dict[str, float]:
    return {
        f"L{layer}H{head}": round(float(value), 4) for layer, row in enumerate(scores) for head, value in enumerate(row)
    }


@torch.no_grad()
def repeat_scores(model: PreTrainedModel, seeds: tuple[int, ...], half: int = HALF) -> dict:
    """Head scores and losses on repeated random tokens, averaged over the seeds."""
    model.set_attn_implementation("eager")
    previous, induction, losses = [], [], []
    for seed in seeds:
        ids = repeated_random(model.config.vocab_size, torch.Generator().manual_seed(seed), half)
        out = model(ids, output_attentions=True)
        patterns = torch.stack(out.attentions).mean(1)
        previous.append(diagonal(patterns, 1, first=2))
        induction.append(diagonal(patterns, half - 1, first=half + 1))
        losses.append(token_losses(out.logits, ids).mean(0))
    model.set_attn_implementation("sdpa")
    loss = torch.stack(losses).mean(0)
    first, second = float(loss[:half].mean()), float(loss[half:].mean())
    return {
        "previous_token": by_label(torch.stack(previous).mean(0)),
        "induction": by_label(torch.stack(induction).mean(0)),
        "loss_first_copy": round(first, 4),
        "loss_second_copy": round(second, 4),
        "loss_drop": round(first - second, 4),
    }


@torch.no_grad()
def text_loss(model: PreTrainedModel, ids: Tensor) -> float:
    """Nats per token of a text given as ids without BOS; the last, shorter window is left out."""
    window = model.config.max_position_embeddings - 1
    windows = ids[: len(ids) // window * window].view(-1, window)
    rows = torch.nn.functional.pad(windows, (1, 0), value=BOS_ID)
    losses = [token_losses(model(part).logits, part) for part in rows.split(ROWS)]
    return float(torch.cat(losses).mean())
