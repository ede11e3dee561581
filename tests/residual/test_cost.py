"""Estimates against counted bytes, streaming, blocks of queries: memory is bounded, and said beforehand."""

from __future__ import annotations

import json

import pytest
import torch
from test_ledger import TRACED, traced

import families
import mechview as mv
from conftest import family
from mechview.cli import run
from mechview.errors import UsageError
from mechview.residual.cost import estimate_each, sizes_of
from memory import held_bytes, peak_bytes

pytest_plugins = ["commands"]

FACTOR = 2.0  # what a stated estimate may be off by, either way
DECODERS = [n for n in TRACED if not n.startswith("t5")]
RUNNING = ("resid", "lens", "why", "compare", "ablate", "patch", "attend", "report")


@pytest.mark.parametrize("name", DECODERS)
def test_traces_are_estimated_by_their_bytes(name):
    model, _ = family(name)
    ids = families.tokens(24)
    told = mv.estimate(model, [ids]).trace_bytes
    held = held_bytes(mv.trace(model, ids).capture)
    assert held / FACTOR < told < held * FACTOR


@pytest.mark.parametrize("name", TRACED)
def test_weights_are_estimated_by_their_bytes(name):
    model, module = family(name)
    held = held_bytes([p for p in module.parameters() if p.ndim > 1])
    assert held / 1.3 < mv.estimate(model, [[5, 6, 7]]).weight_bytes < held * 1.3


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "mixtral"])
@pytest.mark.parametrize("by", ["head", "source"])
def test_the_peak_of_a_ledger_is_estimated(name, by):
    """Counted by the allocator, from before the pass to the rows; weights are there already."""
    model, _ = family(name)
    ids = families.tokens(40)
    mv.trace(model, ids)  # whatever is built once, is
    told = mv.estimate(model, [ids], "resid", by=by)
    peak = peak_bytes(lambda: mv.ledger(mv.trace(model, ids), by))
    assert peak / FACTOR < told.peak_bytes - told.weight_bytes < peak * FACTOR


def test_estimates_grow_as_the_run_does():
    model, _ = family("llama")
    one, two, many = (mv.estimate(model, p) for p in ([[5] * 16], [[5] * 32], [[5] * 16] * 7))
    assert many.flops == pytest.approx(7 * one.flops)
    assert many.passes == 7
    assert many.peak_bytes == one.peak_bytes  # one prompt at a time
    assert 2 * one.flops < two.flops < 4 * one.flops
    assert 2 * one.trace_bytes < two.trace_bytes < 4 * one.trace_bytes
    attend = [mv.estimate(model, p, "attend").trace_bytes for p in ([[5] * 16], [[5] * 16] * 7)]
    assert attend[1] == 7 * attend[0]
    sources = [mv.estimate(model, [[5] * n], "resid", by="source").answer_bytes for n in (16, 32)]
    assert 3.5 < sources[1] / sources[0] < 4.5


def test_operations_are_two_for_each_weight_and_token():
    model, _ = family("gpt2")
    sizes, n = sizes_of(model), 10
    blocks = sum(p.numel() for name, p in model.module.named_parameters() if p.ndim == 2 and ".h." in name)
    pairs = 2 * 2 * 2 * n * n * 4 * 12  # two products of two layers, four heads of twelve
    assert sizes.flops(n) == 2 * n * blocks + pairs + 2 * n * families.VOCAB * 48


def test_a_mixture_is_charged_for_the_experts_it_uses():
    model, _ = family("mixtral")
    sizes = sizes_of(model)
    assert (sizes.experts, sizes.active, sizes.matrices) == (4, 2, 3)


@pytest.mark.parametrize("verb", RUNNING)
def test_dry_run_reads_no_weight_and_runs_nothing(cli, monkeypatch, verb, tmp_path):
    from mechview.models.checkpoint import FolderTensors
    from mechview.models.load import Model

    def never(*_, **__):
        raise RuntimeError("a dry run must not do this")

    monkeypatch.setattr(FolderTensors, "read", never)
    monkeypatch.setattr(Model, "capture", never)
    monkeypatch.setattr("mechview.models.load.load_module", never)
    monkeypatch.chdir(tmp_path)  # where a report would be written
    done = cli(*ARGUMENTS[verb], "--dry-run")
    assert done.code == 0, done.err
    assert f"{verb} toy would cost (nothing was run)" in done.out
    assert "operations" in done.out
    [row] = json.loads(cli(*ARGUMENTS[verb], "--dry-run", "--json").out)["rows"]
    assert row["verb"] == verb
    assert row["peak_bytes"] >= row["weight_bytes"] > 0
    assert row["flops"] > 0
    assert not list(tmp_path.iterdir())


