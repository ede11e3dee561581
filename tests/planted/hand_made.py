"""Hand-made models whose scores are known in advance: every matrix is written down, nothing is drawn."""

from __future__ import annotations

import torch

import mechview as mv

D = 16


def unit(*rows: int) -> torch.Tensor:
    """Columns that pick coordinates of the stream."""
    return torch.eye(D, dtype=torch.float64)[list(rows)].mT


def head(query=(), key=(), value=(), output=(), width: int = 4) -> dict[str, torch.Tensor]:
    """Matrices of one head: coordinates that queries, keys and values read, and those that the output writes."""

    def wide(rows) -> torch.Tensor:
        made = torch.zeros(D, width, dtype=torch.float64)
        if rows:
            made[:, : len(rows)] = unit(*rows)
        return made

    return {"W_Q": wide(query), "W_K": wide(key), "W_V": wide(value), "W_O": wide(output).mT}


def layer(*heads: dict[str, torch.Tensor], groups: int | None = None, **more) -> dict:
    """A layer of heads; with `groups`, only the first head of each keeps its key and value."""
    stacked = {name: torch.stack([h[name] for h in heads]) for name in ("W_Q", "W_K", "W_V", "W_O")}
    if groups is not None:
        step = len(heads) // groups
        stacked |= {name: stacked[name][::step] for name in ("W_K", "W_V")}
    return stacked | more


def model(*layers: dict, **more):
    """Sixteen tokens, each one coordinate of the stream, unembedded by the same coordinate."""
    settings = {"W_E": torch.eye(D, dtype=torch.float64), **more}
    return mv.from_arrays(layers=list(layers), **settings)


def random_model(
    layers: int = 3, heads: int = 4, width: int = 4, d_model: int = 32, vocab: int = 40, seed: int = 0, **more
):
    """Gaussian weights, with gains and biases where asked for."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    groups = more.pop("groups", heads)
    gains = more.pop("gains", False)
    made = []
    for _ in range(layers):
        one = {
            "W_Q": drawn(heads, d_model, width), "W_K": drawn(groups, d_model, width),
            "W_V": drawn(groups, d_model, width), "W_O": drawn(heads, width, d_model),
        }  # fmt: skip
        if gains:
            one |= {
                "ln1": (1 + 0.4 * drawn(d_model), 0.3 * drawn(d_model)),
                "b_Q": drawn(heads, width),
                "b_V": drawn(groups, width),
            }
        made.append(one)
    return mv.from_arrays(W_E=drawn(vocab, d_model), W_U=drawn(d_model, vocab), layers=made, **more)
