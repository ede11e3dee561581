"""Opening a model: weights at once and tensor by tensor, the module only when a forward pass is asked for.

A `Model` keeps its own module: loaded from a folder, or a structure copy of a caller's (which is left as
it was). The TransformerLens bridge is built around a second structure copy; both share one set of weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mechview.errors import ModelError, UnsupportedError
from mechview.models.adapters import base_of, is_adapted, is_adapter_folder, plain_module, with_adapter
from mechview.models.arrays import ArrayWeights, array_weights, run_arrays
from mechview.models.capture import Capture
from mechview.models.checkpoint import read_config
from mechview.models.devices import as_dtype, checked_device
from mechview.models.experts import file_tensors
from mechview.models.modules import ModuleTensors, choose_eager, has_head, own_hooks, quiet_library, shared_copy
from mechview.models.reader import NamedWeights, block_path
from mechview.models.shape import refused_pass
from mechview.models.spec import Source, resolve
from mechview.models.tokenizers import read_tokenizer
from mechview.models.weights import ModelShape, ModelWeights

WITH_UNEMBEDDING = ("LMHead", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")


@dataclass(frozen=True)
class Model:
    """A pretrained model: weights read on demand, and a forward pass with its parts laid open."""

    source: Source
    weights: ModelWeights
    tokenizer: Any | None
    device: str
    _open_module: Callable[[], nn.Module]
    _open_bridge: Callable[[nn.Module], Any] | None = None
    tokenizer_error: str | None = None  # why a tokenizer that is there cannot be read
    number_bytes: int = 4  # of one number of a forward pass

    def __repr__(self) -> str:
        shape = self.shape
        size = f"{shape.n_layers} layers, {shape.n_heads} heads, d_model {shape.d_model}"
        return f"Model({self.name!r}, {shape.family}, {size})"

    @property
    def shape(self) -> ModelShape:
        return self.weights.shape

    @property
    def name(self) -> str:
        return self.source.name

    @cached_property
    def module(self) -> nn.Module:
        """The original library's module: mechview's own copy, eager attention, evaluation mode."""
        return self._open_module()

    @cached_property
    def bridge(self) -> Any:
        """A raw TransformerLens bridge over its own structure copy.

        Raises:
            UnsupportedError: the bridge has no adapter that gives this family's quantities.
        """
        if not self.uses_bridge:
            raise UnsupportedError(f"TransformerLens has no faithful adapter for this {self.shape.family}")
        if self._open_bridge is None:
            raise UnsupportedError("a model made of plain arrays has no bridge")
        return self._open_bridge(self.module)

    @property
    def uses_bridge(self) -> bool:
        """Whether activations come from the bridge; otherwise from hooks on the original module."""
        return isinstance(self.weights, NamedWeights) and self.weights.layout.bridge and self.weights.has_head

    def capture(self, ids: Tensor, decoder_ids: Tensor | None = None) -> Capture:
        """One forward pass; `ids` `[pos]` is the encoder's input in an encoder-decoder model."""
        if isinstance(self.weights, ArrayWeights):
            return run_arrays(self.weights, ids)
        weights = self.check_runs()
        if self.uses_bridge:
            from mechview.models.bridge import capture_bridge

            return capture_bridge(self.bridge, weights, ids)
        from mechview.models.native import capture_native

        return capture_native(self.module, weights, ids, decoder_ids)

    def check_runs(self) -> NamedWeights:
        """The weights, if a pass of this model's module would be the model's."""
        if not isinstance(self.weights, NamedWeights):
            raise UnsupportedError("these weights cannot be run: they came without a module")
        if isinstance(self.weights.source, ModuleTensors):
            self.weights.source.check_same()
        refusal = refused_pass(self.weights.config)
        if refusal:
            raise UnsupportedError(refusal)
        return self.weights


