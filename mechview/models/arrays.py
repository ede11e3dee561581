"""Models made by hand from plain arrays, and the forward pass that runs them.

With `placement="pre"` a block reads `norm(stream)` and adds what it writes; with `"post"` it reads the raw
stream and the *sum* is normalised, `norm(stream + write)`, as in BERT (Vaswani et al. 2017). Gated MLPs
are `act(x W_gate) * (x W_in + b_in)`. A model has one dtype, the widest float among the tensors and numpy
arrays given; lists and integers follow it, and alone they are float32. Half precision runs in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Literal, cast

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechview.errors import HeadError, ModelError, PromptError, UsageError
from mechview.models.capture import AttentionCapture, Capture, MlpCapture
from mechview.models.norms import apply_norm
from mechview.models.positions import rotation, visible
from mechview.models.weights import IDENTITY_NORM as SAME
from mechview.models.weights import AttentionWeights, EndWeights, MlpWeights, ModelShape, NormWeights, Rotary, Stack

Array = Any  # a tensor, a numpy array, or nested lists of numbers
Given = Mapping[str, Array]
FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
ATTENTION_AXES = dict(
    W_Q="head d_model d_head", W_K="kv_head d_model d_head", W_V="kv_head d_model d_head", W_O="head d_head d_model",
    b_Q="head d_head", b_K="kv_head d_head", b_V="kv_head d_head", b_O="d_model",
)  # fmt: skip
MLP_AXES = dict(W_in="d_model d_mlp", W_out="d_mlp d_model", W_gate="d_model d_mlp", b_in="d_mlp", b_out="d_model")
LAYER_KEYS = (*ATTENTION_AXES, "kv_head", "attn_scale", "ln1", *MLP_AXES, "ln2")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "silu": nn.functional.silu, "gelu": nn.functional.gelu, "none": torch.clone,
    "gelu_new": nn.GELU("tanh"), "gelu_tanh": nn.GELU("tanh"), "identity": torch.clone,
}  # fmt: skip
CHOICES = {
    "norm": ("none", "rms", "layer"), "placement": ("pre", "post"), "position": ("none", "learned", "rotary"),
    "activation": tuple(ACTIVATIONS),
}  # fmt: skip


@dataclass(frozen=True)
class ArrayWeights:
    """A hand-made model; its one stack is the `decoder` if causal, otherwise the `encoder`."""

    shape: ModelShape
    attentions: tuple[AttentionWeights, ...]
    mlps: tuple[MlpWeights, ...]
    end_weights: EndWeights

    def attention(self, layer: int, stack: Stack | None = None) -> AttentionWeights:
        return self.attentions[self._checked(layer, stack)]

    def mlp(self, layer: int, stack: Stack | None = None) -> MlpWeights:
        """The layer's MLP; a layer made without one has an MLP of width zero, which writes zeros."""
        return self.mlps[self._checked(layer, stack)]

    def ends(self) -> EndWeights:
        return self.end_weights

    def _checked(self, layer: int, stack: Stack | None) -> int:
        have, last = self.shape.stacks[0], self.shape.n_layers - 1
        if stack not in (None, have) or not 0 <= layer <= last:
            raise HeadError(f"{stack or have} layer {layer} does not exist: the model has {have} layers 0 to {last}")
        return layer


