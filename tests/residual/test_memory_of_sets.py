"""Sets of prompts are streamed: four times the prompts hold no more bytes, but for a column of numbers each.

Bytes are the allocator's. A pass of 40 tokens through the tiny model keeps about 260 kB of trace, so one trace that
stayed alive for each further prompt would show at once.
"""

from __future__ import annotations

import pytest

import families
import mechview as mv
from conftest import family
from mechview.models.prompt_tables import Case
from memory import held_bytes, peak_bytes

LENGTH, FEW, MANY = 40, 3, 12


def prompts(count: int, start: int = 0) -> list[list[int]]:
    return [families.tokens(LENGTH + start + n)[-LENGTH:] for n in range(count)]


def cases(count: int) -> list[Case]:
    return [Case(ids, 5, 7, other) for ids, other in zip(prompts(count), prompts(count, 20), strict=True)]


def sets_of_norms(model, other, count):
    return mv.compare(prompts(count), prompts(count, 20), model=model, draws=20)


def sets_of_shares(model, other, count):
    return mv.compare(cases(count), cases(count), model=model, paired=True, draws=20)


def two_models(model, other, count):
    return mv.compare(model, other, prompts=prompts(count), draws=20)


def ablated(model, other, count):
    return mv.effects_over(model, cases(count), draws=20)


def ablated_to_the_mean(model, other, count):
    return mv.effects_over(model, cases(count), method="mean", draws=20)


def resampled(model, other, count):
    return mv.effects_over(model, cases(count), method="resample", draws=20)


def patched(model, other, count):
    return mv.patch_over(model, cases(count), draws=20)


def attributed(model, other, count):
    return mv.mean_attribution(mv.direct_attributions(mv.write_traces(model, prompts(count)), 5))


MEASURES = [
    sets_of_norms, sets_of_shares, two_models, ablated, ablated_to_the_mean, resampled, patched, attributed,
]  # fmt: skip


@pytest.fixture(scope="module")
def models():
    model, _ = family("gpt2")
    other = mv.wrap(families.FAMILIES["gpt2"].build(seed=3))
    return model, other


@pytest.mark.parametrize("measure", MEASURES)
def test_bytes_do_not_grow_with_the_number_of_prompts(models, measure):
    one_trace = held_bytes(mv.trace(models[0], prompts(1)[0]).capture)
    measure(*models, FEW)  # what is read once is read
    few, many = (peak_bytes(lambda n=n: measure(*models, n)) for n in (FEW, MANY))
    assert one_trace > 100_000
    assert many - few < one_trace / 2
