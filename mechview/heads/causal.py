"""The causal check of a role: ablate the head and see what the loss of its task does, beside other heads.

Loss is the mean negative log-likelihood of next tokens, in nats: of the second copy of repeated random tokens
(all but its first token, which nothing announces) or of text. `value = loss(ablated) − loss(clean)`, positive
where the head helps. The null is the same change for other heads of the model, drawn by seed: a head that
matters more than they do lies outside their band. Ablation replaces the head's `z`, so its value bias goes
too; `mean` puts the head's own mean over the task's prompts there, `zero` nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError, UsageError
from mechview.factors import check_head, head_label
from mechview.heads.batteries import Batteries, TestPrompt
from mechview.heads.labels import placed_heads
from mechview.heads.roles import Roles
from mechview.heads.scores import Score
from mechview.models.intervene import Place, Replacement, changed_passes, recorded
from mechview.models.load import Model
from mechview.models.trace import Trace
from mechview.results import Result

METHODS, OTHERS, DRAWS, BATCH = ("mean", "zero"), 20, 2, 8
TASKS = ("repeats", "text")
Pair = tuple[int, int]


@dataclass(frozen=True)
class CausalCheck(Result):
    """Changes of loss, one row a head and task. `error` is of a pass with the head's own values put back."""

    model: str
    revision: str | None
    rows: tuple[Score, ...]
    clean: dict[str, float]
    method: str
    error: float

    def row(self, label: str, task: str) -> Score:
        found = next((row for row in self.rows if (row.label, row.metric) == (label, f"ablation_{task}")), None)
        if found is None:
            raise UsageError(f"{label} was not ablated on {task}")
        return found


def causal_check(
    model: Model,
    heads: Sequence[Any] | None = None,
    *,
    task: str | None = None,
    roles: Roles | None = None,
    method: str = "mean",
    others: int = OTHERS,
    seed: int = 0,
    batch_size: int = BATCH,
    **drawn: Any,
) -> CausalCheck:
    """Ablate heads and measure the loss of their task.

    Args:
        heads: heads to ablate; those that hold a role of `roles` unless given.
        task: `repeats` or `text`; unless given, the task of each head's first role.
        method: `mean` or `zero`.
        others: how many other heads make the null.
        drawn: of the batteries: `lengths`, `bos`, `tokens`, `before`, `text`.

    Raises:
        UsageError: a choice that does not exist, or no task for a head.
        UnsupportedError: the model does not predict next tokens.
    """
    if method not in METHODS or (task is not None and task not in TASKS):
        raise UsageError(f"method is one of {', '.join(METHODS)}, task one of {', '.join(TASKS)}")
    if model.shape.stacks != ("decoder",):
        raise UnsupportedError(
            "the causal check measures the loss of next tokens, which only decoder-only models predict"
        )
    wanted = _wanted(model, heads, task, roles)
    rows: list[Score] = []
    clean: dict[str, float] = {}
    errors = []
    for name in dict.fromkeys(wanted.values()):
        mine = [pair for pair, own in wanted.items() if own == name]
        found = _task(model, name, mine, method, others, seed, batch_size, drawn)
        rows += found.rows
        clean |= found.clean
        errors.append(found.error)
    return CausalCheck(
        model=model.name,
        revision=model.source.revision,
        rows=tuple(rows),
        clean=clean,
        method=method,
        error=max(errors),
    )


def _wanted(model: Model, heads: Sequence[Any] | None, task: str | None, roles: Roles | None) -> dict[Pair, str]:
    """The task of each head asked for."""
    tasks: dict[Pair, str] = {}
    for card in roles.cards if roles else ():
        named = [role.task for role in roles.table.roles if role.name in card.roles] if roles else []
        tasks |= {(card.layer, card.head): named[0]} if named else {}
    pairs = (
        list(tasks)
        if heads is None
        else [place[1:] for place in placed_heads(heads, model.shape, model.shape.stacks[-1])]
    )
    if not pairs:
        raise UsageError("no head holds a role: name the heads to ablate, and a task")
    for layer, head in pairs:
        check_head(model.shape, layer, head)
    found = {pair: task or tasks.get(pair, "") for pair in pairs}
    missing = next((pair for pair, name in found.items() if not name), None)
    if missing is not None:
        raise UsageError(f"L{missing[0]}H{missing[1]} holds no role with a task: say which task, {' or '.join(TASKS)}")
    return found