def array_weights(
    *, W_E: Array, W_U: Array | None = None, W_pos: Array | None = None, layers: Sequence[Given],
    norm: str = "none", placement: str = "pre", eps: float = 1e-5, final_norm: Array | None = None,
    b_U: Array | None = None, position: str = "none", rotary: Mapping[str, Any] | None = None,
    activation: str = "relu", causal: bool = True,
) -> ArrayWeights:  # fmt: skip
    """A model from arrays, which are copied: changing them afterwards does not change the model.

    Args:
        W_E, W_U, b_U, W_pos: `[d_vocab, d_model]`, `[d_model, d_vocab]` (else tied), `[d_vocab]`, `[n_ctx, d_model]`.
        layers: one mapping per layer: `W_Q [head, d_model, d_head]`, `W_K, W_V [kv_head, d_model, d_head]`,
            `W_O [head, d_head, d_model]`, and, if wanted, `b_Q b_K b_V b_O`; `kv_head [head]`, the group each
            head reads (groups of equal size); `attn_scale`, which multiplies the scores (`d_head ** -0.5`);
            an MLP `W_in [d_model, d_mlp]`, `W_out`, `W_gate`, `b_in`, `b_out`; `ln1` (attention), `ln2`
            (MLP), each a gain `[d_model]` or a tuple `(gain, bias)`; a gain left out is all ones.
        final_norm: the same for the norm before the unembedding; left out, there is no such norm.
        norm, placement, position, activation: see `CHOICES`; `eps` stands under the root of every norm.
        rotary: `base` (10000), `width` (d_head), `interleaved` (False: pairs `(n, n + width/2)`; True: `(2n, 2n + 1)`).

    Raises:
        ModelError: an array is missing, misshapen, not numeric or not finite; layer and key are named.
        UsageError: an option or key that does not exist, or that contradicts another.
    """
    chosen: dict[str, Any] = {"norm": norm, "placement": placement, "position": position}
    _check({**chosen, "activation": activation}, W_pos, rotary, eps, layers)
    stack: Stack = "decoder" if causal else "encoder"
    like = _like([W_E, W_U, W_pos, b_U, final_norm, *(value for given in layers for value in given.values())])
    read = _Reader(like, stack, chosen["norm"], "norm" if placement == "pre" else "stream_norm", eps, {})
    embedding = read.array(W_E, "W_E", "d_vocab d_model")
    ends = EndWeights(
        W_E=embedding, W_U=embedding.T if W_U is None else read.array(W_U, "W_U", "d_model d_vocab"),
        b_U=read.optional(b_U, "b_U", "d_vocab"), W_pos=read.optional(W_pos, "W_pos", "n_ctx d_model"),
        final_norm=SAME if final_norm is None else read.norm(final_norm, "final_norm"),
    )  # fmt: skip
    turns = (rotary or {}) if position == "rotary" else None
    attentions = tuple(_attention(read, layer, given, turns) for layer, given in enumerate(layers))
    mlps = tuple(_mlp(read, layer, given, activation) for layer, given in enumerate(layers))
    size = read.sizes
    shape = ModelShape(
        family="arrays", d_model=size["d_model"], d_head=size["d_head"], d_mlp=max(m.W_in.shape[1] for m in mlps),
        n_layers=len(layers), n_heads=size["head"], n_kv_heads=size["kv_head"], d_vocab=size["d_vocab"],
        n_ctx=size.get("n_ctx"), stacks=(stack,), tied=W_U is None, **chosen,
    )  # fmt: skip
    return ArrayWeights(shape, attentions, mlps, ends)


def _check(chosen: dict[str, str], W_pos: Array, rotary: Array, eps: float, layers: Sequence[Given]) -> None:
    for name, value in chosen.items():
        if value not in CHOICES[name]:
            raise UsageError(f"{name} is {value!r}, but must be one of {', '.join(CHOICES[name])}")
    if (chosen["position"] == "learned") != (W_pos is not None):
        raise UsageError("W_pos and position='learned' need each other: only one of them was given")
    if rotary is not None and (chosen["position"] != "rotary" or not {*rotary} <= {"base", "width", "interleaved"}):
        raise UsageError("rotary needs position='rotary' and holds nothing but base, width and interleaved")
    if not 0 <= eps < math.inf:
        raise UsageError(f"eps is {eps}, but must be a finite number of at least 0")
    if not layers:
        raise ModelError("layers is empty: a model needs at least one layer")
    for layer, given in enumerate(layers):
        if unknown := [key for key in given if key not in LAYER_KEYS]:
            raise UsageError(f"layer {layer}: {unknown[0]} is not a key; the keys are {' '.join(LAYER_KEYS)}")
        absent = [key for key in LAYER_KEYS if given.get(key) is None]
        if missing := [key for key in ("W_Q", "W_K", "W_V", "W_O") if key in absent]:
            raise ModelError(f"layer {layer}: {missing[0]} is missing; a layer may lack an MLP, but not attention")
        if not {"W_in", "W_out"}.isdisjoint(absent) and not {*MLP_AXES, "ln2"}.issubset(absent):
            raise ModelError(f"layer {layer}: an MLP needs both W_in and W_out, and its other keys need an MLP")


