"""What heads do to given words, from weights: relations, successors, copying and copy suppression.

For pairs (source, target) a head's score is the share of sources whose target is among the k tokens that its full
message raises most (MAPS; Elhelo and Geva 2024), or lowers most (suppression). Heads of layer 0 read the embedding,
later ones the embedding after the first MLP where there is one. Copying and copy suppression (McDougall et al.
2023) are the pair of a token with itself, on tokens drawn at random. Successor (Gould et al. 2023): the word of a
list in order that the head raises most, among the words of the list, is the next one.

Null: the same sources with the targets of others. Its mean is exact, over all wrong partners; its spread is that of
random reassignments. Ties count against a hit, so a head that does nothing scores 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechview.errors import UsageError
from mechview.factors import HeadFactors
from mechview.heads.vocabulary import Reading, check_unembedding, kept_ids, key_rows, unembedding
from mechview.heads.weight_scores import WeightScore, WeightScores, head_factors_of, head_layers, named, score_row
from mechview.heads.words import known_tokens, ordinal_lists, relation_names, relation_pairs, token_id
from mechview.models.weights import HasWeights, ModelWeights, Stack, weights_of

FEWEST = 5
SHUFFLES = 200
SAMPLE = 128
Scored = Iterator[tuple[HeadFactors, Float[Tensor, "row column"]]]


@dataclass(frozen=True)
class Question:
    """Pairs to look up: `source[i]` leads to `target[i]`, both ids; `name` ends the metric."""

    name: str
    source: Int[Tensor, "pair"]
    target: Int[Tensor, "pair"]
    left_out: int


def relation_scores(
    model: ModelWeights | HasWeights,
    relation: str | Sequence[tuple[int | str, int | str]] | None = None,
    *,
    k: int = 10,
    layers: Sequence[int] | None = None,
    space: str | None = None,
    stack: Stack | None = None,
    fold: bool = True,
    seed: int = 0,
) -> WeightScores:
    """Relation and suppression scores of heads, beside reassigned targets.

    Args:
        relation: a bundled relation, pairs of your own (text or ids), or all bundled relations.
        k: how many of the most raised (most lowered) tokens count as found.
        space: `embed` or `mlp0` for all layers; see the module's text for the default.

    Raises:
        UsageError: no such relation, or fewer than five pairs of single tokens. UnsupportedError: no linear logits.
    """
    questions = _questions(model, relation)
    return _asked(model, questions, k, layers, space, stack, fold, seed, ("relation", "suppression"))


def copy_scores(
    model: ModelWeights | HasWeights,
    *,
    k: int = 10,
    sample: int = SAMPLE,
    layers: Sequence[int] | None = None,
    space: str | None = None,
    stack: Stack | None = None,
    fold: bool = True,
    seed: int = 0,
) -> WeightScores:
    """Share of tokens that are among the k most raised (`copy`) or most lowered (`copy_suppression`) of their row.

    Raises:
        UnsupportedError: messages of this model have no logits of their own.
    """
    ids = kept_ids(weights_of(model).shape.d_vocab, getattr(model, "tokenizer", None))
    drawn = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))[:sample]]
    question = Question("", drawn, drawn, 0)
    return _asked(model, [question], k, layers, space, stack, fold, seed, ("copy", "copy_suppression"))


def successor_scores(
    model: ModelWeights | HasWeights,
    lists: dict[str, Sequence[int | str]] | None = None,
    *,
    layers: Sequence[int] | None = None,
    space: str | None = None,
    stack: Stack | None = None,
    fold: bool = True,
    seed: int = 0,
) -> WeightScores:
    """Share of words in ordered lists whose successor the head raises most among the words of the list.

    Raises:
        UsageError: no list keeps three single tokens in a row.
    """
    runs = _runs(model, lists)
    sources = torch.cat([run[:-1] for run in runs])
    rows: list[WeightScore] = []
    generator = torch.Generator().manual_seed(seed)
    for factors, logits in _logits(model, sources, layers, space, stack, fold):
        hits, shuffles, start = [], [], 0
        for run in runs:
            among = logits[start : start + len(run) - 1][:, _places(model, run)]
            hits.append(_first_of(among, torch.arange(1, len(run))))
            orders = [torch.randperm(len(run), generator=generator)[: len(run) - 1] for _ in range(SHUFFLES)]
            shuffles.append(torch.stack([_first_of(among, order) for order in orders]))
            start += len(run) - 1
        null = torch.cat(shuffles, 1).double().mean(1)
        rows.append(score_row(factors, "successor", float(torch.cat(hits).double().mean()), null))
    about = f"{len(sources)} steps in {len(runs)} lists"
    return WeightScores(rows=tuple(rows), about=about, **named(model))


def _first_of(scores: Float[Tensor, "row column"], target: Int[Tensor, "row"]) -> Bool[Tensor, "row"]:
    own = scores.gather(1, target[:, None])
    return (scores >= own).sum(1) == 1


def _asked(
    model: ModelWeights | HasWeights, questions: list[Question], k: int, layers: Sequence[int] | None,
    space: str | None, stack: Stack | None, fold: bool, seed: int, metrics: tuple[str, str],
) -> WeightScores:  # fmt: skip
    sources = torch.cat([q.source for q in questions])
    places = [_places(model, q.target) for q in questions]
    rows: list[WeightScore] = []
    for factors, logits in _logits(model, sources, layers, space, stack, fold):
        start = 0
        for question, columns in zip(questions, places, strict=True):
            part = logits[start : start + len(question.source)]
            start += len(question.source)
            for metric, values in zip(metrics, (part, -part), strict=True):
                found = hits(values, columns, k)
                name = f"{metric}_{question.name}" if question.name else metric
                value = float(found.diagonal().double().mean())
                rows.append(score_row(factors, name, value, _wrong(found, question.target, seed), n=SHUFFLES))
    left_out = sum(q.left_out for q in questions)
    about = f"top {k}; {len(sources)} pairs, {left_out} left out as not single tokens"
    return WeightScores(rows=tuple(rows), about=about, **named(model))


def hits(logits: Float[Tensor, "row column"], targets: Int[Tensor, "pair"], k: int) -> Bool[Tensor, "row pair"]:
    """Whether each target is among the k highest of each row, ties counting against it."""
    bound = logits.topk(min(k + 1, logits.shape[1]), dim=1).values[:, -1:]
    return logits[:, targets] > bound if k < logits.shape[1] else torch.ones_like(logits[:, targets], dtype=torch.bool)


def _wrong(found: Bool[Tensor, "row pair"], targets: Int[Tensor, "pair"], seed: int) -> Float[Tensor, "_moments"]:
    """Mean over all wrong partners, and the spread of random reassignments to wrong partners."""
    apart = targets[:, None] != targets[None, :]
    mean = (found & apart).sum().double() / apart.sum().clamp_min(1)
    generator = torch.Generator().manual_seed(seed)
    count, draws = len(targets), []
    for _ in range(SHUFFLES):
        order = torch.randperm(count, generator=generator)
        fair = apart[torch.arange(count), order]
        draws.append((found[torch.arange(count), order] & fair).sum().double() / fair.sum().clamp_min(1))
    return torch.stack([mean, torch.stack(draws).std()])


def _logits(
    model: ModelWeights | HasWeights, sources: Int[Tensor, "row"], layers: Sequence[int] | None, space: str | None,
    stack: Stack | None, fold: bool,
) -> Scored:  # fmt: skip
    """Full-message rows of the sources, head by head, over the kept tokens."""
    weights, ends = weights_of(model), weights_of(model).ends()
    ids = kept_ids(weights.shape.d_vocab, getattr(model, "tokenizer", None))
    readout: Tensor | None = None
    rows: dict[str, Tensor] = {}
    for attention, several in head_layers(weights, layers, stack):
        check_unembedding(weights, ends, attention.stack)
        reading = Reading(space or _space(weights, attention.layer, attention.stack))
        if readout is None:
            made = unembedding(weights, ends, ids, attention.stack, Reading(), fold)
            readout = torch.cat([made.columns(part).float() for part in ids.split(4096)]).mT.contiguous()
        if reading.space not in rows:
            rows[reading.space] = key_rows(weights, sources, reading, attention, fold).through(lambda x: x)
        for factors in head_factors_of(attention, fold, several):
            sent = (rows[reading.space] @ factors.message.left.double()) @ factors.output.double()
            yield factors, sent.float() @ readout


def _space(weights: ModelWeights, layer: int, stack: Stack) -> str:
    place: Stack = "encoder" if stack == "cross" else stack
    return "mlp0" if (layer > 0 or stack == "cross") and weights.mlp(0, place).W_in.shape[-1] else "embed"


def _places(model: ModelWeights | HasWeights, targets: Int[Tensor, "pair"]) -> Int[Tensor, "pair"]:
    ids = kept_ids(weights_of(model).shape.d_vocab, getattr(model, "tokenizer", None))
    where = torch.searchsorted(ids, targets).clamp_max(len(ids) - 1)
    if (missing := targets[ids[where] != targets]).numel():
        raise UsageError(f"token {int(missing[0])} is special or unused: it cannot be the target of a pair")
    return where


def _questions(
    model: ModelWeights | HasWeights, relation: str | Sequence[tuple[int | str, int | str]] | None
) -> list[Question]:
    tokenizer, size = getattr(model, "tokenizer", None), weights_of(model).shape.d_vocab
    if relation is not None and not isinstance(relation, str):
        pairs = [(token_id(s, tokenizer, size), token_id(t, tokenizer, size)) for s, t in relation]
        found = [_question("own", pairs, 0)]
    else:
        found = [_words(name, tokenizer) for name in (relation_names() if relation is None else [relation])]
    kept = [question for question in found if len(question.source) >= FEWEST]
    if not kept:
        counts = ", ".join(f"{q.name} {len(q.source)}" for q in found)
        raise UsageError(f"a relation needs {FEWEST} pairs of single tokens of this tokenizer; there are: {counts}")
    return kept


def _words(name: str, tokenizer: object) -> Question:
    pairs = relation_pairs(name)
    sources, targets = (known_tokens([getattr(p, side) for p in pairs], tokenizer) for side in ("source", "target"))
    whole = [(s, t) for s, t in zip(sources, targets, strict=True) if s is not None and t is not None]
    return _question(name, whole, len(pairs) - len(whole))


def _question(name: str, pairs: list[tuple[int, int]], left_out: int) -> Question:
    ids = torch.tensor(pairs, dtype=torch.long).view(-1, 2)
    return Question(name, ids[:, 0].contiguous(), ids[:, 1].contiguous(), left_out)


def _runs(model: ModelWeights | HasWeights, lists: dict[str, Sequence[int | str]] | None) -> list[Int[Tensor, "row"]]:
    """Unbroken stretches of single tokens, of three or more, in the lists."""
    tokenizer, size = getattr(model, "tokenizer", None), weights_of(model).shape.d_vocab
    if lists is None:
        found = [known_tokens(words, tokenizer) for words in ordinal_lists().values()]
    else:
        found = [[token_id(word, tokenizer, size) for word in words] for words in lists.values()]
    runs = [run for ids in found for run in _unbroken(ids) if len(run) >= 3]
    if not runs:
        raise UsageError("no list keeps three words in a row that are single tokens of this tokenizer")
    return [torch.tensor(run) for run in runs]


def _unbroken(ids: Sequence[int | None]) -> Iterator[list[int]]:
    run: list[int] = []
    for token in [*ids, None]:
        if token is None or token in run:
            yield run
            run = []
        else:
            run.append(token)
