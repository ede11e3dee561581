"""`fit_spins` on whole models: invariances, resuming, memory, nulls of whole models, and hostile input."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import mechview as mv
from conftest import family
from mechview.errors import CheckError, OutputError, PromptError, UnsupportedError, UsageError
from mechview.models.intervene import recorded
from mechview.spins.layers import balance, ladder, ladder_mlp, maxwell, reaction, structure
from mechview.spins.layers import controls as c
from mechview.spins.layers import whole as wholes
from mechview.spins.layers.asked import FITS, TAUTOLOGIES
from mechview.spins.layers.fit import fit_spins
from mechview.spins.layers.saved import Shelf
from mechview.spins.layers.texts import sequences
from mechview.spins.layers.verdicts import Verdict
from mechview.spins.layers.work import Plan, seeded, work_of
from mechview.tables import check_schema, spin_spectra_frame, spin_weights_frame, thermo_frame

STRUCTURAL = [
    *(name for name in FITS if not name.startswith(("Hr", "Mr", "block"))), structure.QK, structure.OV,
    structure.COPYING, structure.ALIGNMENT, structure.ISOTROPY, balance.CURL, maxwell.MLP, maxwell.ATTENTION,
    maxwell.BLOCK, reaction.SHARE, reaction.NEGATIVE, "same-layer erasure",
]  # fmt: skip
SMALL = dict(length=16, train=4, test=3, draws=2, whole=False)


def documents(count: int = 4, vocab: int = 100, size: int = 200, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab, (size,), generator=generator).tolist() for _ in range(count)]


@pytest.fixture(scope="module")
def llama():
    return family("llama")[0]


@pytest.fixture(scope="module")
def fitted(llama):
    return fit_spins(llama, documents(), **{**SMALL, "whole": True})


@pytest.fixture(scope="module")
def mini():
    """Two layers of one narrow head: all kinds of rows at the least cost."""
    return mv.from_arrays(
        W_E=torch.randn(100, 8, generator=seeded(5), dtype=torch.float64),
        layers=[mini_layer(n) for n in range(2)],
        norm="rms",
    )


def mini_layer(seed: int):
    generator = seeded(6, seed)
    shapes = {"W_Q": (1, 8, 4), "W_K": (1, 8, 4), "W_V": (1, 8, 4), "W_O": (1, 4, 8), "W_in": (8, 10), "W_out": (10, 8)}
    return {name: 0.5 * torch.randn(*size, generator=generator).double() for name, size in shapes.items()}


@pytest.fixture(scope="module")
def plain(mini):
    return fit_spins(mini, documents(), **SMALL)


def values(found, quantities=None):
    return {
        (r.layer, r.head, r.quantity, r.metric): r.value
        for r in found.rows
        if quantities is None or r.quantity in quantities
    }


def test_every_rung_and_scalar_is_there_with_a_verdict(fitted):
    names = {row.quantity for row in fitted.rows}
    assert names >= FITS
    assert {row.verdict for row in fitted.rows} <= {v.value for v in Verdict}
    assert {row.layer for row in fitted.rows} == {0, 1}
    for row in fitted.rows:
        assert row.lo <= row.hi
        assert (row.null_name == "") == (row.n_null == 0)
        if row.verdict == Verdict.informative and row.metric == "raw":
            assert any(
                r.decides for r in fitted.rows if (r.quantity, r.layer, r.head) == (row.quantity, row.layer, row.head)
            )
    assert all(abs(value) < 1e-4 for key, value in values(fitted).items() if key[2] == "error of the rebuilt block")


def test_frames_have_their_schemas(fitted):
    assert len(check_schema(fitted.frame(), "spin_models"))
    assert len(check_schema(thermo_frame(fitted), "thermo"))
    assert len(check_schema(spin_weights_frame(fitted), "spin_weights"))
    spectra = check_schema(spin_spectra_frame(fitted), "spin_spectra")
    assert (spectra.groupby(["layer", "metric"], observed=True).size() == 48).all()
    assert len(fitted.frame()) + len(thermo_frame(fitted)) == len(fitted.rows)


def test_whole_model_controls_stand_beside_every_real_number(fitted):
    for name in (c.PERMUTED, c.INITIAL, c.LAYERS):
        assert fitted.row("mean cosine of spins", 0, null=name).n_null == 1
        assert fitted.row(ladder.H3, 1, null=name).n_null == 1


def test_claims_are_judged_from_the_rows(llama, fitted):
    judged = mv.claims(llama, fitted)
    frame = check_schema(judged.frame(), "claims")
    assert len(frame) == 20
    by_name = {one.claim: one for one in judged.claims}
    worst = by_name["QK^T V O = pattern x message, heads add up"]
    assert worst.verdict == Verdict.informative
    assert by_name["attention is one gradient step of (2)"].verdict == Verdict.vacuous
    h3 = by_name["token mixing is by scalar couplings, whole space"]
    forced = tuple(dataclasses.replace(r, verdict="vacuous") if r.quantity == ladder.H3 else r for r in fitted.rows)
    other = {one.claim: one for one in mv.claims(llama, dataclasses.replace(fitted, rows=forced)).claims}
    assert other[h3.claim].verdict == Verdict.vacuous


@pytest.mark.slow
def test_grouping_of_layers_and_whole_controls_change_no_number(mini, plain, monkeypatch):
    monkeypatch.setattr("mechview.spins.layers.fit.AT_ONCE", 1.0)
    alone = fit_spins(mini, documents(), layers=[1], **SMALL)
    assert alone.rows == tuple(row for row in plain.rows if row.layer == 1)
    shadowed = fit_spins(mini, documents(), layers=[1], **{**SMALL, "whole": True})
    assert values(shadowed) == values(alone)
    assert len(shadowed.rows) > len(alone.rows)


@pytest.mark.slow
def test_training_order_does_not_matter(mini):
    docs = documents(3)
    real = [name for name in FITS if not name.startswith(("Hr", "Mr", "M4", "block: ridge"))]
    one = fit_spins(mini, docs[:2], heldout=[docs[2]], layers=[1], **SMALL)
    two = fit_spins(mini, [docs[1], docs[0]], heldout=[docs[2]], layers=[1], **{**SMALL, "train": 6})
    both = fit_spins(mini, docs[:2], heldout=[docs[2]], layers=[1], **{**SMALL, "train": 6})
    assert values(one, real) != values(both, real)
    for key, value in values(two, real).items():
        assert value == pytest.approx(values(both, real)[key], abs=1e-9)


@pytest.mark.slow
def test_permuted_heads_change_no_layer_and_carry_their_rows_along():
    docs = documents(4, 40)
    generator = seeded(1)

    def draw(*shape):
        return 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    layer = {"W_Q": draw(3, 12, 4), "W_K": draw(3, 12, 4), "W_V": draw(3, 12, 4), "W_O": draw(3, 4, 12)}
    layer |= {"W_in": draw(12, 20), "W_out": draw(20, 12)}
    W_E, order = draw(40, 12), [2, 0, 1]
    turned = layer | {name: layer[name][order] for name in ("W_Q", "W_K", "W_V", "W_O")}
    first, second = (
        values(fit_spins(mv.from_arrays(W_E=W_E, layers=[each], norm="rms"), docs, **SMALL)) for each in (layer, turned)
    )
    random = ("interaction energy", "Jacobian")  # estimates with draws of their own
    for (n, head, quantity, metric), value in first.items():
        if not quantity.startswith(random):
            there = head if head is None else order.index(head)
            assert second[n, there, quantity, metric] == pytest.approx(value, rel=1e-6, abs=1e-8), quantity


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_its_finished_layers(mini, plain, tmp_path, monkeypatch):
    monkeypatch.setattr("mechview.spins.layers.fit.AT_ONCE", 1.0)
    told = []

    def stop(line):
        told.append(line)
        if line.startswith("layer 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_spins(mini, documents(), folder=tmp_path, told=stop, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["spin-layer-000.json"]
    told.clear()
    again = fit_spins(mini, documents(), folder=tmp_path, told=told.append, **SMALL)
    assert not any(line.startswith("layer 0") for line in told)
    assert (again.rows, again.weights) == (plain.rows, plain.weights)


@pytest.mark.slow
def test_damaged_and_foreign_layers_are_measured_again(mini, plain, tmp_path, monkeypatch):
    monkeypatch.setattr("mechview.spins.layers.fit.AT_ONCE", 1.0)
    told = []
    asked = dict(layers=[0], folder=tmp_path, told=told.append)
    first = tuple(row for row in plain.rows if row.layer == 0)
    damaged = tmp_path / "spin-layer-000.json"
    for damage in ("[]", "{}", '"text"', "\x00", '{"fingerprint": "f", "rows": [1]}', '{"half": '):
        damaged.write_text(damage, encoding="utf-8")
        assert Shelf(tmp_path, "f").read(0) is None, damage
    assert fit_spins(mini, documents(), **asked, **SMALL).rows == first
    assert told
    told.clear()
    fit_spins(mini, documents(), **asked, **SMALL)
    assert not told
    fit_spins(mini, documents(), seed=1, **asked, **SMALL)
    assert told  # another run's layers are not taken for this one's


def test_a_folder_that_cannot_be_written_is_one_sentence_before_any_work(mini, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    told = []
    with pytest.raises(OutputError, match="cannot be made"):
        fit_spins(mini, documents(), folder=tmp_path / "file" / "below", told=told.append, **SMALL)
    with pytest.raises(OutputError, match="cannot be made"):
        fit_spins(mini, documents(), folder=tmp_path / "file", told=told.append, **SMALL)
    assert not told


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_sequences(llama):
    work = work_of(llama, 0, Plan(draws=2), torch.float32)
    held = []
    for n in range(12):
        work.train(recorded(llama, documents(1, seed=n)[0][:24]))
        held.append(_bytes([*(vars(m) for m in work.sums.values()), work.reaction.blocks, work.baselines.blocks]))
    assert held[8] == held[11] > 0


def _bytes(value) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    return sum(map(_bytes, vars(value).values())) if dataclasses.is_dataclass(value) else 0


@pytest.mark.slow
def test_a_permuted_model_has_no_structure(toy):
    """Every matrix with its entries in random order: nothing structural may be called informative."""
    found = fit_spins(wholes.permuted(toy, seeded(11)), length=32, train=5, test=4, draws=6, whole=False)
    wrong = {
        (r.quantity, r.layer, r.head) for r in found.rows if r.quantity in STRUCTURAL and r.verdict == "informative"
    }
    assert not wrong


def test_whole_model_controls_keep_what_they_say(llama):
    before = {n: p.clone() for n, p in llama.module.named_parameters()}
    permuted, fresh = wholes.permuted(llama, seeded(1)), wholes.initial(llama, seeded(1))
    W, P = llama.weights.attention(0).W_Q, permuted.weights.attention(0).W_Q
    assert not torch.equal(W, P)
    torch.testing.assert_close(W.flatten().sort().values.sum(), P.flatten().sort().values.sum())
    torch.testing.assert_close(llama.weights.attention(0).norm.gain, permuted.weights.attention(0).norm.gain)
    assert float(fresh.weights.mlp(1).W_in.std()) == pytest.approx(0.02, rel=0.1)
    assert torch.equal(fresh.weights.mlp(1).norm.gain, torch.ones(48))
    swapped = wholes.reordered(llama, seeded(1))
    assert torch.equal(swapped.weights.attention(0).W_Q, llama.weights.attention(1).W_Q)
    assert torch.equal(swapped.weights.mlp(1).W_out, llama.weights.mlp(0).W_out)
    for name, value in llama.module.named_parameters():
        assert torch.equal(before[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gptj", "gpt2", "gemma2", "mixtral", "olmo2", "opt"])
def test_other_families_run_or_leave_out_what_they_do_not_have(name):
    found = fit_spins(family(name)[0], documents(), layers=[1], **SMALL)
    names = {row.quantity for row in found.rows}
    assert ladder.READ in names
    assert (ladder.H5 in names) == (name != "olmo2")
    assert (maxwell.MLP in names) == (name != "mixtral")
    reactions = [row for row in found.rows if row.quantity == reaction.REACTION["symmetric"]]
    assert all((row.verdict == Verdict.not_applicable) == (name == "mixtral") for row in reactions)


def test_a_block_without_an_mlp_has_no_mlp_rows():
    eye = torch.eye(6, dtype=torch.float64)[None]
    model = mv.from_arrays(
        W_E=torch.randn(40, 6, generator=seeded(2)).double(),
        layers=[dict(W_Q=eye, W_K=eye, W_V=eye, W_O=eye)],
        norm="rms",
    )
    names = {row.quantity for row in fit_spins(model, documents(4, 40), **SMALL).rows}
    assert ladder.H3 in names
    assert not names & {ladder_mlp.M1, reaction.SHARE, "Mr ridge on n2", ladder_mlp.NMF}


@pytest.mark.parametrize("name", ["bert", "t5", "opt_post"])
def test_models_without_a_causal_stream_are_refused(name):
    with pytest.raises(UnsupportedError, match="spin correspondence is of causal decoders|normalises the stream after"):
        fit_spins(family(name)[0], documents(), **SMALL)


def test_one_document_is_refused(mini):
    with pytest.raises(PromptError, match="at least two documents"):
        fit_spins(mini, documents(1), **SMALL)
    with pytest.raises(PromptError, match="they must differ"):
        fit_spins(mini, documents(1), heldout=documents(1), **SMALL)


def test_too_little_text_is_refused(mini):
    with pytest.raises(PromptError, match="hold 0 sequences of 16 tokens"):
        fit_spins(mini, [[5], [6]], **SMALL)
    with pytest.raises(PromptError, match="sequences of 1 tokens are too short"):
        fit_spins(mini, documents(), **{**SMALL, "length": 1})
    with pytest.raises(PromptError, match="token id 4000 does not exist"):
        fit_spins(mini, [[4000] * 200, *documents(3)], **SMALL)


def test_weights_that_are_nan_are_an_error_in_one_sentence(llama):
    broken = wholes.permuted(llama, seeded(3))
    with torch.no_grad():
        next(p for n, p in broken.module.named_parameters() if "layers.1.self_attn.o_proj" in n)[0, 0] = float("nan")
    with pytest.raises(CheckError, match="NaN or infinity in layer 1"):
        fit_spins(broken, documents(), **SMALL)


def test_tautologies_and_unknown_quantities_are_refused(mini):
    for name in TAUTOLOGIES:
        with pytest.raises(UsageError, match="is refused, for it is no evidence"):
            fit_spins(mini, documents(), quantities=[name], **SMALL)
    with pytest.raises(UsageError, match="no quantity is called H9"):
        fit_spins(mini, documents(), quantities=["H9"], layers=[0], **SMALL)
    with pytest.raises(UsageError, match="at least 2"):
        fit_spins(mini, documents(), **{**SMALL, "draws": 1})
    kept = fit_spins(mini, documents(), quantities=["h3", "curl"], layers=[0], **SMALL)
    assert {row.quantity for row in kept.rows} == {ladder.H3, balance.CURL}


def test_default_text_is_the_bundled_one_and_its_sides_are_different_documents(toy):
    text = sequences(toy, length=64)
    assert (len(text.train), len(text.test), text.documents) == (28, 12, (2, 2))
    assert {len(ids) for ids in (*text.train, *text.test)} == {64}
    assert not set(text.train) & set(text.test)
    bos = toy.tokenizer.bos_token_id
    assert all((ids[0] == bos) == (mv.trace(toy, "a").tokens[0].id == bos) for ids in text.train)


def test_figures_draw_the_frames_and_mark_what_is_informative(fitted):
    from mechview.figures.spin_layers import all_figures

    models, thermo = fitted.frame(), thermo_frame(fitted)
    drawn = all_figures(models, thermo, spin_spectra_frame(fitted))
    assert set(drawn) == {"ladder", "head_spins", "thermo", "curl", "relaxation", "reaction"}
    [entropy, *_] = [line for line in drawn["thermo"].data if line.name == "value"]
    assert list(entropy.y) == [fitted.row("entropy S", layer).value for layer in (0, 1)]
    filled = [colour != "#ffffff" for colour in entropy.marker.color]
    assert filled == [fitted.row("entropy S", layer).verdict == Verdict.informative for layer in (0, 1)]
    z = drawn["head_spins"].data[0]
    one = fitted.row(ladder.READ, 1, 2)
    assert z.z[1][2] == pytest.approx(one.value - one.null)
    assert list(drawn["reaction"].data[-1].y) == fitted.spectra[0]["tw"]
    assert len(fitted.figure().data)