@dataclass(frozen=True)
class _Reader:
    """Copies arrays into tensors of the dtype and device of `like`; `sizes` holds every axis met so far."""

    like: Tensor
    stack: Stack
    kind: Literal["none", "rms", "layer"]
    norm_field: str
    eps: float
    sizes: dict[str, int]

    def array(self, value: Array, name: str, axes: str) -> Tensor:
        """The array as the model keeps it; an axis has one size throughout (`d_mlp`: within its layer)."""
        tensor, names = _plain(value, name).to(self.like, copy=True), axes.split()
        fits = [n > 0 and n == self.sizes.get(axis, n) for axis, n in zip(names, tensor.shape, strict=False)]
        if tensor.ndim != len(names) or not all(fits):
            needed = ", ".join(f"{axis} = {self.sizes[axis]}" if axis in self.sizes else axis for axis in names)
            raise ModelError(f"{name} has shape {list(tensor.shape)}, but must be [{needed}]")
        if bad := int((~tensor.isfinite()).sum()):
            raise ModelError(f"{name} is not finite: {bad} of its {tensor.numel()} numbers are NaN or infinite")
        self.sizes.update(zip(names, tensor.shape, strict=True))
        return tensor

    def optional(self, value: Array | None, name: str, axes: str) -> Tensor | None:
        return None if value is None else self.array(value, name, axes)

    def layer(self, layer: int, given: Given, table: dict[str, str], ln: str) -> dict[str, Any]:
        found = {key: self.optional(given.get(key), f"layer {layer}: {key}", axes) for key, axes in table.items()}
        norm = self.norm(given.get(ln), f"layer {layer}: {ln}")
        return {"layer": layer, "stack": self.stack, **found, self.norm_field: norm}

    def norm(self, value: Array | None, name: str) -> NormWeights:
        if self.kind == "none" and value is not None:
            raise UsageError(f"{name} was given, but norm is 'none': set norm='rms' or norm='layer'")
        halves = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        gain, bias = (self.optional(half, name, "d_model") for half in halves)
        return SAME if self.kind == "none" else NormWeights(self.kind, gain, bias, self.eps)


def _like(values: Sequence[Array]) -> Tensor:
    """An empty tensor on the device of the first array (W_E), of the widest dtype among all of them."""
    leaves = [leaf for value in values for leaf in (value if isinstance(value, tuple) else (value,))]
    names = {str(leaf.dtype).removeprefix("torch.") for leaf in leaves if getattr(leaf, "ndim", 0)}
    dtype = reduce(torch.promote_types, [FLOATS[name] for name in names & FLOATS.keys()] or [torch.float32])
    return _plain(values[0], "W_E").new_empty(0, dtype=dtype)