PROMPT = ("-p", "the man and the woman")
ARGUMENTS = {
    "resid": ("resid", *PROMPT),
    "lens": ("lens", *PROMPT),
    "why": ("why", "L1H1", *PROMPT),
    "compare": ("compare", "the man", "the woman", "--model", "toy"),
    "ablate": ("ablate", *PROMPT, "-t", " man"),
    "patch": ("patch", *PROMPT, "--corrupted", "the man and the king", "-t", " man"),
    "attend": ("attend", *PROMPT),
    "report": ("report", *PROMPT),
}


def test_models_compared_by_weights_alone_cost_no_pass(cli):
    [row] = cli("compare", "toy", "toy", "--dry-run", "--json").json["rows"]
    assert (row["passes"], row["flops"], row["trace_bytes"]) == (0, 0.0, 0)
    one = cli("resid", "--ids", "5,6", "--dry-run", "--json").json["rows"][0]
    assert row["weight_bytes"] == 2 * one["weight_bytes"]
    two = cli("compare", "toy", "toy", "-p", "the man", "--dry-run", "--json").json["rows"][0]
    assert two["passes"] == 2


def test_passes_counted_are_passes_run(monkeypatch):
    """Ablation runs one base pass and one changed pass a component, and one with all put back."""
    model, _ = family("gpt2")
    ids, ran = families.tokens(8), []
    original = type(model).capture
    monkeypatch.setattr(type(model), "capture", lambda self, *a: ran.append(1) or original(self, *a))
    told = mv.estimate(model, [ids], "ablate")
    rows = mv.effects(model, ids, 5).rows
    assert told.passes == len(rows) + 2


def test_an_estimate_of_what_runs_nothing_is_refused():
    with pytest.raises(UsageError, match="heads runs no pass to estimate"):
        mv.estimate(family("gpt2")[0], [[5]], "heads")


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "opt", "bert", "t5", "gpt_oss"])
@pytest.mark.parametrize("by", ["source", "head", "bias"])
def test_a_ledger_in_blocks_is_the_ledger(name, by):
    trace = traced(name)
    whole = mv.ledger(trace, by)
    for block in (1, 4):
        parts = list(mv.ledger_blocks(trace, by, block=block))
        assert [p.trace.start for p in parts] == list(range(0, len(trace.tokens), block))
        assert all(p.components == whole.components for p in parts)
        assert max(p.error for p in parts) < 5e-6
        for quantity in ("values", "cos_stream", "share_of_update", "total"):
            joined = torch.cat([getattr(p, quantity) for p in parts], dim=0 if quantity == "total" else 1)
            size = float(getattr(whole, quantity).nan_to_num().abs().max())
            torch.testing.assert_close(joined, getattr(whole, quantity), rtol=0, atol=3e-6 * size, equal_nan=True)


def test_blocks_bound_the_memory_of_a_ledger_by_source():
    trace = traced("gpt2", 40)
    whole = peak_bytes(lambda: mv.ledger(trace, "source"))
    small = peak_bytes(lambda: [p.error for p in mv.ledger_blocks(trace, "source", block=4)])
    assert small < whole / 5


def test_rows_that_would_not_fit_are_refused_before_they_are_made(monkeypatch):
    """GPT-2 small at 256 tokens would need 29 GB; here the limit is lowered instead."""
    monkeypatch.setattr("mechview.residual.ledger.MOST_BYTES", 2 * 4 * 20 * 20 * 48 * 4 - 1)
    with pytest.raises(UsageError, match="ledger_blocks gives them a few positions at a time"):
        mv.ledger(traced("gpt2"), "source")
    assert len(list(mv.ledger_blocks(traced("gpt2"), "source", block=10))) == 2
    assert mv.ledger(traced("gpt2"), "head").error < 2e-6


def test_blocks_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="block=0 is not a number of positions"):
        mv.ledger_blocks(traced("gpt2"), block=0)
    with pytest.raises(UsageError, match="use mv.ledger"):
        mv.ledger_blocks(traced("gpt2"), "neuron")


def test_shares_by_source_hold_one_query_and_not_all():
    """`[head, key]` numbers a layer for the position asked about: linear in the prompt, not quadratic."""
    short, long = (peak_bytes(lambda n=n: mv.shares(traced("gpt2", n), 5, by="source")) for n in (10, 40))
    assert long < 6 * short


