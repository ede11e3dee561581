"""Forward hooks on the original module: the backend where the bridge has no adapter or other numbers.

The layout table's names are module paths, so one set of rules serves every family: what the query
projection reads, what the output projection reads and writes, what the norms read, what a block returns.
A hook that does not fire is an error, never a guess. Hooks are removed even when the pass fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mechview.errors import ModelError
from mechview.models.capture import AttentionCapture, Capture, MlpCapture, Site
from mechview.models.layouts import AttentionNames, Fused, Layout
from mechview.models.modules import reset_dynamic_rotary
from mechview.models.reader import NamedWeights, block_path
from mechview.models.weights import Stack


@torch.no_grad()
def capture_native(
    module: nn.Module, weights: NamedWeights, ids: Tensor, decoder_ids: Tensor | None = None, last: int | None = None
) -> Capture:
    """One pass of the original module, in eager attention and evaluation mode.

    With `last` a pre-norm decoder runs its blocks up to that one only, and there are no logits; others run whole.
    """
    reset_dynamic_rotary(module)
    short = weights.shape.stacks == ("decoder",) and weights.shape.placement != "post"
    plan = Plan(module, weights, last if short else None)
    keywords: dict[str, Any] = {"output_attentions": True, "use_cache": False}
    if weights.shape.n_encoder_layers:
        keywords["decoder_input_ids"] = None if decoder_ids is None else decoder_ids[None]
    with plan.listening(), plan.shortened() as run:
        output = run(ids[None], **keywords)
    return plan.capture(output)


@dataclass
class Plan:
    """Which modules are listened to, and what they said, call by call (ALBERT calls one block often)."""

    module: nn.Module
    weights: NamedWeights
    last: int | None = None
    heard: dict[tuple[str, str], list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def listening(self) -> Iterator[None]:
        handles = []
        try:
            for kind, path in sorted(self._wanted()):
                part = find_module(self.module, path, self.weights.layout.base)
                handles.append(
                    part.register_forward_pre_hook(self._before(path), with_kwargs=True)
                    if kind == "in"
                    else part.register_forward_hook(self._after(path))
                )
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def shortened(self) -> Iterator[nn.Module]:
        """The module to call: the whole, or the body with its list of blocks cut after the last that is asked for."""
        if self.last is None:
            yield self.module
            return
        path = self.weights.layout.block.split(".{layer}")[0]
        blocks = find_module(self.module, path, self.weights.layout.base)
        owner, name = next(
            (part, name) for part in self.module.modules() for name, child in part.named_children() if child is blocks
        )
        if not _listened_to(owner):  # the library hooks every block at the first pass, so that one must be whole
            self.last = None
            yield self.module
            return
        setattr(owner, name, nn.ModuleList(list(blocks.children())[: self.last + 1]))
        try:
            yield owner
        finally:
            setattr(owner, name, blocks)

    def capture(self, output: Any) -> Capture:
        shape = self.weights.shape
        attention: dict[Site, AttentionCapture] = {}
        mlp: dict[Site, MlpCapture] = {}
        post: dict[Site, Tensor] = {}
        for stack in shape.stacks:
            for layer in range(shape.layers(stack) if self.last is None else self.last + 1):
                attention[stack, layer] = self._attention(
                    stack, layer, _patterns(output, stack, shape.stacks)[layer][0]
                )
                if stack != "cross":
                    mlp[stack, layer] = self._mlp(stack, layer)
                    post[stack, layer] = self._said("out", self._block(stack, layer).removesuffix("."), stack, layer)
        logits = getattr(output, "logits", None) if self.weights.has_head else None  # else another task's
        return Capture(attention, mlp, post, None if logits is None else logits[0], "forward hooks")

    def _attention(self, stack: Stack, layer: int, pattern: Tensor) -> AttentionCapture:
        names, block = stack_names(self.weights.layout, stack), self._block(stack, layer)
        reads = self._said("in", block + query_module(names), stack, layer)
        source = reads if stack != "cross" else self._said("in", f"{block}{names.key}", stack, layer)
        z = self._said("in", block + names.output, stack, layer)
        return AttentionCapture(
            stream=reads if names.norm is None else self._said("in", block + names.norm, stack, layer),
            reads=reads,
            source=source,
            pattern=pattern,
            scores=None,
            z=rearrange(z, "q_pos (head d_head) -> q_pos head d_head", head=self.weights.shape.n_heads),
            written=self._said("out", block + names.output, stack, layer),
        )

    def _mlp(self, stack: Stack, layer: int) -> MlpCapture:
        block, names = self._block(stack, layer), stack_layout(self.weights.layout, stack).mlp
        stream = self._said("in", block + mlp_reader(stack_layout(self.weights.layout, stack)), stack, layer)
        return MlpCapture(stream, self._said("out", block + names.module, stack, layer))

    def _wanted(self) -> set[tuple[str, str]]:
        wanted = set()
        for stack in self.weights.shape.stacks:
            names, layout = stack_names(self.weights.layout, stack), stack_layout(self.weights.layout, stack)
            for layer in range(self.weights.shape.layers(stack)):
                block = self._block(stack, layer)
                wanted |= {
                    ("in", block + query_module(names)),
                    ("in", block + names.output),
                    ("out", block + names.output),
                }
                wanted |= {("in", f"{block}{names.key}")} if stack == "cross" else {("out", block.removesuffix("."))}
                wanted |= {("in", block + names.norm)} if names.norm else set()
                wanted |= {("in", block + mlp_reader(layout)), ("out", block + layout.mlp.module)}
        return wanted

    def _said(self, kind: str, path: str, stack: Stack, layer: int) -> Tensor:
        earlier = sum(self._block(stack, n) == self._block(stack, layer) for n in range(layer))
        heard = self.heard[kind, path]
        if earlier >= len(heard):
            raise ModelError(f"hook on {path} did not fire in this version of transformers: nothing is guessed")
        return heard[earlier]

    def _before(self, path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs["hidden_states"]
            self.heard["in", path].append(value.reshape(-1, value.shape[-1]))

        return hook

    def _after(self, path: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            self.heard["out", path].append(value.reshape(-1, value.shape[-1]).clone())  # Falcon adds to it in place

        return hook

    def _block(self, stack: Stack, layer: int) -> str:
        layout = stack_layout(self.weights.layout, stack)
        return block_path(self.weights.config, layout, self.weights.shape, layer)


def find_module(module: nn.Module, path: str, base: str) -> nn.Module:
    """The part at a path of the full model; a bare model leaves out `base`."""
    for name in (path, path.removeprefix(base)):
        try:
            return module.get_submodule(name)
        except AttributeError:
            continue
    raise ModelError(f"this version of transformers has no module {path}; mechview cannot listen to it")


def _listened_to(owner: nn.Module) -> bool:
    """Whether the library's own hooks for attention are in place, where it collects it by hooks."""
    return not getattr(owner, "_can_record_outputs", None) or hasattr(owner, "_output_capturing_hooks_installed")


def stack_layout(layout: Layout, stack: Stack) -> Layout:
    return layout.encoder if stack == "encoder" and layout.encoder else layout


def stack_names(layout: Layout, stack: Stack) -> AttentionNames:
    chosen = stack_layout(layout, stack)
    return chosen.cross if stack == "cross" and chosen.cross else chosen.attention


def query_module(names: AttentionNames) -> str:
    return names.query.name if isinstance(names.query, Fused) else names.query


def mlp_reader(layout: Layout) -> str:
    """The first module that sees the stream on its way into the MLP."""
    return layout.mlp.norm or layout.mlp.up or layout.mlp.module


def _patterns(output: Any, stack: Stack, stacks: tuple[Stack, ...]) -> Any:
    fields = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    found = getattr(output, "attentions" if len(stacks) == 1 else fields[stack], None)
    if not found or found[0] is None:
        raise ModelError("the model returned no attention patterns: it does not run in eager attention")
    return found
