"""A pass that keeps only what was written: every head's `z`, every MLP's write, and the scales of the norms.

The whole trace holds patterns, `[head, q_pos, k_pos]` a layer, and several copies of the stream; attribution
along a direction needs neither. What is kept here grows linearly with the prompt. Prompts are run one at a
time and never padded, and `write_traces` hands each on before the next is run, so memory does not grow with
their number. Families whose pass is not the original module's (plain arrays, a caller's bridge) are traced
whole and cut down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from mechview.errors import CheckError, ModelError
from mechview.models.load import Model
from mechview.models.modules import reset_dynamic_rotary
from mechview.models.native import find_module, stack_layout, stack_names
from mechview.models.norms import norm_scale
from mechview.models.reader import NamedWeights, block_path
from mechview.models.trace import Trace, as_added
from mechview.models.tracing import Bos, Prompt, as_model, decoder_ids, encode, trace
from mechview.models.weights import NormWeights, Stack
from mechview.models.write_maps import WriteMap, WriteMaps
from mechview.tokens import Token, describe

Scale = Float[Tensor, "pos 1"]
Heard = dict[tuple[str, str], list[Tensor]]


@dataclass(frozen=True)
class AttentionWrite:
    """What an attention layer wrote: `z` before `W_O`, and the frozen scales behind it (None: no such norm)."""

    z: Float[Tensor, "pos head d_head"]
    post_scale: Scale | None
    stream_scale: Scale | None


@dataclass(frozen=True)
class MlpWrite:
    """An MLP's output before any post-norm or multiplier, and the frozen scales behind it."""

    written: Float[Tensor, "pos d_model"]
    post_scale: Scale | None
    stream_scale: Scale | None


@dataclass(frozen=True)
class WriteTrace:
    """One pass, as far as a direction needs it. `final` is the model's own stream after the last block."""

    model: str
    maps: WriteMaps = field(repr=False)
    tokens: tuple[Token, ...]
    attention: dict[tuple[Stack, int], AttentionWrite] = field(repr=False)
    mlp: dict[int, MlpWrite] = field(repr=False)
    final: Float[Tensor, "pos d_model"] = field(repr=False)
    logits: Float[Tensor, "pos d_vocab"] | None = field(repr=False)
    tokenizer: Any | None = field(default=None, repr=False, compare=False)
    revision: str | None = None

    def __repr__(self) -> str:
        return f"WriteTrace({self.model!r}, {len(self.tokens)} tokens)"


def write_trace(
    model: Model | Any, prompt: Prompt, *, bos: Bos = "auto", decoder: Prompt | None = None,
    maps: WriteMaps | None = None,
) -> WriteTrace:  # fmt: skip
    """What one pass wrote, for one prompt; arguments as in `mv.trace`.

    Args:
        maps: the model's output maps, where they were read before (for another prompt).

    Raises:
        PromptError: as `mv.trace`. CheckError: the pass gave NaN or infinity.
    """
    model = as_model(model)
    maps = maps or WriteMaps(model.weights)
    if model.source.kind in ("arrays", "bridge"):
        return written_in(trace(model, prompt, bos=bos, decoder=decoder), maps)
    model.check_runs()
    ids = encode(model, prompt, bos)
    target = decoder_ids(model, decoder) if model.shape.n_encoder_layers else None
    return finite_writes(_pass(model, maps, ids, target))


def write_traces(model: Model | Any, prompts: Iterable[Prompt], *, bos: Bos = "auto") -> Iterator[WriteTrace]:
    """One light trace a prompt, each run only when it is asked for; the weights are read once."""
    maps = WriteMaps(as_model(model).weights)
    for prompt in prompts:
        yield write_trace(model, prompt, bos=bos, maps=maps)


def written_in(seen: Trace, maps: WriteMaps | None = None) -> WriteTrace:
    """The same record cut out of a whole trace."""
    maps = maps or WriteMaps(seen.weights)
    stack = maps.stack
    layers = range(maps.shape.layers(stack))
    return WriteTrace(
        model=seen.model,
        maps=maps,
        tokens=seen.tokens,
        attention={(name, n): _attention_of(seen, name, n) for n in layers for name in maps.attention_stacks},
        mlp={n: _mlp_of(seen, stack, n, maps.mlp[n]) for n in layers},
        final=seen.stream_final,
        logits=seen.logits,
        tokenizer=seen.tokenizer,
        revision=seen.revision,
    )


def finite_writes(found: WriteTrace) -> WriteTrace:
    """The trace, if every number in it is one.

    Raises:
        CheckError: NaN or infinity, with the layer.
    """
    for (stack, layer), seen in found.attention.items():
        if not torch.isfinite(seen.z).all():
            raise CheckError(f"the forward pass gives NaN or infinity in layer {layer} ({stack}), in its heads")
        if stack == found.maps.stack and not torch.isfinite(found.mlp[layer].written).all():
            raise CheckError(f"the forward pass gives NaN or infinity in layer {layer} ({stack}), in its MLP")
    if not torch.isfinite(found.final).all():
        raise CheckError("the forward pass gives NaN or infinity in the final stream")
    return found


def _attention_of(seen: Trace, stack: Stack, layer: int) -> AttentionWrite:
    capture, weights = seen.attention(layer, stack), seen.weights.attention(layer, stack)
    after = capture.stream + as_added(capture.written, capture, weights)
    return AttentionWrite(capture.z, _scale(capture.written, weights.post_norm), _scale(after, weights.stream_norm))