def test_a_light_trace_grows_with_the_prompt_and_not_with_its_square():
    model, _ = family("gpt2")
    light = [held_bytes(t.attention, t.mlp, t.final) for t in mv.write_traces(model, [[5] * 10, [5] * 40])]
    assert light[1] == 4 * light[0]
    whole = [held_bytes(mv.trace(model, [5] * n).capture.attention) for n in (10, 40)]
    assert whole[1] > 5 * whole[0]


def test_many_prompts_cost_the_memory_of_one():
    model, _ = family("gpt2")
    prompts = [families.tokens(24, seed=n) for n in range(12)]

    def over(count):
        return mv.mean_attribution(mv.direct_attributions(mv.write_traces(model, prompts[:count]), 5, 7))

    over(1)
    one, many = peak_bytes(lambda: over(2)), peak_bytes(lambda: over(12))
    assert many < 1.2 * one


def test_the_mean_and_spread_are_those_of_all_prompts_at_once():
    model, _ = family("gemma2")
    prompts = [families.tokens(6 + n, seed=n) for n in range(9)]
    found = list(mv.direct_attributions(mv.write_traces(model, prompts), 5, 7))
    got = mv.mean_attribution(iter(found), position=-1)
    columns = torch.stack([one.values[:, -1].double() for one in found])
    torch.testing.assert_close(got.mean, columns.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.sd, columns.std(0), rtol=1e-10, atol=1e-12)
    assert (got.n, got.error) == (9, max(one.error for one in found))
    assert float(got.mean.sum()) == pytest.approx(got.total, abs=1e-4 * float(got.mean.abs().max()))
    frame = got.frame()
    assert list(frame["component"]) == list(got.components)
    assert frame["mean"].sum() == pytest.approx(got.total, abs=1e-3)
    assert len(got.figure().data) == 1
    assert found[0].frame()["value"].sum() == pytest.approx(float(found[0].total.sum()), abs=1e-3)
    assert found[0].figure().data[0].z.shape == found[0].values.shape


def test_means_that_make_no_sense_are_refused():
    one, other = (mv.direct_attribution(traced(name), 5) for name in ("gpt2", "llama"))
    with pytest.raises(UsageError, match="no attributions to average"):
        mv.mean_attribution([])
    with pytest.raises(UsageError, match="different rows"):
        mv.mean_attribution([one, other])
    with pytest.raises(UsageError, match="position 99 does not exist"):
        mv.mean_attribution([one], position=99)


def test_attribution_holds_a_hundredth_of_one_stack_of_head_results():
    """GPT-2's proportions: `[layer * head, pos, d_model]` in float32 is what other tools hold at least once."""
    import transformers

    config = transformers.GPT2Config(n_layer=12, n_head=12, n_embd=384, vocab_size=500, n_positions=128, bos_token_id=0,
                                     eos_token_id=0)  # fmt: skip
    model = mv.wrap(transformers.GPT2LMHeadModel(config).eval())
    traces = list(mv.write_traces(model, torch.randint(500, (8, 128))))
    stack = 144 * 8 * 128 * 384 * 4
    each = [5] * 128
    list(mv.direct_attributions(traces, 5))
    for ask in (lambda t: mv.direct_attribution(t, 5), lambda t: mv.direct_attribution(t, each=each)):
        assert peak_bytes(lambda ask=ask: [ask(t).heads for t in traces]) < stack / 100


def test_a_set_costs_the_sum_of_its_cases_and_the_memory_of_its_largest():
    model = mv.load("toy")
    long, short = list(range(1, 33)), list(range(1, 9))
    asked = {"by": "head", "method": "zero"}
    both = estimate_each(model, [([long], asked), ([short], asked)], "ablate")
    alone = [mv.estimate(model, [ids], "ablate", **asked) for ids in (long, short)]
    assert both.passes == alone[0].passes + alone[1].passes
    assert both.flops == alone[0].flops + alone[1].flops
    assert both.peak_bytes == alone[0].peak_bytes > alone[1].peak_bytes
    assert both.tokens == (32, 8)


@pytest.mark.parametrize("verb", ["ablate", "patch"])
def test_a_dry_run_over_a_table_reads_its_prompts_and_runs_nothing(verb, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("mechview.models.tracing.trace", None)
    table = tmp_path / "pairs.jsonl"
    rows = [
        {"prompt": f"the man and the {word}", "corrupted": "the man of the sea", "target": " the", "against": " of"}
        for word in ("sea", "land")
    ]
    table.write_text("\n".join(json.dumps(row) for row in rows))
    assert run([verb, "--prompts", str(table), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["table"] == "cost"
    assert found["rows"][0]["passes"] > 2