def _plain(value: Array, name: str) -> Tensor:
    """Any array as a tensor; what is not a tensor becomes float64."""
    if isinstance(value, Tensor) and not value.is_complex():
        return value.detach()
    try:
        numbers = value.tolist() if isinstance(value, Tensor) else value
        return torch.from_numpy(np.array(numbers).astype(np.float64, casting="same_kind"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{name} is not a rectangular array of real numbers") from error


def _attention(read: _Reader, layer: int, given: Given, turns: Given | None) -> AttentionWeights:
    arrays, name = read.layer(layer, given, ATTENTION_AXES, "ln1"), f"layer {layer}: attn_scale"
    d_head = read.sizes["d_head"]
    scale = _plain(d_head**-0.5 if given.get("attn_scale") is None else given["attn_scale"], name)
    if scale.ndim or not 0 < scale < math.inf:
        raise ModelError(f"{name} is {scale.tolist()}, but must be one positive number")
    return AttentionWeights(
        **arrays, kv_head=_kv_head(read, layer, given.get("kv_head")), scale=float(scale),
        rotary=None if turns is None else _rotary(d_head, **turns), causal=read.stack == "decoder",
    )  # fmt: skip


def _kv_head(read: _Reader, layer: int, given: Array | None) -> Int[Tensor, "head"]:
    heads, groups = read.sizes["head"], read.sizes["kv_head"]
    if given is None and heads % groups:
        raise ModelError(f"layer {layer}: {heads} heads cannot share {groups} key/value heads evenly; give kv_head")
    chosen = _plain(np.arange(heads) * groups // heads if given is None else given, f"layer {layer}: kv_head")
    if chosen.shape != (heads,) or any(group not in range(groups) for group in chosen.tolist()):
        raise ModelError(f"layer {layer}: kv_head is {given}, but must be {heads} numbers from 0 to {groups - 1}")
    return chosen.to(read.like.device, torch.long, copy=True)


def _mlp(read: _Reader, layer: int, given: Given, activation: str) -> MlpWeights:
    read.sizes.pop("d_mlp", None)
    if given.get("W_in") is None:
        empty = read.like.new_zeros(read.sizes["d_model"], 0)
        return MlpWeights(layer, read.stack, W_in=empty, W_out=empty.T, activation=activation)
    return MlpWeights(**read.layer(layer, given, MLP_AXES, "ln2"), activation=activation)


def _rotary(d_head: int, base: float = 10_000.0, width: int | None = None, interleaved: bool = False) -> Rotary:
    turned = d_head if width is None else width
    if not 0 < base < math.inf or turned not in range(2, d_head + 1, 2):
        raise UsageError(f"rotary base = {base}, width = {turned}: base must be positive, width even and <= {d_head}")
    return Rotary(turned, interleaved, partial(_frequencies, base, turned))


def _frequencies(base: float, width: int, length: int | None) -> tuple[Tensor, float]:
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width), 1.0


@torch.no_grad()
def run_arrays(weights: ArrayWeights, ids: Array) -> Capture:
    """One forward pass over one prompt, its token ids `[pos]`; half-precision models are computed in float32.

    Raises:
        PromptError: the prompt is empty, longer than the model's positions, or not of its token ids.
    """
    stack, ends = weights.shape.stacks[0], weights.ends()
    tokens = _checked_ids(ids, weights.shape).to(ends.W_E.device)
    positions = 0 if ends.W_pos is None else ends.W_pos[: len(tokens)]
    stream = ends.W_E[tokens].to(torch.promote_types(ends.W_E.dtype, torch.float32)) + positions
    capture = Capture({}, {}, {}, None, backend="arrays")
    for layer in range(weights.shape.n_layers):
        site, attention, mlp = (stack, layer), weights.attention(layer), weights.mlp(layer)
        capture.attention[site] = _attend(stream, attention)
        stream = apply_norm(stream + capture.attention[site].written, attention.stream_norm)
        capture.mlp[site] = MlpCapture(stream, _mlp_write(stream, mlp))
        stream = apply_norm(stream + capture.mlp[site].written, mlp.stream_norm)
        capture.post[site] = stream
    return replace(capture, logits=_affine(apply_norm(stream, ends.final_norm), cast(Tensor, ends.W_U), ends.b_U))


def _attend(stream: Float[Tensor, "pos d_model"], w: AttentionWeights) -> AttentionCapture:
    reads = apply_norm(stream, w.norm)
    heads = "pos d_model, head d_model d_head -> pos head d_head"
    q, k, v = (_affine(reads, W, b, heads) for W, b in ((w.W_Q, w.b_Q), (w.W_K, w.b_K), (w.W_V, w.b_V)))
    positions = torch.arange(len(stream), device=stream.device)
    if w.rotary is not None:
        turns = torch.stack([rotation(w.rotary, i, q.shape[-1], root=True) for i in range(len(q))]).to(q)
        q, k = (einsum(x, turns, "pos head d, pos d turned -> pos head turned") for x in (q, k))
    scores = w.scale * einsum(q, k[:, w.kv_head], "q_pos head d_head, k_pos head d_head -> head q_pos k_pos")
    scores = scores.masked_fill(~visible(positions, positions, w.causal, w.window), -math.inf)
    pattern = scores.softmax(-1)
    z = einsum(pattern, v[:, w.kv_head], "head q_pos k_pos, k_pos head d_head -> q_pos head d_head")
    written = _affine(z, w.W_O, w.b_O, "pos head d_head, head d_head d_model -> pos d_model")
    return AttentionCapture(stream, reads, reads, pattern, scores, z, written)


def _mlp_write(stream: Float[Tensor, "pos d_model"], w: MlpWeights) -> Float[Tensor, "pos d_model"]:
    reads, act = apply_norm(stream, w.norm), ACTIVATIONS[w.activation]
    inner = _affine(reads, w.W_in, w.b_in)
    hidden = act(inner) if w.W_gate is None else act(_affine(reads, w.W_gate, w.b_gate)) * inner
    return _affine(hidden, w.W_out, w.b_out)


def _affine(x: Tensor, W: Tensor, b: Tensor | None, axes: str = "pos d_in, d_in d_out -> pos d_out") -> Tensor:
    product = einsum(x, W.to(x.dtype), axes)
    return product if b is None else product + b


def _checked_ids(ids: Array, shape: ModelShape) -> Int[Tensor, "pos"]:
    tokens = torch.as_tensor(ids)
    if tokens.ndim != 1 or not len(tokens) or tokens.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
        raise PromptError("a prompt is a non-empty list of integer token ids, without a batch axis")
    if shape.n_ctx is not None and len(tokens) > shape.n_ctx:
        raise PromptError(f"the prompt has {len(tokens)} tokens, but the model has positions for {shape.n_ctx}")
    if unknown := [token for token in tokens.tolist() if not 0 <= token < shape.d_vocab]:
        raise PromptError(f"token id {unknown[0]} does not exist: the model has ids 0 to {shape.d_vocab - 1}")
    return tokens.long()
