"""What `resid` was asked to show, and which of its options belong to that: an option that would do nothing is refused.

Shares of a --target, shares along a --direction, rows' sizes with cosines (--writes), the whole stream over depth
(--growth), or the sizes of all rows where nothing else is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mechview.errors import UsageError

ROWS = ("by", "neurons")
USES = {
    "growth": (),
    "writes": ("target", "against", "direction", "point", *ROWS),
    "direction": ("direction", "read", "position", *ROWS),
    "target": ("target", "against", "position", "freeze", "fold", *ROWS),
    "rows": ("point", *ROWS),
}
OPTIONS = {"fold": "--fold/--raw"}
WHY = {
    "growth": "--growth is of the whole stream: leave out {options}",
    "writes": "--writes shows rows at every position, norms as they were: leave out {options}",
    "direction": "--direction stands alone: leave out {options}",
    "target": "shares of a logit are taken at the final stream, along the token: leave out {options}",
    "rows": "{options} needs a {of}",
}


@dataclass(frozen=True)
class Asked:
    """The options of one call; None where they were not given."""

    target: Any = None
    against: Any = None
    position: int | None = None
    direction: str | None = None
    read: str | None = None
    by: str | None = None
    neurons: int | None = None
    point: str | None = None
    freeze: str | None = None
    fold: bool | None = None
    growth: bool = False
    writes: bool = False

    @property
    def mode(self) -> str:
        if self.growth or self.writes:
            return "growth" if self.growth else "writes"
        return "direction" if self.direction is not None else "target" if self.target is not None else "rows"

    @property
    def grain(self) -> dict[str, Any]:
        """The grain, as functions take it."""
        return {"by": self.by or "head", "neurons": self.neurons}

    @property
    def place(self) -> Any:
        """The point of the stream, as functions take it.

        Raises:
            UsageError: it is no place.
        """
        if self.point in (None, "final"):
            return "final"
        layer, _, at = str(self.point).removeprefix("L").partition(".")
        if not layer.isdecimal() or at not in ("pre", "mid", "post"):
            raise UsageError(f"--point {self.point} is not a place; use final, L1.pre, L1.mid or L1.post")
        return int(layer), at

    def check(self) -> None:
        """Raises UsageError: options that would be ignored."""
        if self.growth and self.writes:
            raise UsageError("--growth and --writes are two answers: ask for one")
        for name in ("target", "against", "position", "direction", "read", "freeze", "fold", "point", *ROWS):
            if getattr(self, name) is None or name in USES[self.mode] or (name == "point" and self.place == "final"):
                continue
            options, of = OPTIONS.get(name, f"--{name}"), "--direction" if name == "read" else "--target"
            raise UsageError(WHY[self.mode].format(options=options, of=of))
        if self.writes and self.target is None and self.direction is None:
            raise UsageError(
                "--writes needs a --target or a --direction; without either resid shows the rows' sizes anyway"
            )


def found_by(asked: Asked, model: Any, seen: Any, target: Any, against: Any) -> Any:
    """The answer: a ledger, shares or the stream over depth; `target` and `against` are tokens."""
    from mechview.residual.depth import depth
    from mechview.residual.directions import shares_along
    from mechview.residual.ledger import ledger
    from mechview.residual.shares import shares

    position = -1 if asked.position is None else asked.position
    named = None if asked.direction is None else direction_of(model, asked.direction)
    if asked.mode == "growth":
        return depth(seen)
    if asked.mode == "target":
        return shares(seen, target, against, position, freeze=asked.freeze, fold=asked.fold, **asked.grain)
    if asked.mode == "direction":
        return shares_along(seen, named, position=position, read=asked.read or "stream", **asked.grain)  # type: ignore[arg-type]
    vector = None if named is None else named.vector
    return ledger(seen, point=asked.place, target=target, against=against, direction=vector, **asked.grain)


def direction_of(model: Any, text: str) -> Any:
    """A direction by name, or `means:A,B@L1.post`: mean stream of the prompts of table or file B minus that of A."""
    from mechview.models.prompt_tables import prompt_table
    from mechview.residual.directions import mean_direction, named_direction

    if not text.startswith("means:"):
        return named_direction(text, model)
    files, _, place = text.removeprefix("means:").rpartition("@")
    a, comma, b = files.partition(",")
    layer, dot, point = place.removeprefix("L").partition(".")
    if not (comma and dot and layer.isdecimal()):
        raise UsageError(f"--direction {text} is no difference of means; write means:A.txt,B.txt@L1.post")
    sides = [prompt_table(file).drawn(model).texts for file in (a, b)]
    return mean_direction(model, *sides, layer=int(layer), point=point)