def load(
    spec: str | Path = "toy",
    *,
    revision: str | None = None,
    device: Any = "cpu",
    dtype: str | torch.dtype | None = None,
    offline: bool = False,
    adapter: str | Path | None = None,
) -> Model:
    """Open a model by name or path; no weight is read before it is needed.

    Args:
        spec: bundled name, hub name, folder, `.gguf` file or `package:NAME`.
        revision: commit, branch or tag of a hub name; `step-000100` of a bundled model.
        dtype: of the forward pass; float32 unless given, whatever the checkpoint holds.
        offline: never ask the network.
        adapter: folder of a peft adapter to merge in; given as `spec` it opens over the model that it names.

    Raises:
        ModelError: not found or not readable. UnsupportedError: an architecture out of reach. UsageError: no such device.
    """
    number, device = as_dtype(dtype or torch.float32), checked_device(device)
    source = resolve(str(spec), revision=revision, offline=offline)
    again: dict[str, Any] = {"device": device, "dtype": number, "offline": offline}
    if source.folder is not None and is_adapter_folder(source.folder):
        base, its_revision = base_of(source.folder)
        return adapted(load(base, revision=its_revision, **again), source.folder, source.name)
    if adapter is not None:
        return adapted(load(spec, revision=revision, **again), Path(adapter).expanduser())
    weights = open_folder(source)
    tokenizer, broken = read_tokenizer(source.config_folder or _folder(source))
    if broken is not None:
        warnings.warn(f"the tokenizer cannot be read ({broken}); prompts must be token ids", stacklevel=2)
    return Model(
        source=source,
        weights=weights,
        tokenizer=tokenizer,
        tokenizer_error=broken,
        number_bytes=number.itemsize,
        device=device,
        _open_module=lambda: load_module(source, weights, device, number),
        _open_bridge=_bridge_of(weights.config),
    )


def wrap(module: nn.Module, tokenizer: Any | None = None, *, name: str | None = None, adapter: bool = True) -> Model:
    """A live Hugging Face module, which stays exactly as it is: mechview works on a structure copy.

    The copy shares the module's storage, so later training steps show in it; nothing is ever written. Hooks on
    the module do not fire in mechview's passes (a warning says so), and parameters that are replaced, moved or
    cast after wrapping are an error: wrap again.

    Args:
        adapter: of a peft model: with its active adapters merged into a copy of the weights they change, as they are
            now; False for the model without them.

    Raises:
        ModelError: not a Hugging Face model. UnsupportedError: an architecture out of reach.
    """
    if is_adapted(module):
        module, said = plain_module(module, adapter)
        name = name or said
    if not hasattr(module, "config"):
        raise ModelError(f"{type(module).__name__} is not a Hugging Face model: it has no configuration")
    if own_hooks(module):
        warnings.warn("hooks on the wrapped module do not fire in mechview's passes", stacklevel=2)
    tensors = ModuleTensors(module)
    tensors.check_same()  # remembers the parameters as they are now
    weights = NamedWeights(tensors, module.config, has_head(module))
    weights.shape  # refuses an unknown family now rather than at first use
    return Model(
        source=Source(name or type(module).__name__, "module"),
        weights=weights,
        tokenizer=tokenizer,
        device=str(next(module.parameters()).device),
        _open_module=lambda: shared_copy(check_finite(module)),
        _open_bridge=_bridge_of(module.config),
        number_bytes=next(module.parameters()).element_size(),
    )


def adapted(model: Model, folder: Path, name: str | None = None) -> Model:
    """The model with a folder's adapter merged into copies of the weights that it changes."""
    merged = with_adapter(model.module, folder)
    return wrap(merged, model.tokenizer, name=name or f"{model.name}+{folder.name}")


def from_bridge(bridge: Any, tokenizer: Any | None = None) -> Model:
    """A raw TransformerLens bridge; hooks the caller has placed on it stay and take effect."""
    from mechview.models.bridge import check_raw

    check_raw(bridge)
    module = bridge.original_model
    weights = NamedWeights(ModuleTensors(module), module.config, has_head(module))
    weights.shape
    return Model(
        source=Source(type(module).__name__, "bridge"),
        weights=weights,
        tokenizer=tokenizer if tokenizer is not None else getattr(bridge, "tokenizer", None),
        device=str(next(module.parameters()).device),
        _open_module=lambda: module,
        _open_bridge=lambda _: bridge,
    )


