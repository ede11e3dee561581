"""The encoder of an encoder-decoder model as a model of its own, with the pass it made.

Its ledger, its shares along a direction and its comparisons are then those of any encoder: nothing that is
written about streams has to know of two stacks. It has no unembedding; its end is the encoder's final norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mechview.errors import UsageError
from mechview.models.capture import Capture
from mechview.models.trace import Trace
from mechview.models.weights import AttentionWeights, EndWeights, MlpWeights, ModelShape, ModelWeights, Stack


@dataclass(frozen=True)
class EncoderWeights:
    """`ModelWeights` of the encoder alone."""

    whole: ModelWeights

    @property
    def shape(self) -> ModelShape:
        shape = self.whole.shape
        return replace(shape, n_layers=shape.n_encoder_layers, n_encoder_layers=0, stacks=("encoder",))

    def attention(self, layer: int, stack: Stack | None = None) -> AttentionWeights:
        return self.whole.attention(layer, "encoder")

    def mlp(self, layer: int, stack: Stack | None = None) -> MlpWeights:
        return self.whole.mlp(layer, "encoder")

    def ends(self) -> EndWeights:
        ends = self.whole.ends()
        return replace(ends, final_norm=ends.encoder_final_norm, W_U=None, b_U=None, head_transform=None, softcap=None)


def encoder_side(trace: Trace) -> Trace:
    """The encoder's part of a pass; the trace itself where the encoder is all there is.

    Raises:
        UsageError: the model has no encoder.
    """
    stacks = trace.weights.shape.stacks
    if "encoder" not in stacks:
        raise UsageError(f"this {trace.weights.shape.family} has no encoder")
    if len(stacks) == 1:
        return trace
    seen = trace.capture
    capture = Capture(
        attention={site: value for site, value in seen.attention.items() if site[0] == "encoder"},
        mlp={site: value for site, value in seen.mlp.items() if site[0] == "encoder"},
        post={site: value for site, value in seen.post.items() if site[0] == "encoder"},
        logits=None,
        backend=seen.backend,
    )
    return replace(
        trace, weights=EncoderWeights(trace.weights), capture=capture, tokens=trace.source_tokens, source_tokens=()
    )


def stack_prefix(weights: ModelWeights) -> str:
    """`E.` before the layers of an encoder that was taken out of a larger model."""
    return "E." if isinstance(weights, EncoderWeights) else ""


def prefixed(component: str, prefix: str) -> str:
    """A component's name as the whole model has it; embeddings keep theirs."""
    return prefix + component if prefix and component[:1] == "L" and component[1:2].isdigit() else component
