"""Compiled programs (tracr): hand-set weights in which every direction of the stream has a name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

import mechview as mv
from mechview.models.load import Model


@dataclass(frozen=True)
class Program:
    """A compiled program as a model that mechview opens, with the names of its stream's directions."""

    model: Model
    config: dict[str, Any]
    unembed: Tensor

    def ids(self, symbols: list[Any]) -> list[int]:
        code = self.config["input_encoding"]
        return [code[self.config["bos"]], *(code[str(symbol)] for symbol in symbols)]

    def says(self, symbols: list[Any]) -> list[Any]:
        """What the program answers, by its own decoding, at each symbol."""
        out = (mv.trace(self.model, self.ids(symbols)).stream_final @ self.unembed)[1:]
        if not self.config["output_categorical"]:
            return out[:, 0].tolist()
        return [self.config["output_decoding"][str(n)] for n in out.argmax(-1).tolist()]

    def families(self) -> dict[str, list[int]]:
        """Coordinates of each named variable: `tokens:a`, `tokens:b` are two of `tokens`."""
        found: dict[str, list[int]] = {}
        for n, label in enumerate(self.config["residual_labels"]):
            found.setdefault(label.rsplit(":", 1)[0] if ":" in label else label, []).append(n)
        return found


def program(folder: Path) -> Program:
    config, t = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    layers = [layer(t, f"layer_{n}.", config["num_heads"]) for n in range(config["num_layers"])]
    model = mv.from_arrays(
        W_E=t["token_embed"], W_pos=t["pos_embed"], position="learned", layers=layers, causal=config["causal"]
    )
    return Program(model, config, t["unembed"])


def layer(t: dict[str, Tensor], at: str, heads: int) -> dict[str, Tensor]:
    def split(w: Tensor) -> Tensor:
        return w.unflatten(-1, (heads, -1)).movedim(-2, 0)

    named = {"Q": "query", "K": "key", "V": "value"}
    read = {f"W_{name}": split(t[f"{at}attn.{part}.w"]) for name, part in named.items()}
    read |= {f"b_{name}": split(t[f"{at}attn.{part}.b"]) for name, part in named.items()}
    return read | {
        "W_O": t[f"{at}attn.linear.w"].unflatten(0, (heads, -1)), "b_O": t[f"{at}attn.linear.b"],
        "W_in": t[f"{at}mlp.linear_1.w"], "b_in": t[f"{at}mlp.linear_1.b"],
        "W_out": t[f"{at}mlp.linear_2.w"], "b_out": t[f"{at}mlp.linear_2.b"],
    }  # fmt: skip


def writers(found: Program, symbols: list[Any]) -> dict[str, dict[str, float]]:
    """Per named variable, the largest absolute value that each component writes into its directions."""
    parts = mv.ledger(mv.trace(found.model, found.ids(symbols)))
    return {
        name: {
            component: float(row[:, at].abs().max())
            for component, row in zip(parts.components, parts.values, strict=True)
        }
        for name, at in found.families().items()
    }