def _task(
    model: Model,
    task: str,
    mine: list[Pair],
    method: str,
    others: int,
    seed: int,
    batch_size: int,
    drawn: dict[str, Any],
) -> CausalCheck:
    """All heads of one task, and the other heads beside them."""
    batteries = Batteries(model, seed, **drawn)
    prompts = [prompt for number in range(DRAWS) for prompt in batteries.draw(task, number)]
    bases = [recorded(model, list(prompt.ids)) for prompt in prompts]
    chosen = [*mine, *other_heads(model, mine, others, seed)]
    means = {pair: _mean(bases, pair, method) for pair in chosen}
    total = torch.zeros(len(chosen) + 2, dtype=torch.float64)
    for prompt, base in zip(prompts, bases, strict=True):
        own = [_put(pair, base.attention(pair[0]).z[:, pair[1]]) for pair in mine]
        rows = [[], own, *([_put(pair, means[pair].expand(len(base.tokens), -1))] for pair in chosen)]
        total += _losses(model, base, prompt, rows, batch_size) / len(prompts)
    clean, changes = float(total[0]), (total[2:] - total[0]).tolist()
    found = [_score(model, pair, task, value, changes[len(mine) :]) for pair, value in zip(mine, changes, strict=False)]
    error = abs(float(total[1]) - clean) / max(abs(clean), 1e-30)
    return CausalCheck(
        model=model.name, revision=None, rows=tuple(found), clean={task: clean}, method=method, error=error
    )


def other_heads(model: Model, mine: Sequence[Pair], count: int, seed: int) -> list[Pair]:
    """Heads that are not asked about, drawn by seed."""
    every = [(n, h) for n in range(model.shape.n_layers) for h in range(model.shape.n_heads) if (n, h) not in mine]
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
    return [every[n] for n in order[:count].tolist()]


def _mean(bases: Sequence[Trace], pair: Pair, method: str) -> Float[Tensor, "1 d_head"]:
    z = torch.cat([base.attention(pair[0]).z[:, pair[1]] for base in bases])
    return torch.zeros_like(z[:1]) if method == "zero" else z.mean(0, keepdim=True)


def _put(pair: Pair, value: Float[Tensor, "pos d_head"]) -> Replacement:
    return Replacement(Place("z", pair[0]), value, pair[1])


def _losses(
    model: Model, base: Trace, prompt: TestPrompt, rows: Sequence[Sequence[Replacement]], batch_size: int
) -> Float[Tensor, "_row"]:
    """Mean loss of each changed pass, over the tokens that the task predicts."""
    first = prompt.start + prompt.period if prompt.period else max(prompt.start, 1) - 1
    ids = torch.tensor(prompt.ids[first + 1 : prompt.stop], device=model.device)

    def loss(logits: Tensor) -> Tensor:
        predicted = logits[:, first : prompt.stop - 1].double().log_softmax(-1)
        return -predicted.gather(2, ids[None, :, None].expand(len(logits), -1, 1)).mean((1, 2))

    return changed_passes(model, base, rows, loss, batch_size=batch_size).cpu()


def _score(model: Model, pair: Pair, task: str, value: float, null: list[float]) -> Score:
    draws = torch.tensor(null, dtype=torch.float64)
    mean, sd = (float(draws.mean()), float(draws.std())) if len(draws) > 1 else (math.nan, math.nan)
    label = head_label(pair[0], pair[1], "decoder", False)
    group = pair[1] // (model.shape.n_heads // model.shape.n_kv_heads)
    n = len(draws) if len(draws) > 1 else 0
    return Score("decoder", pair[0], pair[1], group, label, f"ablation_{task}", value, mean, sd, n)