def from_arrays(*, tokenizer: Any | None = None, name: str = "arrays", **arrays: Any) -> Model:
    """A runnable model made of plain arrays; see `array_weights` for the keywords."""
    weights = array_weights(**arrays)

    def no_module() -> nn.Module:
        raise UnsupportedError("a model made of plain arrays has no module of the original library")

    return Model(Source(name, "arrays"), weights, tokenizer, "cpu", no_module)


def open_weights(spec: str | Path, *, revision: str | None = None, offline: bool = False) -> NamedWeights:
    """Weights of a model, read tensor by tensor; no module is ever built."""
    return open_folder(resolve(str(spec), revision=revision, offline=offline))


def open_folder(source: Source) -> NamedWeights:
    folder = _folder(source)
    config = read_config(source.config_folder or folder)
    names = getattr(config, "architectures", None) or []
    headed = not names or any(kind in names[0] for kind in WITH_UNEMBEDDING)
    weights = NamedWeights(file_tensors(folder, config), config, headed)
    check_last_layers(weights)  # refuses an unknown family and a lying configuration before any tensor is read
    return weights


def check_last_layers(weights: NamedWeights) -> None:
    """Refuse a configuration that promises more layers than the checkpoint has tensors for."""
    names, shape = weights.source.names(), weights.shape
    for stack in shape.stacks:
        layout = weights.layout.encoder if stack == "encoder" and weights.layout.encoder else weights.layout
        block = block_path(weights.config, layout, shape, shape.layers(stack) - 1)
        if not any(name.startswith((block, block.removeprefix(layout.base))) for name in names):
            raise ModelError(f"the configuration promises {shape.layers(stack)} layers; the checkpoint has no {block}")


def load_module(source: Source, weights: NamedWeights, device: str, dtype: torch.dtype) -> nn.Module:
    """The original library's module with every one of its parameters found, numeric and finite."""
    import transformers

    folder, config = _folder(source), weights.config
    weights.source.names()  # opens every file: damage and code in pickles are refused here, with the file's name
    kind = next((getattr(transformers, name, None) for name in getattr(config, "architectures", None) or ()), None)
    config._attn_implementation = "eager"
    try:
        with quiet_library():
            module, info = (kind or transformers.AutoModelForCausalLM).from_pretrained(
                folder, config=config, dtype=dtype, local_files_only=True, output_loading_info=True,
                ignore_mismatched_sizes=True,
            )  # fmt: skip
    except Exception as error:  # the library raises many kinds on damaged files
        first = " ".join(str(error).split()[:40]) or repr(error)
        raise ModelError(f"{source.name} cannot be loaded: {first}") from None
    if info["mismatched_keys"]:
        name, stored, promised = sorted(info["mismatched_keys"])[0]
        raise ModelError(f"{name} is {list(stored)} in the checkpoint; the configuration promises {list(promised)}")
    missing = sorted(name for name in info["missing_keys"] if "pooler." not in name)  # BERT's, which nothing here reads
    if missing:
        raise ModelError(f"the checkpoint of {source.name} lacks {missing[0]} and would be random")
    check_finite(module)
    choose_eager(module)
    return module.eval().to(device)


def check_finite(module: nn.Module) -> nn.Module:
    """The module, if each of its parameters has values and all are finite."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise ModelError(f"{name} has no values: the module was built without its weights")
        if not torch.isfinite(parameter).all():
            raise ModelError(f"{name} holds values that are NaN or infinite; a forward pass would spread them")
    return module


def _bridge_of(config: Any) -> Callable[[nn.Module], Any]:
    def build(module: nn.Module) -> Any:
        from mechview.models.bridge import build_bridge

        return build_bridge(shared_copy(module), config)

    return build


def _folder(source: Source) -> Path:
    if source.folder is None:
        raise ModelError(f"{source.name} is not on disk")
    return source.folder