def _mlp_of(seen: Trace, stack: Stack, layer: int, maps: WriteMap) -> MlpWrite:
    capture = seen.capture.mlp[stack, layer]
    scale, gain = _scale(capture.written, maps.post_norm), maps.post_norm.gain
    added = capture.written if scale is None else capture.written / scale
    added = (added if gain is None else added * gain.to(added)) * maps.multiplier
    return MlpWrite(capture.written, scale, _scale(capture.stream + added, maps.stream_norm))


def _scale(x: Tensor, norm: NormWeights) -> Tensor | None:
    return None if norm.kind == "none" else norm_scale(x, norm)


@torch.no_grad()
def _pass(model: Model, maps: WriteMaps, ids: list[int], target: list[int] | None) -> WriteTrace:
    reset_dynamic_rotary(model.module)
    listener = Listener(model.module, model.weights, maps)  # type: ignore[arg-type]
    keywords: dict[str, Any] = {"use_cache": False}
    if target is not None:
        keywords["decoder_input_ids"] = torch.tensor(target, device=model.device)[None]
    with listener.listening():
        output = model.module(torch.tensor(ids, device=model.device)[None], **keywords)
    logits = getattr(output, "logits", None) if listener.weights.has_head else None
    return WriteTrace(
        model=model.name,
        maps=maps,
        tokens=describe(ids if target is None else target, model.tokenizer),
        attention={site: listener.attention(*site) for site in maps.attention},
        mlp={layer: listener.mlp(layer) for layer in maps.mlp},
        final=listener.said("out", listener.block(maps.shape.layers(maps.stack) - 1).removesuffix(".")),
        logits=None if logits is None else logits[0],
        tokenizer=model.tokenizer,
        revision=model.source.revision,
    )


@dataclass
class Listener:
    """Hooks that keep a tensor or, of a norm's input, its scale alone. One block may be called often (ALBERT)."""

    module: nn.Module
    weights: NamedWeights
    maps: WriteMaps
    heard: Heard = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def listening(self) -> Iterator[None]:
        handles = []
        try:
            for (kind, path), keep in sorted(self._wanted().items()):
                part = find_module(self.module, path, self.weights.layout.base)
                handles.append(
                    part.register_forward_hook(self._after(path))
                    if kind == "out"
                    else part.register_forward_pre_hook(self._before(kind, path, keep), with_kwargs=True)
                )
            yield
        finally:
            for handle in handles:
                handle.remove()

    def attention(self, stack: Stack, layer: int) -> AttentionWrite:
        names, block = stack_names(self.weights.layout, stack), self.block(layer)
        z = self.said("in", block + names.output, layer)
        return AttentionWrite(
            z=rearrange(z, "pos (head d_head) -> pos head d_head", head=self.maps.shape.n_heads),
            post_scale=self._scale(block, names.post_norm, layer),
            stream_scale=self._scale(block, names.stream_norm, layer),
        )

    def mlp(self, layer: int) -> MlpWrite:
        names, block = stack_layout(self.weights.layout, self.maps.stack).mlp, self.block(layer)
        return MlpWrite(
            written=self.said("out", block + names.module, layer),
            post_scale=self._scale(block, names.post_norm, layer),
            stream_scale=self._scale(block, names.stream_norm, layer),
        )

    def block(self, layer: int) -> str:
        layout = stack_layout(self.weights.layout, self.maps.stack)
        return block_path(self.weights.config, layout, self.maps.shape, layer)

    def said(self, kind: str, path: str, layer: int | None = None) -> Tensor:
        """What a hook heard at its call for this layer; the last call where none is named."""
        heard = self.heard[kind, path]
        call = len(heard) - 1 if layer is None else sum(self.block(n) == self.block(layer) for n in range(layer))
        if not 0 <= call < len(heard):
            raise ModelError(f"hook on {path} did not fire in this version of transformers: nothing is guessed")
        return heard[call]

    def _scale(self, block: str, name: str | None, layer: int) -> Tensor | None:
        return None if name is None else self.said("scale", block + name, layer)

    def _wanted(self) -> dict[tuple[str, str], Callable[[Tensor], Tensor]]:
        wanted: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {}
        mlp = stack_layout(self.weights.layout, self.maps.stack).mlp
        for (stack, layer), maps in self.maps.attention.items():
            names, block = stack_names(self.weights.layout, stack), self.block(layer)
            wanted["in", block + names.output] = lambda x: x
            wanted |= _norms(block, names.post_norm, names.stream_norm, maps)
            wanted |= _norms(block, mlp.post_norm, mlp.stream_norm, self.maps.mlp[layer])
            wanted["out", block + mlp.module] = wanted["out", block.removesuffix(".")] = lambda x: x
        return wanted

    def _before(self, kind: str, path: str, keep: Callable[[Tensor], Tensor]) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs["hidden_states"]
            self.heard[kind, path].append(keep(value.reshape(-1, value.shape[-1])))

        return hook

    def _after(self, path: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            self.heard["out", path].append(value.reshape(-1, value.shape[-1]).clone())  # Falcon adds to it in place

        return hook


def _norms(
    block: str, post: str | None, stream: str | None, maps: WriteMap
) -> dict[tuple[str, str], Callable[[Tensor], Tensor]]:
    """Scales of the norms behind one write; each closes over its own norm."""
    named = [(post, maps.post_norm), (stream, maps.stream_norm)]
    return {
        ("scale", block + name): (lambda x, norm=norm: norm_scale(x, norm)) for name, norm in named if name is not None
    }
