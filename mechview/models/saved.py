"""Traces on disk and traces from elsewhere: one safetensors file with its JSON inside, or TransformerLens' cache.

A file holds the captured tensors and the tokens, not the weights: reading one needs the model, whose shape (and
hash, where it has files) must be that of the file. No pickle is written or read. A cache is taken only if it
was made with the model's own unprocessed weights, which is checked head by head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechview.errors import CheckError, UsageError
from mechview.exports import write_bytes
from mechview.manifest import environment, weights_digest
from mechview.models.capture import AttentionCapture, Capture, MlpCapture, Site
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.models.tracing import encode, finite
from mechview.models.weights import ModelShape, Stack
from mechview.tokens import Token, describe

KIND = "mechview trace"
AGREES = 1e-3
SAMENESS = ("family", "d_model", "d_head", "n_layers", "n_heads", "n_kv_heads", "d_vocab", "stacks", "n_encoder_layers")


def save_trace(trace: Trace, path: str | Path, *, force: bool = False) -> Path:
    """Write a trace as one `.safetensors` file; the JSON about it is in the file's metadata.

    Raises:
        OutputError: the file exists (without `force`) or cannot be written.
    """
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in _tensors(trace.capture).items()}
    about = {
        "kind": KIND, "model": trace.model, "revision": trace.revision, "bos": trace.bos,
        "backend": trace.capture.backend, "shape": _shape(trace.weights.shape),
        "weights_sha256": weights_digest(trace.weights), "tokens": [asdict(token) for token in trace.tokens],
        "source_tokens": [asdict(token) for token in trace.source_tokens], "made_with": environment(),
    }  # fmt: skip
    return write_bytes(Path(path), save(tensors, metadata={"mechview": json.dumps(about)}), force=force)


def load_trace(path: str | Path, model: Model) -> Trace:
    """Read a trace that this model made.

    Raises:
        UsageError: no such file, or no trace. CheckError: the model is not the one that made it.
    """
    about, tensors = _read(Path(path))
    if about["shape"] != _shape(model.shape):
        raise CheckError(f"{path} was made by {about['model']}, whose shape is not that of {model.name}")
    digests = about["weights_sha256"], weights_digest(model.weights)
    if None not in digests and digests[0] != digests[1]:
        raise CheckError(f"{path} was made by other weights of {about['model']}: their hashes differ")
    tokens, source = (tuple(Token(**token) for token in about[name]) for name in ("tokens", "source_tokens"))
    return Trace(
        model=about["model"], weights=model.weights, capture=_capture(tensors, about["backend"]), tokens=tokens,
        source_tokens=source, bos=about["bos"], tokenizer=model.tokenizer, revision=about["revision"],
    )  # fmt: skip


def from_cache(cache: Any, model: Model, tokens: Sequence[int] | str, logits: Tensor | None = None) -> Trace:
    """A trace from a TransformerLens `ActivationCache` of one prompt.

    Args:
        cache: of a raw `TransformerBridge` (`run_with_cache`), with or without its batch axis of 1.
        tokens: the ids that were run, or their text.
        logits: what the pass returned; unless given, the trace has none.

    Raises:
        ModelError: a hook is missing. CheckError: the activations are not those of the model's own weights.
    """
    from mechview.models.bridge import capture_of_cache
    from mechview.models.reader import NamedWeights

    weights = model.weights
    if not isinstance(weights, NamedWeights) or len(weights.shape.stacks) > 1:
        raise UsageError("a cache belongs to a model with one stack that TransformerLens can open")
    ids = encode(model, tokens)
    capture = finite(capture_of_cache(cache, weights, logits))
    stack = weights.shape.stacks[0]
    for layer in range(weights.shape.n_layers):
        seen, own = capture.attention[stack, layer], weights.attention(layer)
        if len(seen.stream) != len(ids):
            raise CheckError(f"the cache has {len(seen.stream)} positions; {len(ids)} tokens were given")
        rebuilt = torch.einsum("qhd,hdm->qm", seen.z, own.W_O.to(seen.z)) + (
            0 if own.b_O is None else own.b_O.to(seen.z)
        )
        if float((rebuilt - seen.written).abs().max()) > AGREES * float(seen.written.abs().max()):
            raise CheckError(
                f"the heads of layer {layer} do not add up to the cached attention output: the cache was made with "
                "processed weights (folded or centred), or by another model"
            )
    begins = bool(ids) and ids[0] == getattr(model.tokenizer, "bos_token_id", None)
    return Trace(
        model.name, weights, capture, describe(ids, model.tokenizer), bos=begins, tokenizer=model.tokenizer,
        revision=model.source.revision,
    )  # fmt: skip


def _tensors(capture: Capture) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {} if capture.logits is None else {"logits": capture.logits}
    for kind, sites in (("attention", capture.attention), ("mlp", capture.mlp)):
        for (stack, layer), seen in sites.items():
            held = {field.name: getattr(seen, field.name) for field in fields(seen)}
            found |= {f"{kind}.{stack}.{layer}.{n}": value for n, value in held.items() if value is not None}
    return found | {f"post.{stack}.{layer}": value for (stack, layer), value in capture.post.items()}


def _capture(tensors: Mapping[str, Tensor], backend: str) -> Capture:
    grouped: dict[str, dict[Site, dict[str, Tensor]]] = {"attention": {}, "mlp": {}}
    post: dict[Site, Tensor] = {}
    for name, value in tensors.items():
        kind, *rest = name.split(".")
        if kind == "logits":
            continue
        stack: Stack = rest[0]  # type: ignore[assignment]
        if kind == "post":
            post[stack, int(rest[1])] = value
        else:
            grouped[kind].setdefault((stack, int(rest[1])), {})[rest[2]] = value
    attention = {
        site: AttentionCapture(scores=held.pop("scores", None), **held) for site, held in grouped["attention"].items()
    }
    mlp = {site: MlpCapture(**held) for site, held in grouped["mlp"].items()}
    return Capture(attention, mlp, post, tensors.get("logits"), backend)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as held:
            about = json.loads((held.metadata() or {}).get("mechview", "{}"))
            tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, ValueError) as error:
        raise UsageError(f"{path} is no trace: {error}") from None
    if about.get("kind") != KIND:
        raise UsageError(f"{path} is no trace: it holds other tensors")
    return about, tensors


def _shape(shape: ModelShape) -> dict[str, Any]:
    return {name: list(value) if isinstance(value := getattr(shape, name), tuple) else value for name in SAMENESS}
