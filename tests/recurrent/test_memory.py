"""`mv.memory` whole: verdicts by their nulls, both tables, the page, the verb, and real models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import mechview as mv
from conftest import family
from mechview.errors import PromptError, UsageError
from mechview.models.bundled import data_folder
from mechview.models.permuted import permuted_copy
from mechview.recurrent.depth import depth_stream, traced, writes_of
from mechview.recurrent.depth_side import Depth, measured, mixed_grams, same_layer_erasure
from mechview.recurrent.positions import (
    coherence_of,
    correlation,
    half_lag,
    head_gates,
    lag_mass,
    pair_split,
    row_orders,
    shuffled,
)
from mechview.recurrent.positions_side import even_attention, of_queries
from mechview.recurrent.retention import Split
from mechview.recurrent.stream import forget_gates, grams, retention_curves
from mechview.recurrent.verdicts import MEANING, Measured, Null, Verdict, bootstrap, jackknife, null_of
from mechview.residual.rows import source_writes
from mechview.tables import analogies_frame, check_schema, gates_frame, memory_frame

pytest_plugins = ["commands"]

PROMPTS = ["the man and the woman and the man", "And the evening and the morning were the first day."]
FAR, NEAR = Null(0.0, 0.1, 20), Null(1.0, 0.1, 5)


@pytest.mark.parametrize(
    ("tokens", "weights", "even", "verdict"),
    [
        (FAR, FAR, 1.0, Verdict.informative),
        (FAR, FAR, -1.0, Verdict.weak),
        (FAR, NEAR, 1.0, Verdict.weak),
        (NEAR, NEAR, 1.0, Verdict.vacuous),
        (FAR, Null(), None, Verdict.weak),
        (Null(), NEAR, None, Verdict.vacuous),
        (Null(), Null(), None, Verdict.not_applicable),
    ],
)
def test_a_verdict_is_what_the_nulls_say(tokens, weights, even, verdict):
    assert Measured(1.0, 0.9, 1.1, tokens, weights, even).verdict is verdict
    assert MEANING[verdict]
    assert Measured(math.nan, tokens=FAR, weights=FAR).verdict is Verdict.not_applicable
    assert Measured(1.0, tokens=FAR, weights=FAR, even=1.0).verdict is Verdict.weak  # no interval to be sure by
    assert Measured(1.0, tokens=NEAR, weights=NEAR).verdict is Verdict.vacuous
    wide = Measured(1.0, -0.5, 2.5, FAR, FAR)
    assert wide.verdict is Verdict.vacuous  # its own interval reaches into the nulls


def test_intervals_and_nulls_are_of_the_draws():
    groups = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    lo, hi = bootstrap(groups, lambda total: total / 4, torch.Generator().manual_seed(0))
    assert 1.0 < float(lo) < 3.0 < float(hi) < 6.0
    one = bootstrap(groups[:1], lambda total: total, torch.Generator())
    assert all(torch.isnan(end).all() for end in one)
    assert null_of([1.0, 3.0, math.nan]) == Null(2.0, math.sqrt(2.0), 2)
    assert null_of([]).n == 0


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = torch.randn(12, generator=torch.Generator().manual_seed(0)).tolist()
    without = [(sum(values) - one) / 11 for one in values]
    lo, hi = jackknife(sum(values) / 12, without)
    assert (lo + hi) / 2 == pytest.approx(sum(values) / 12)
    assert hi - lo == pytest.approx(2 * 1.959964 * float(torch.tensor(values).std()) / math.sqrt(12))


@pytest.mark.parametrize("prompts", [["one two three four five six seven"], PROMPTS, [" ".join(["of the"] * 40)]])
def test_no_number_is_called_informative_without_an_interval(toy, prompts):
    """One short prompt, several, and one long enough for blocks: every judged number of either side."""
    found = mv.memory(toy, prompts, beside="twin", causal=False)
    judged = [row for row in found.rows if row.judged]
    assert judged
    for row in judged:
        assert row.verdict is not Verdict.informative or row.found.lo <= row.found.hi, (row.place, row.quantity)
    blocks = len(prompts) > 1 or len(found.traces[0].tokens) > 16
    heads = [row.found for row in judged if row.quantity == "coherence"]
    assert all(math.isnan(one.lo) != blocks for one in heads)
    assert ("have no interval" in " ".join(found.notes)) == (len(prompts) == 1)


def test_leaving_queries_out_is_measuring_the_others(toy):
    trace = traced(toy, [PROMPTS[0]])[0]
    order = row_orders(len(trace.tokens), True, 2, torch.Generator().manual_seed(0))
    gates = head_gates(trace, 1, order)
    kept = torch.arange(len(trace.tokens)) < 5
    cut = of_queries(gates, kept)
    torch.testing.assert_close(lag_mass(cut.pattern)[:, :5], lag_mass(gates.pattern[:, :5, :5]))
    assert float(cut.coherence[:, 1:].nanmean()) == pytest.approx(float(gates.coherence[:, 1:5].mean()))
    few, all_ = pair_split(cut.pattern, cut.message, True), pair_split(gates.pattern, gates.message, True)
    assert few.gate != all_.gate
    short = pair_split(gates.pattern[:, :5, :5], gates.message[:, :5], True)
    assert few.gate == pytest.approx(short.gate, rel=1e-9)


def test_coherence_is_that_of_the_written_vectors(toy):
    trace = traced(toy, [PROMPTS[0]])[0]
    order = row_orders(len(trace.tokens), True, 3, torch.Generator().manual_seed(0))
    gates = head_gates(trace, 1, order)
    parts = source_writes(trace, 1, "decoder", trace.weights.attention(1)).double()
    expected = parts.sum(1).norm(dim=-1) / parts.norm(dim=-1).sum(1)
    torch.testing.assert_close(gates.coherence, expected, rtol=1e-4, atol=1e-5)
    assert coherence_of(torch.ones(1, 1, 3).double(), torch.ones(1, 3, 3).double()) == pytest.approx(1.0)
    assert coherence_of(torch.ones(1, 1, 2).double(), torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]).double()) == 0.0
    mixed = shuffled(gates.pattern, order[0])
    torch.testing.assert_close(mixed.sort(-1).values, gates.pattern.sort(-1).values)
    torch.testing.assert_close(mixed[..., 0], gates.pattern[..., 0])
    assert (mixed.triu(1) == 0).all()
    assert not torch.equal(mixed, gates.pattern)


def test_mass_against_lag_of_planted_heads():
    A = torch.zeros(1, 6, 6, dtype=torch.float64)
    A[0, torch.arange(2, 6), torch.arange(6)[:4]] = 1.0
    A[0, 0, 0] = A[0, 1, 0] = 1.0
    mass = lag_mass(A)
    assert mass[0].tolist() == pytest.approx([0, 0, 1.0, 0, 0, 0])
    assert float(half_lag(mass)[0]) == pytest.approx(2.5)
    even = lag_mass(even_attention(A, True))
    assert float(even.sum()) == pytest.approx(1.0)
    assert (even[0].diff()[1:] < 0).all()
    assert torch.isnan(half_lag(lag_mass(torch.eye(1)[None].double() * 0)))
    pattern = torch.tensor([[[1.0, 0.0], [0.2, 0.8]]]).double()
    assert pair_split(pattern, torch.tensor([[3.0, 3.0]]).double(), True).gate == pytest.approx(1.0)
    assert correlation(Split(0.25, 0.25, 0.5, 1.0, 0)) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def both(toy):
    return mv.memory(toy, PROMPTS, beside="twin")


def test_both_sides_stand_in_the_same_tables(both):
    frame = check_schema(both.frame(), "memory")
    gates, pairs = check_schema(gates_frame(both), "gates"), check_schema(analogies_frame(both), "analogies")
    assert set(frame["side"]) == set(gates["side"]) == {"lstm", "transformer"}
    assert dict(frame.groupby("side", observed=True)["model"].first()) == {"lstm": "twin", "transformer": "toy"}
    assert both.error < 1e-5
    assert both.manifest["beside"]["model"] == "twin"
    message = pairs[pairs["claim"] == "output gate ~ message"]
    assert set(message["mapping"]) == {"message as output gate", "message as candidate"}
    assert set(pairs["verdict"]) <= {verdict.value for verdict in Verdict}
    assert pairs[pairs["mapping"] == "algebra"]["verdict"].item() == "vacuous"
    assert memory_frame(both).equals(frame)


def test_numbers_of_the_whole_are_those_of_their_parts(both, toy):
    stream = depth_stream(writes_of(traced(toy, PROMPTS)))
    gram = torch.einsum("ktd,ltd->kl", stream.writes, stream.writes)
    kept = retention_curves(gram)
    assert both.number("embedding_retention", "all").value == pytest.approx(float(kept[0, -1]))
    assert both.number("forget_gate", "L0.mlp").value == pytest.approx(float(forget_gates(gram)[1]))
    with pytest.raises(UsageError, match="say of which place"):
        both.number("forget_gate")


@pytest.mark.parametrize(
    "quantity", ["forget_gate", "erasure", "embedding_retention", "final_retention", "causal_retention"]
)
def test_every_number_over_depth_that_a_verdict_judges_has_both_nulls_and_an_interval(both, quantity):
    """20 draws of other tokens and 5 of weights behind each write's number, or there is nothing to judge it by."""
    rows = [row for row in both.rows if row.quantity == quantity and row.place != "all"]
    assert len(rows) >= 3
    for row in rows:
        assert row.judged
        assert (row.found.tokens.n, row.found.weights.n) == (20, 5), row.place
        assert row.found.lo <= row.found.hi
        assert row.found.even is not None
        assert row.verdict is row.found.verdict


