"""Role cards: what a head is for, as far as tests say, with every value, null and threshold.

A role is a list of tests in one table (`roles.toml`, which a user may replace in part), and is held when
all pass. A head may hold several roles; one that holds none is `mixed` where two or more roles of where to
look are half held, and `unknown` otherwise, which is a good answer: most heads of a model fit no list.
A test that could not be made is said, never counted as passed. Roles name behaviour on these tests, not
the cause of anything: the causal check ablates the head.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mechview.errors import UsageError
from mechview.heads.registry import load_metrics
from mechview.heads.scores import HeadScores, Score, head_scores
from mechview.models.load import Model
from mechview.models.weights import ModelShape, Stack
from mechview.results import Result

MIXED, UNKNOWN = "mixed", "unknown"
UNASKED = 3e8
TASKS = ("repeats", "text")
ROLE_KEYS = {"title", "looks", "task", "tests"}
TEST_KEYS = {"metric", "at_least", "at_most", "beyond_null"}


@dataclass(frozen=True)
class Test:
    """A metric against a threshold; `above` says on which side of it the role lies."""

    metric: str
    threshold: float
    above: bool
    beyond_null: bool

    __test__ = False


@dataclass(frozen=True)
class Role:
    """What it takes to hold a role. `looks` marks those of where a head looks."""

    name: str
    title: str
    tests: tuple[Test, ...]
    task: str
    looks: bool = False


@dataclass(frozen=True)
class RoleTable:
    """All roles in order; `share` and `least` decide when a head is mixed."""

    roles: tuple[Role, ...]
    share: float
    least: int

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(test.metric for role in self.roles for test in role.tests))

    def find(self, name: str) -> Role:
        """
        Raises:
            UsageError: there is no such role.
        """
        found = next((role for role in self.roles if role.name == name), None)
        if found is None:
            raise UsageError(f"there is no role {name!r}; roles: {', '.join(role.name for role in self.roles)}")
        return found


@dataclass(frozen=True)
class Evidence:
    """One test of one head: the score it rests on, and how it came out (None: it was not made)."""

    role: str
    test: Test
    score: Score
    passed: bool | None
    reached: bool


@dataclass(frozen=True)
class RoleCard:
    """One head: the roles it holds, and all the evidence, whether it speaks for a role or not."""

    label: str
    stack: Stack
    layer: int
    head: int
    kv_head: int
    roles: tuple[str, ...]
    evidence: tuple[Evidence, ...]

    @property
    def line(self) -> str:
        """The roles with the numbers that made them, in one line."""
        parts = []
        for role in self.roles:
            tests = [e for e in self.evidence if e.role == role or (role == MIXED and e.reached)]
            parts.append(f"{role} ({'; '.join(map(told, tests))})" if tests else role)
        return ", ".join(parts)


@dataclass(frozen=True)
class Roles(Result):
    """Role cards of all heads asked for, the table of thresholds they rest on, and the scores."""

    model: str
    revision: str | None
    cards: tuple[RoleCard, ...]
    table: RoleTable
    scores: HeadScores
    notes: tuple[str, ...] = ()

    def card(self, label: str) -> RoleCard:
        found = next((card for card in self.cards if card.label == label), None)
        if found is None:
            raise UsageError(f"no roles of {label} were looked for")
        return found

    def holding(self, role: str) -> list[str]:
        """Labels of the heads that hold a role."""
        return [card.label for card in self.cards if role in card.roles]


def roles(
    model: Model,
    *,
    thresholds: str | Path | Mapping[str, Any] | None = None,
    scores: HeadScores | None = None,
    **settings: Any,
) -> Roles:
    """A role card for every head.

    Args:
        thresholds: a TOML file, or its content, whose roles take the place of those of the same name.
        scores: scores to judge by; measured unless given.
        settings: of `head_scores`: `seed`, `seeds`, `copies`, `layers`, `heads`, `text`, …

    Raises:
        UsageError: the table of thresholds is wrong, or names a metric that is not registered.
    """
    table = role_table(thresholds)
    known = load_metrics()
    wrong = next((name for name in table.metrics if name not in known), None)
    if wrong is not None:
        raise UsageError(f"the table of roles asks for a metric {wrong!r}, which is not registered")
    found = head_scores(model, table.metrics, **settings) if scores is None else scores
    by_head: dict[str, dict[str, Score]] = {}
    for row in found.rows:
        by_head.setdefault(row.label, {})[row.metric] = row
    missing = [name for name in table.metrics if name not in found.metrics]
    notes = (*found.notes, *(f"{name} was not among the scores given: tests of it were not made" for name in missing))
    cards = tuple(role_card(table, measured) for measured in by_head.values())
    return Roles(model=found.model, revision=found.revision, cards=cards, table=table, scores=found, notes=notes)


def affordable(shape: ModelShape) -> bool:
    """Whether roles are looked for unasked: at most 0.3 G parameters, by the sizes of the matrices.

    A model is run on some twenty short prompts for them, and so are five permuted copies of it.
    """
    block = shape.d_model * (4 * shape.n_heads * shape.d_head + 3 * shape.d_mlp)
    return (shape.n_layers + shape.n_encoder_layers) * block + shape.d_vocab * shape.d_model <= UNASKED


def role_card(table: RoleTable, measured: Mapping[str, Score]) -> RoleCard:
    """The card of one head from its scores by metric."""
    place = next(iter(measured.values()))
    evidence = tuple(
        judged(role.name, test, measured[test.metric], table.share)
        for role in table.roles
        for test in role.tests
        if test.metric in measured
    )
    held = [role.name for role in table.roles if _all(role, evidence)]
    if not held:
        near = [role for role in table.roles if role.looks and _near(role, evidence)]
        held = [MIXED if len(near) >= table.least else UNKNOWN]
    return RoleCard(place.label, place.stack, place.layer, place.head, place.kv_head, tuple(held), evidence)


def judged(role: str, test: Test, score: Score, share: float) -> Evidence:
    """How one test came out. `reached` is the weaker question that decides about `mixed`."""
    outside = score.outside
    if score.value != score.value or (test.beyond_null and outside is None):
        return Evidence(role, test, score, None, False)
    beyond = not test.beyond_null or bool(outside and (score.value > score.null_mean) == test.above)
    good = score.value >= test.threshold if test.above else score.value <= test.threshold
    near = test.above and score.value >= share * test.threshold
    return Evidence(role, test, score, good and beyond, near and beyond)


def told(evidence: Evidence) -> str:
    """A piece of evidence in words: value, null, threshold."""
    score, test = evidence.score, evidence.test
    side = "≥" if test.above else "≤"
    null = f", null {score.null_mean:.2f} ± {score.null_sd:.2f}" if score.n else ""
    return f"{score.metric} {score.value:.2f} {side} {test.threshold:g}{null}"


def _all(role: Role, evidence: Sequence[Evidence]) -> bool:
    made = [e.passed for e in evidence if e.role == role.name]
    return len(made) == len(role.tests) > 0 and all(passed is True for passed in made)


def _near(role: Role, evidence: Sequence[Evidence]) -> bool:
    return any(e.reached for e in evidence if e.role == role.name)


def role_table(given: str | Path | Mapping[str, Any] | None = None) -> RoleTable:
    """The built-in table, with the roles of a user's table in the place of those of the same name.

    Raises:
        UsageError: a file that cannot be read, or a row that makes no sense.
    """
    built_in = tomllib.loads(resources.files("mechview.heads").joinpath("roles.toml").read_text(encoding="utf-8"))
    merged = built_in | (dict(given) if isinstance(given, Mapping) else {} if given is None else _read(Path(given)))
    mixed = merged.pop(MIXED)
    try:
        share, least = float(mixed["share"]), int(mixed["least"])
    except (KeyError, TypeError, ValueError, OverflowError):
        share, least = 0.0, 0
    if not 0 < share <= 1 or least < 1:
        raise UsageError("the row of mixed needs a share (above 0, at most 1) and least (a whole number from 1)")
    return RoleTable(tuple(_role(name, row) for name, row in merged.items()), share, least)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from None


def _role(name: str, row: Any) -> Role:
    if not isinstance(row, Mapping) or not row.get("tests") or not set(row) <= ROLE_KEYS:
        raise UsageError(
            f"role {name} needs tests, and may have {', '.join(sorted(ROLE_KEYS - {'tests'}))}; nothing else"
        )
    if row.get("task", "text") not in TASKS or name == UNKNOWN:
        raise UsageError(f"role {name}: the task is one of {', '.join(TASKS)}, and no role is called {UNKNOWN}")
    tests = tuple(_test(name, test) for test in row["tests"])
    return Role(name, str(row.get("title", name)), tests, row.get("task", "text"), bool(row.get("looks", False)))


def _test(name: str, row: Any) -> Test:
    sides = [side for side in ("at_least", "at_most") if isinstance(row, Mapping) and side in row]
    if len(sides) != 1 or not isinstance(row.get("metric"), str) or not set(row) <= TEST_KEYS:
        raise UsageError(
            f"a test of role {name} needs a metric, and one of at_least and at_most; it may have beyond_null"
        )
    value = row[sides[0]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"a threshold of role {name} is {value!r}, not a finite number")
    return Test(row["metric"], float(value), sides[0] == "at_least", bool(row.get("beyond_null", False)))
