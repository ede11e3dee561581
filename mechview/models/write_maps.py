"""What a direction needs of the weights: each layer's output map, the norms that writes pass, and the ends.

Attribution along a direction never touches queries, keys, values or the inside of an MLP. These records hold
the rest, read once for any number of prompts: views of a live module's storage, or `W_O` alone of a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from mechview.models.native import stack_layout, stack_names
from mechview.models.reader import NamedWeights, block_path
from mechview.models.tensors import NamedTensors
from mechview.models.weights import EndWeights, ModelShape, ModelWeights, NormWeights, Stack


@dataclass(frozen=True)
class WriteMap:
    """One sublayer: the norms its write and the stream after it pass. An MLP has no `W_O` and no bias of its own."""

    post_norm: NormWeights
    stream_norm: NormWeights
    multiplier: float
    W_O: Float[Tensor, "head d_head d_model"] | None = None
    b_O: Float[Tensor, "d_model"] | None = None


@dataclass(frozen=True)
class WriteMaps:
    """The maps of the stack that has the logits; cross-attention is part of the decoder's blocks."""

    weights: ModelWeights

    @property
    def shape(self) -> ModelShape:
        return self.weights.shape

    @property
    def stack(self) -> Stack:
        return self.shape.stacks[0] if len(self.shape.stacks) == 1 else "decoder"

    @property
    def attention_stacks(self) -> tuple[Stack, ...]:
        """Attentions of one block, in the order they write."""
        return (self.stack,) if len(self.shape.stacks) == 1 else (self.stack, "cross")

    @cached_property
    def attention(self) -> dict[tuple[Stack, int], WriteMap]:
        layers = range(self.shape.layers(self.stack))
        return {(stack, layer): self._attention(stack, layer) for layer in layers for stack in self.attention_stacks}

    @cached_property
    def mlp(self) -> dict[int, WriteMap]:
        return {layer: self._mlp(layer) for layer in range(self.shape.layers(self.stack))}

    @cached_property
    def ends(self) -> EndWeights:
        return self.weights.ends()

    def _attention(self, stack: Stack, layer: int) -> WriteMap:
        if not isinstance(self.weights, NamedWeights):
            seen = self.weights.attention(layer, stack)
            return WriteMap(seen.post_norm, seen.stream_norm, seen.multiplier, seen.W_O, seen.b_O)
        tensors, block = self._tensors(self.weights, layer)
        names = stack_names(self.weights.layout, stack)
        W_O = tensors.matrix(block + names.output).unflatten(0, (self.shape.n_heads, self.shape.d_head))
        return WriteMap(
            post_norm=tensors.norm(block, names.post_norm),
            stream_norm=tensors.norm(block, names.stream_norm),
            multiplier=self._multiplier(self.weights),
            W_O=W_O,
            b_O=tensors.optional(block + names.output + ".bias"),
        )

    def _mlp(self, layer: int) -> WriteMap:
        if not isinstance(self.weights, NamedWeights):
            seen = self.weights.mlp(layer, self.stack)
            return WriteMap(seen.post_norm, seen.stream_norm, seen.multiplier)
        tensors, block = self._tensors(self.weights, layer)
        names = tensors.layout.mlp
        return WriteMap(
            post_norm=tensors.norm(block, names.post_norm),
            stream_norm=tensors.norm(block, names.stream_norm),
            multiplier=self._multiplier(self.weights),
        )

    def _tensors(self, weights: NamedWeights, layer: int) -> tuple[NamedTensors, str]:
        layout = stack_layout(weights.layout, self.stack)
        return NamedTensors(weights.source, layout, weights.config), block_path(
            weights.config, layout, self.shape, layer
        )

    @staticmethod
    def _multiplier(weights: NamedWeights) -> float:
        return float(getattr(weights.config, "residual_multiplier", 1.0))