def test_causal_retention_of_the_last_write_is_one_and_of_another_token_is_none(both):
    """Nothing comes after the last write, so taking it away misses all of it; another token's write is unrelated."""
    last = both.number("causal_retention", "L1.mlp")
    assert last.value == pytest.approx(1.0, abs=1e-5)
    assert last.even == pytest.approx(1.0, abs=1e-5)
    assert abs(last.tokens.mean) < 0.3
    assert last.verdict is Verdict.weak  # true of any weights


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers_and_another_does_not(toy):
    again = [mv.memory(toy, PROMPTS, copies=2, causal=False, seed=seed) for seed in (1, 1, 2)]
    first, second, third = (one.number("mlp_forgetting", "all") for one in again)
    assert first == second
    assert first.value == third.value
    assert first.weights != third.weights
    assert "fewer than 5" in " ".join(again[0].notes)
    assert not [row for row in again[0].rows if row.quantity == "causal_retention"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert", "falcon", "t5", "gemma2", "mixtral"])
def test_other_families_are_measured_or_say_why_not(name):
    model, _ = family(name)
    found = mv.memory(model, [list(range(3, 15)), list(range(20, 30))], copies=1)
    assert found.error < 1e-5
    said = " ".join(found.notes)
    assert ("transported" in said) == (name == "bert")
    assert ("parallel" in said) == (name == "falcon")


def test_bare_lstms_are_measured_with_vectors():
    found = mv.memory(nn.LSTM(3, 4, bidirectional=True), [torch.randn(9, 3), torch.randn(6, 3)])
    assert {row.place for row in found.gates} == {"L0", "L0.backward"}
    assert found.error < 1e-12
    assert found.frame()["side"].unique().tolist() == ["lstm"]


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda toy: mv.memory(toy, beside=toy), UsageError, "takes the other kind"),
        (lambda toy: mv.memory(toy, []), PromptError, "at least one prompt"),
        (lambda toy: mv.memory(toy, copies=-1), UsageError, "not a number of permuted models"),
        (lambda toy: mv.memory(toy, copies=True), UsageError, "not a number of permuted models"),
        (lambda toy: mv.memory(toy, [[5]]), PromptError, "at least two"),
        (lambda toy: mv.memory(nn.LSTM(3, 4)), PromptError, "no tokenizer"),
        (lambda toy: mv.memory(toy, [[5, 4000]]), PromptError, "token id 4000 does not exist"),
        (lambda toy: mv.recall(toy, nn.LSTM(3, 4)), mv.MechviewError, "no embedding or no read-out"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(toy, call, kind, sentence):
    with pytest.raises(kind, match=sentence):
        call(toy)


def test_the_verb_prints_analogies_and_writes_tables_and_a_page(cli, tmp_path):
    asked = ("memory", "toy", "--beside", "twin", "-p", PROMPTS[0], "-p", PROMPTS[1], "--copies", "1", "--no-causal")
    said = cli(*asked)
    assert said.code == 0
    assert "message as candidate" in said.out
    assert "note: only 1 permuted copies" in said.out
    found = cli(*asked, "--json").json
    assert {"rows", "gates", "analogies"} <= set(found)
    page = tmp_path / "memory.html"
    assert cli(*asked, "-o", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "Retention over depth" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert cli(*asked, "-o", page).code == 2


def test_the_page_shows_text_as_text_and_hides_it_when_told(cli, tmp_path):
    page, file = tmp_path / "p.html", tmp_path / "prompts.txt"
    file.write_text("secret<b>words</b> secret<b>words</b>\n")
    cli("memory", "--prompts", file, "--copies", "1", "--no-causal", "-o", page)
    assert "secret" not in page.read_text(encoding="utf-8")
    cli("memory", "-p", "<b>bold</b> <b>bold</b>", "--copies", "1", "--no-causal", "-o", page, "--force")
    text = page.read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "&lt;" in text


def heldout(model):
    """60 tokens of each of the two held-out texts."""
    texts = [(data_folder() / "text" / f"{name}-heldout.txt").read_text(encoding="utf-8") for name in ("austen", "kjv")]
    return [model.tokenizer(text[1000:1800])["input_ids"][:60] for text in texts]


@pytest.fixture(scope="module")
def smollm2_depths(smollm2):
    """SmolLM2 and three copies of it with permuted weights on 120 tokens of the held-out texts."""
    ids, generator = heldout(smollm2), torch.Generator().manual_seed(0)

    def depth(model):
        written = writes_of(traced(model, ids, "no"))
        stream = depth_stream(written)
        return Depth(stream, written, grams(stream).sum(0), None, ())

    return depth(smollm2), [depth(permuted_copy(smollm2, generator, ends=True)) for _ in range(3)]


@pytest.mark.real
def test_smollm2s_middle_mlps_forget_beyond_permuted_weights(smollm2_depths):
    """SPIN.md, D.4: f of MLP writes .94-.99 in layers 4-20 (permuted 1.00 +- .002); MLPs take 14-35 % of attention back."""
    real, copies = smollm2_depths
    generator, names = torch.Generator().manual_seed(0), real.stream.names
    mixed = mixed_grams(real.stream, generator)
    found = dict(zip(names[1:], measured(real, forget_gates, mixed, copies, generator), strict=True))
    middle = [found[f"L{layer}.mlp"] for layer in range(4, 21)]
    assert all(0.92 < one.value < 1.0 for one in middle)
    assert all(abs(one.weights.mean - 1.0) < 0.01 for one in middle)
    for layer in range(10, 19):
        assert found[f"L{layer}.mlp"].verdict is Verdict.informative, layer
    erased = dict(zip(names[1:], measured(real, same_layer_erasure, mixed, copies, generator), strict=False))
    for layer in (3, 8, 11, 14):
        one = erased[f"L{layer}.attn"]
        assert one.value > 0.05
        assert one.verdict is Verdict.informative, layer
        assert abs(one.weights.mean) < 0.05


@pytest.mark.real
def test_smollm2s_embedding_is_kept_less_the_deeper_and_permuted_weights_keep_it(smollm2_depths):
    """SPIN.md, D.4: .64, .51, .28 of it after 4, 10 and 20 writes; a model without training keeps all of it."""
    real, copies = smollm2_depths
    kept = retention_curves(real.gram)[0]
    assert 0.9 > kept[4] > kept[10] > kept[20]
    assert kept[20] < 0.5
    generator = torch.Generator().manual_seed(0)
    early = measured(
        real, lambda g, p: retention_curves(g, p)[0, 4:21], mixed_grams(real.stream, generator), copies, generator
    )
    assert all(one.hi < 0.6 for one in early)
    assert all(one.verdict is not Verdict.not_applicable for one in early)


@pytest.mark.slow
@pytest.mark.real
def test_smollm2_whole_with_five_copies_forgets_and_the_algebra_does_not(smollm2):
    found = mv.memory(smollm2, heldout(smollm2), causal=False)
    assert found.number("mlp_forgetting", "all").verdict is Verdict.informative
    assert found.number("mlp_forgetting", "all").value > 0
    assert found.number("attention_erased_by_next_mlp", "all").verdict is Verdict.informative
    assert found.number("algebraic_forget_gate", "all").value == 1.0
    assert found.number("algebraic_forget_gate", "all").verdict is Verdict.vacuous


def test_figures_show_what_the_frames_hold(both):
    from mechview.figures import gates_over_text, half_life_spectrum, lag_profiles, retention_map

    frame = both.frame()
    z = retention_map(frame).data[0].z
    kept = frame[(frame["quantity"] == "retention") & (frame["over"] == "depth")]
    cell = kept[(kept["place"] == "embed") & (kept["later"] == "L1.mlp")]["value"].item()
    assert z[0][-1] == cell
    assert math.isnan(z[-1][0])
    assert "censored" in half_life_spectrum(frame).layout.title.text
    assert {trace.name for trace in lag_profiles(frame).data} >= {
        "lstm L0",
        "transformer all",
        "transformer even attention",
    }
    assert any("forget" in trace.name for trace in gates_over_text(gates_frame(both)).data)
    assert both.figure().data
