"""01: what a head's pattern and message say, before any text is read.

Question: do the weights alone tell the previous-token head of a model from its other heads?
Run: `python analyses/01_pattern_and_message.py [MODEL]`. On `toy` it takes about ten seconds.

Finding, on `toy`: yes. A rotary head has one pattern per offset. Take the mean token as query and as
key: the score it gives itself, from embedding and pattern alone, is largest at offset 1 for L0H3, by 5.44
over the next offset; the other three heads of layer 0 have margins of 0.05 or less. L0H3 is the head that
attends to the previous token on text (0.98, see the model's card). No forward pass is used; the embedding
stands in for the stream, which is exact only in layer 0, so this says nothing about later layers.
"""

# %%
from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

import mechview as mv
from mechview.models.norms import norm_scale

OFFSETS = range(12)


@dataclass(frozen=True)
class OffsetProfile:
    """Mean score of token pairs by offset, in score units, and how far the best offset stands out."""

    label: str
    means: list[float]

    @property
    def best(self) -> int:
        return max(OFFSETS, key=lambda offset: self.means[offset])

    @property
    def margin(self) -> float:
        rest = [mean for offset, mean in enumerate(self.means) if offset != self.best]
        return self.means[self.best] - max(rest)


# %%
def profile(model: mv.Model, head: int) -> OffsetProfile:
    """Scores of layer 0 averaged over all token pairs: the mean query times the mean key, at each offset."""
    factors = mv.head_factors(model, layer=0, head=head)
    embedding = model.weights.ends().W_E.double()
    mean = (embedding / norm_scale(embedding, model.weights.attention(0).norm)).mean(0)
    means = []
    for offset in OFFSETS:
        pattern = factors.pattern(offset)
        means.append(float((mean @ pattern.left.double()) @ (pattern.right.double() @ mean)) * factors.scale)
    return OffsetProfile(factors.label, means)


# %%
def main(spec: str = "toy") -> list[OffsetProfile]:
    model = mv.load(spec)
    profiles = [profile(model, head) for head in range(model.shape.n_heads)]
    for found in profiles:
        print(f"{found.label}: best offset {found.best}, margin {found.margin:.3f} over the next")
    return profiles


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main(*sys.argv[1:2])
