"""The registry of everything that is measured of a head: definition, unit, source, and what it cannot show.

One record a quantity, whoever measures it. A record with a `measure` is a metric that `mv.head_scores` can
compute; the others are measured by tables. Method notes, the `unit` and `source` columns, `--scores` and
role cards all read this one dictionary, so a metric added with `@metric` appears in each of them. Packages
add theirs through entry points of the group `mechview.metrics`, scripts by decorating a function.
"""

from __future__ import annotations

import importlib
import runpy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mechview.errors import UsageError

GROUP = "mechview.metrics"
BUILT_IN = ("looks", "writes", "weighed")
NEEDS = ("repeats", "fourfold", "random", "text", "names", "weights", "model")
NULLS = ("permuted", "own", "none")
WHERE = {
    "causal": "exists only for heads that look back: it is about earlier tokens of a causal model",
    "self": "exists only where queries and keys are the same tokens: not in cross-attention",
    "any": "",
}
Measure = Callable[..., Any]


@dataclass(frozen=True)
class Metric:
    """One quantity. `title` is how it is named to a reader; the rest says how `head_scores` measures it.

    `needs` is what it is measured on (see `NEEDS`); `null` where its null comes from; `where` the heads that
    have it; `per` whether `measure` takes one prompt or all prompts of a seed.
    """

    title: str
    definition: str
    unit: str
    source: str
    cannot: str
    name: str = ""
    needs: str = ""
    null: str = "none"
    where: str = "any"
    per: str = "prompt"
    measure: Measure | None = None


METRICS: dict[str, Metric] = {}


def metric(
    name: str,
    needs: str,
    null: str = "permuted",
    source: str = "",
    *,
    definition: str,
    unit: str = "weight",
    cannot: str,
    title: str | None = None,
    where: str = "any",
    per: str = "prompt",
) -> Callable[[Measure], Measure]:
    """Register the decorated function as a metric: it takes a `LayerPass` and gives a value for each head.

    Args:
        needs: `repeats` (random tokens twice), `fourfold` (25 random tokens four times), `random`, `text`,
            `names`, `weights` (the function takes a `LayerWeights` instead), or `model` (it takes the model and a
            seed, and gives rows with a value and a null of their own).
        null: `permuted`, the same metric on copies of the model whose weights are permuted; `own`; or `none`.
        where: `causal`, `self` (no cross-attention) or `any`.
        per: `prompt`, or `seed` to take the list of a seed's passes at once.

    Raises:
        UsageError: the name is taken by another metric, or an argument is not a choice.
    """
    for value, choices in ((needs, NEEDS), (null, NULLS), (where, WHERE), (per, ("prompt", "seed"))):
        if value not in choices:
            raise UsageError(f"metric {name}: {value!r} is not one of {', '.join(choices)}")
    if (needs == "model") != (null == "own"):
        raise UsageError(f"metric {name}: needs='model' and null='own' belong together")

    def add(measure: Measure) -> Measure:
        shown = title or name.replace("_", " ")
        made = Metric(shown, definition, unit, source, cannot, name, needs, null, where, per, measure)
        known = METRICS.get(name)
        if known is not None and known.measure is not None and not _same(known.measure, measure):
            raise UsageError(f"there is already a metric {name}; give yours another name")
        METRICS[name] = made
        return measure

    return add


def _same(one: Measure, other: Measure) -> bool:
    """Whether both are one function, read again (a notebook cell run twice)."""
    return all(getattr(one, part, one) == getattr(other, part, other) for part in ("__module__", "__qualname__"))


def load_metrics(files: Iterable[str | Path] = ()) -> dict[str, Metric]:
    """Every metric that can be measured: built in, of installed packages, and of the files given.

    Args:
        files: Python files that register metrics; each is run, so only name files that you trust.

    Raises:
        UsageError: a file is not there or fails.
    """
    for name in BUILT_IN:
        importlib.import_module(f"mechview.heads.{name}")
    _load_packages()
    for file in files:
        _run(Path(file))
    return {name: found for name, found in METRICS.items() if found.measure is not None}


def added_metrics() -> list[str]:
    """Names of the metrics that users and other packages registered."""
    known = load_metrics()
    return [
        name for name, one in known.items() if not str(getattr(one.measure, "__module__", "")).startswith("mechview.")
    ]


def find_metrics(names: Iterable[str] | None) -> list[Metric]:
    """The metrics of these names, all unless given, in the order of the registry.

    Raises:
        UsageError: a name that is not registered, or whose quantity is not measured by `head_scores`.
    """
    known = load_metrics()
    if names is None:
        return list(known.values())
    if isinstance(names, str):
        raise UsageError(f"metrics are given as a list of names, not as one text: ({names!r},)")
    asked = list(dict.fromkeys(names))
    wrong = next((name for name in asked if name not in known), None)
    if wrong is not None:
        raise UsageError(f"there is no metric {wrong!r}; metrics: {', '.join(known)}")
    return [known[name] for name in asked]


_LOADED: set[str] = set()


def _load_packages() -> None:
    for point in entry_points(group=GROUP):
        if point.value in _LOADED:
            continue
        _LOADED.add(point.value)
        try:
            point.load()
        except Exception as error:  # somebody else's package may fail in any way
            warnings.warn(f"metrics of {point.value} cannot be loaded ({error!r:.120})", stacklevel=4)


def _run(file: Path) -> None:
    if not file.is_file():
        raise UsageError(f"{file} is not there: a file of metrics is a Python file")
    try:
        runpy.run_path(str(file), run_name=f"mechview_metrics_{file.stem}")
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # a user's file may fail in any way
        raise UsageError(f"{file} fails: {error!r:.200}") from None
