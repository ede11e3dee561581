"""Which row of one ledger stands beside which row of another: by name, by aligned key, or by depth."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mechview.models.weights import ModelShape, Stack
from mechview.residual.align import Alignment

ONLY_A, ONLY_B = "only in a", "only in b"
KEY = re.compile(r"(.+)<-(\d+)")
LAYER = re.compile(r"((?:[EX]\.)?)L(\d+)(.*)")


@dataclass(frozen=True)
class Partner:
    """A component, its row on each side (None where a side has none), and how they came together."""

    component: str
    a: int | None
    b: int | None
    aligned: str = "same"


def by_name(
    names_a: Sequence[str], names_b: Sequence[str], named: Callable[[str], str] = lambda name: name
) -> list[Partner]:
    """Rows of one name; `named` says what b's rows are called on side a."""
    at_b = {named(name): n for n, name in enumerate(names_b)}
    found = [Partner(name, n, at_b.get(name), "same" if name in at_b else ONLY_A) for n, name in enumerate(names_a)]
    known = set(names_a)
    return found + [Partner(name, None, n, ONLY_B) for name, n in at_b.items() if name not in known]


def key_names(aligned: Alignment, crossed: Alignment) -> Callable[[str], str]:
    """Names `L5H1<-7` of side b by the key's position on side a; `L5H1<-b7` for a key inserted in b.

    Args:
        crossed: the alignment of the encoder's tokens, which cross-attention looks at.
    """
    keys, keys_crossed = ({p.b: p.a for p in each.pairs if p.b is not None} for each in (aligned, crossed))

    def named(name: str) -> str:
        match = KEY.fullmatch(name)
        if match is None:
            return name
        at_a = (keys_crossed if name.startswith("X.") else keys)[int(match[2])]
        return f"{match[1]}<-{f'b{match[2]}' if at_a is None else at_a}"

    return named


def by_depth(
    names_a: Sequence[str], names_b: Sequence[str], shape_a: ModelShape, shape_b: ModelShape, a: Stack, b: Stack
) -> list[Partner]:
    """Whole layers at equal relative depth; what stands before the layers by name."""
    at_a, at_b = ({name: n for n, name in enumerate(names)} for names in (names_a, names_b))
    outside = [[name for name in names if not LAYER.fullmatch(name)] for names in (names_a, names_b)]
    found = by_name(outside[0], outside[1])
    found = [Partner(p.component, at_a.get(p.component), at_b.get(p.component), p.aligned) for p in found]
    parts = list(dict.fromkeys(m[1] + "L{}" + m[3] for name in (*names_a, *names_b) if (m := LAYER.fullmatch(name))))
    for i, j in layer_pairs(shape_a.layers(a), shape_b.layers(b)):
        for part in parts:
            n, k = at_a.get(part.format(i)), at_b.get(part.format(j))
            if n is not None or k is not None:
                how = ONLY_B if n is None else ONLY_A if k is None else "depth"
                found.append(Partner(part.format(depth_label(i, j)), n, k, how))
    return found


def layer_pairs(count_a: int, count_b: int) -> list[tuple[int, int]]:
    """Every layer of the deeper model with the layer of the other whose span holds its middle."""
    deep = max(count_a, count_b)
    middles = [(2 * layer + 1, 2 * deep) for layer in range(deep)]
    return [(top * count_a // bottom, top * count_b // bottom) for top, bottom in middles]


def depth_label(layer_a: int, layer_b: int) -> str:
    """`3~1` after its L: layer 3 of a beside layer 1 of b."""
    return f"{layer_a}~{layer_b}"
