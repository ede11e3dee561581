"""Patching and path patching: identities, references by the original module's own parts, and a known circuit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import families
import mechview as mv
from conftest import family
from mechview.errors import HeadError, PromptError, UsageError
from mechview.residual.effects import effects
from mechview.residual.patching import patch
from mechview.residual.paths import path_patch
from parity.original import sites_of

CLEAN, CORRUPTED = families.tokens(), families.tokens(seed=8)
TARGET = [0, 5, 7, 9]
EVERY = [name for name in families.FAMILIES if name != "falcon_alibi"]


def decoder(name):
    return TARGET if name.startswith("t5") else None


def metric(module: nn.Module, ids, target=None) -> float:
    keywords = {} if target is None else {"decoder_input_ids": torch.tensor([target])}
    with torch.no_grad():
        logits = module(torch.tensor([ids]), **keywords).logits[0, -1].double()
    cap = getattr(module.config, "final_logit_softcapping", None)
    logits = logits if cap is None else cap * torch.atanh(logits / cap)
    return float(logits[7] - logits[9])


@pytest.mark.parametrize("name", EVERY)
def test_the_whole_clean_stream_gives_the_clean_answer_at_every_point(name):
    model, module = family(name, "float64")
    found = patch(model, CLEAN, CORRUPTED, 7, 9, "stream", "all", decoder=decoder(name))
    assert found.clean == pytest.approx(metric(module, CLEAN, decoder(name)), abs=1e-6)
    assert found.corrupted == pytest.approx(metric(module, CORRUPTED, decoder(name)), abs=1e-6)
    assert found.error < 1e-4
    complete = [row for row in found.rows if name[:2] != "t5" or row.stack == "encoder" or row.component == "final"]
    assert len(complete) >= 3
    for row in complete:
        assert row.normalised == pytest.approx(1.0, abs=1e-3), row.component
    points = {row.component.rpartition(".")[2] for row in found.rows}
    assert points == ({"pre", "final"} if model.shape.placement == "parallel" else {"pre", "mid", "final"})


def test_the_input_stream_gives_the_clean_answer_to_the_bit():
    found = patch(family("llama")[0], CLEAN, CORRUPTED, 7, 9, "stream", "all", batch_size=1)
    first = found.row("L0.pre")
    assert (first.value, first.normalised) == (found.clean, 1.0)
    assert found.error == 0.0


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bert", "t5"])
@pytest.mark.parametrize("what", ["heads", "attention", "mlp", "stream"])
def test_patching_a_token_that_is_the_same_in_both_changes_nothing(name, what):
    """Before the first difference a causal model has the same values, so patching them is patching nothing."""
    model, _ = family(name)
    corrupted = CLEAN[:5] + CORRUPTED[5:]
    if name in ("bert", "t5"):  # every position sees every other: only the input itself is the same
        found = patch(model, CLEAN, corrupted, 7, 9, "stream", [0, 3], decoder=decoder(name))
        rows = [row for row in found.rows if row.component == ("E.L0.pre" if name == "t5" else "L0.pre")]
    else:
        rows = patch(model, CLEAN, corrupted, 7, 9, what, [0, 3, 4]).rows
    assert rows
    assert max(abs(row.change) for row in rows) < 1e-5
    assert {row.patched_position for row in rows} <= {0, 3, 4}


@pytest.mark.parametrize("name", ["gpt2", "olmo2", "falcon", "t5"])
def test_a_patched_head_is_the_original_with_the_clean_z_put_in(name):
    model, module = family(name)
    stack, width = "cross" if name == "t5" else "decoder", model.shape.d_head
    found = patch(model, CLEAN, CORRUPTED, 7, 9, decoder=decoder(name))
    sites = sites_of(name)[stack]
    projection = module.get_submodule(f"{sites.block.format(1)}.{sites.projection}")
    clean = mv.trace(model, CLEAN, decoder=decoder(name)).attention(1, stack).z
    for head in (0, 3):

        def hook(_, args, head=head):
            z = args[0].clone()
            z[0, :, head * width : (head + 1) * width] = clean[:, head]
            return (z,)

        handle = projection.register_forward_pre_hook(hook)
        value = metric(module, CORRUPTED, decoder(name))
        handle.remove()
        row = found.row(f"{'X.' if name == 't5' else ''}L1H{head}")
        assert row.value == pytest.approx(value, abs=2e-5)
        assert row.change == pytest.approx(value - found.corrupted, abs=2e-5)
        assert row.normalised == pytest.approx(row.change / (found.clean - found.corrupted), rel=1e-9)
        assert abs(row.change) > 1e-5


def test_exchanging_the_prompts_is_resampling():
    """Noising a head (patching corrupted values into the clean run) is its resample ablation."""
    model, _ = family("gpt2")
    noised = patch(model, CORRUPTED, CLEAN, 7, 9)
    resampled = effects(model, CLEAN, 7, 9, method="resample", prompts=[CORRUPTED])
    for row in noised.rows:
        assert -row.change == pytest.approx(resampled.row(row.component).total, abs=1e-5)


def test_positions_together_each_or_chosen():
    model, _ = family("gpt2")
    counts = {"all": 1, "each": len(CLEAN), (2, -1): 2}
    for where, count in counts.items():
        chosen = list(where) if isinstance(where, tuple) else where
        found = patch(model, CLEAN, CORRUPTED, 7, 9, "attention", chosen)
        assert len(found.rows) == 2 * count
    assert [row.patched_position for row in found.rows] == [2, 11, 2, 11]
    last = patch(model, CLEAN, CORRUPTED, 7, 9, "stream").row("final", 11)
    assert last.normalised == pytest.approx(1.0, abs=1e-5)
    assert patch(model, CLEAN, CORRUPTED, 7, 9, "stream").row("final", 3).change == pytest.approx(0.0, abs=1e-6)


def test_records_have_the_columns_of_the_table():
    found = patch(family("gpt2")[0], CLEAN, CORRUPTED, 7, 9, "mlp", position=4)
    assert list(found.records()[0]) == [
        "component", "stack", "layer", "head", "patched_position", "value", "change", "normalised", "receiver",
        "what", "metric", "position", "clean", "corrupted",
    ]  # fmt: skip
    assert [(r["component"], r["head"], r["position"], r["receiver"]) for r in found.records()] == [
        ("L0.mlp", None, 4, ""), ("L1.mlp", None, 4, "")
    ]  # fmt: skip
    assert "denoising" in found.direction


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"corrupted": [3, 4]}, PromptError, "have 12 and 2 tokens"),
        ({"what": "neurons"}, UsageError, "cannot be patched"),
        ({"positions": "some"}, UsageError, "neither all nor each"),
        ({"positions": [12]}, UsageError, "position 12 does not exist"),
        ({"position": -13}, UsageError, "position -13 does not exist"),
    ],
)
def test_what_cannot_be_patched_is_refused(options, error, sentence):
    given = dict(clean=CLEAN, corrupted=CORRUPTED, target=7, against=9) | options
    with pytest.raises(error, match=sentence):
        patch(family("gpt2")[0], **given)


@dataclass(frozen=True)
class Parts:
    """Where the original keeps what a path passes: formats take the layer."""

    block: str
    projection: str
    reads: str | None
    inputs: dict[str, str]
    post: str | None = None


LLAMA = Parts("model.layers.{}", "self_attn.o_proj", "input_layernorm", {s: f"self_attn.{s}_proj" for s in "qkv"})
PARTS = {
    "gpt2": Parts("transformer.h.{}", "attn.c_proj", "ln_1", dict.fromkeys("qkv", "attn.c_attn")),
    "gpt_neox": Parts("gpt_neox.layers.{}", "attention.dense", "input_layernorm", dict.fromkeys("qkv", "attention.query_key_value")),
    "llama_bias_wide": LLAMA,
    "llama_dynamic": LLAMA,
    "granite": LLAMA,
    "gpt_oss": LLAMA,
    "qwen3": LLAMA,
    "gemma2": Parts(LLAMA.block, LLAMA.projection, LLAMA.reads, LLAMA.inputs, "post_attention_layernorm"),
    "olmo2": Parts(LLAMA.block, LLAMA.projection, None, LLAMA.inputs, "post_attention_layernorm"),
    "bert": Parts(
        "bert.encoder.layer.{}", "attention.output.dense", None,
        {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"},
    ),
}  # fmt: skip


class Watched:
    """The original module, its parts by name, and what they heard in its last pass."""

    def __init__(self, name: str):
        self.parts, self.module = PARTS[name], family(name, "float64")[1]
        self.heads = self.module.config.num_attention_heads

    def part(self, layer: int, path: str | None = None) -> nn.Module:
        block = self.parts.block.format(layer)
        return self.module.get_submodule(f"{block}.{path}" if path else block)

    def run(self, ids, listen=(), put=()):
        """The metric; `listen` modules are heard, `put` is (module, "in" | "out", function of the value)."""
        heard, handles = {}, []
        for part, side, change in put:
            if side == "in":
                handles.append(part.register_forward_pre_hook(lambda _, args, f=change: (f(args[0]), *args[1:])))
            else:
                handles.append(part.register_forward_hook(lambda _, __, out, f=change: f(out)))
        for part in listen:

            def hook(module, args, kwargs, out):
                value = args[0] if args else kwargs["hidden_states"]
                heard[module] = value.clone(), (out[0] if isinstance(out, tuple) else out).clone()

            handles.append(part.register_forward_hook(hook, with_kwargs=True))
        try:
            return metric(self.module, ids), heard
        finally:
            for handle in handles:
                handle.remove()


def by_hand(name: str, sender: int, receiver: int, side: str) -> tuple[float, float]:
    """Metric of the clean run with the path L0H`sender` -> L1H`receiver`.side corrupted, and of the clean run."""
    watched, parts = Watched(name), PARTS[name]
    out0, out1, block1 = watched.part(0, parts.projection), watched.part(1, parts.projection), watched.part(1)
    bert = name == "bert"
    mlp = [watched.part(0, "output.dense")] if bert else []
    clean, heard = watched.run(CLEAN, [out0, out1, block1, watched.part(0), *mlp])
    _, other = watched.run(CORRUPTED, [out0])
    width = heard[out0][0].shape[-1] // watched.heads
    z = heard[out0][0].clone()
    z[..., sender * width : (sender + 1) * width] = other[out0][0][..., sender * width : (sender + 1) * width]
    with torch.no_grad():
        stream = sent(watched, heard, out0(z), bert, mlp)
        reads = stream if parts.reads is None else watched.part(1, parts.reads)(stream)
        replaced = watched.part(1, parts.inputs[side])(reads)
    columns = fused_columns(name, side, watched.heads, width, replaced.shape[-1])

    def swap(value):
        value = value.clone()
        value[..., columns] = replaced[..., columns]
        return value

    _, after = watched.run(CLEAN, [out1], [(watched.part(1, parts.inputs[side]), "out", swap)])
    own = slice(receiver * width, (receiver + 1) * width)

    def put(value):
        value = value.clone()
        value[..., own] = after[out1][0][..., own]
        return value

    changed, _ = watched.run(CLEAN, [], [(out1, "in", put)])
    return changed, clean


def sent(watched, heard, written, bert, mlp):
    """The stream before layer 1 when the first projection wrote `written` and all else was as it was."""
    parts, out0 = watched.parts, watched.part(0, watched.parts.projection)
    if bert:
        middle = watched.part(0, "attention.output.LayerNorm")(written + heard[watched.part(0)][0])
        return watched.part(0, "output.LayerNorm")(middle + heard[mlp[0]][1])
    old = heard[out0][1]
    if parts.post is not None:
        written, old = (watched.part(0, parts.post)(value) for value in (written, old))
    multiplier = getattr(watched.module.config, "residual_multiplier", 1.0)
    return heard[watched.part(1)][0] + (written - old) * multiplier


def fused_columns(name, side, heads, width, total):
    """Columns of the input projection's output that are this side's: all, unless the three are fused."""
    columns = torch.arange(total)
    number = "qkv".index(side)
    if name == "gpt2":
        return columns[number * heads * width : (number + 1) * heads * width]
    if name == "gpt_neox":
        return columns[(columns // width) % 3 == number]
    return columns


@pytest.mark.parametrize("side", ["q", "k", "v"])
@pytest.mark.parametrize("name", list(PARTS))
def test_a_patched_path_is_the_one_computed_by_hand(name, side, float64_throughout):
    model, _ = family(name, "float64")
    for sender, receiver in ((1, 2), (3, 0)):
        found = path_patch(model, CLEAN, CORRUPTED, 7, 9, sender=(0, sender), receiver=(1, receiver, side))
        changed, clean = by_hand(name, sender, receiver, side)
        row = found.rows[0]
        size = abs(changed - clean)
        assert size > 1e-7
        assert found.clean == pytest.approx(clean, abs=1e-9)
        assert row.change == pytest.approx(changed - clean, rel=1e-4, abs=1e-9)
        assert found.error < 1e-6


@pytest.mark.parametrize("side", ["q", "k", "v"])
def test_paths_within_and_between_the_stacks_of_an_encoder_decoder(side, float64_throughout):
    """Against the original's own projections: encoder to cross keys and values, decoder to cross queries."""
    model, module = family("t5", "float64")
    source, out = ("decoder", "L1H2") if side == "q" else ("encoder", "E.L0H2")
    found = path_patch(model, CLEAN, CORRUPTED, 7, 9, sender=out, receiver=("X.L1H1", side), decoder=TARGET)
    layer = 1 if side == "q" else 0
    attention = f"{source}.block.{layer}.layer.0.SelfAttention"
    runs = [mv.trace(model, ids, decoder=TARGET) for ids in (CLEAN, CORRUPTED)]
    z = runs[0].attention(layer, source).z.clone()
    delta = (runs[1].attention(layer, source).z - z)[:, 2] @ module.get_submodule(attention).o.weight[:, 20:30].T
    cross = module.decoder.block[1].layer[1]
    with torch.no_grad():
        if side == "q":
            replaced = cross.EncDecAttention.q(cross.layer_norm(runs[0].stream(1, "pre", "cross") + delta))
        else:
            stream = runs[0].stream(1, "post", "encoder") + delta
            replaced = getattr(cross.EncDecAttention, side)(module.encoder.final_layer_norm(stream))
    heard = []
    part, output = getattr(cross.EncDecAttention, side), cross.EncDecAttention.o
    handles = [
        part.register_forward_hook(lambda *_: replaced[None]),
        output.register_forward_pre_hook(lambda _, args: heard.append(args[0].clone())),
    ]
    everywhere = metric(module, CLEAN, TARGET)
    for handle in handles:
        handle.remove()

    def put(_, args):
        value = args[0].clone()
        value[..., 10:20] = heard[0][..., 10:20]
        return (value,)

    handle = output.register_forward_pre_hook(put)
    changed = metric(module, CLEAN, TARGET)
    handle.remove()
    assert everywhere != changed  # there, every head of the layer read the changed input
    assert found.rows[0].change == pytest.approx(changed - found.clean, abs=1e-9)
    assert abs(found.rows[0].change) > 1e-7


def attention_only_arrays(seed=0):
    """Two layers without norms or MLPs; the second looks evenly, whatever it reads: everything after is linear."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    layers = [
        dict(W_Q=draw(3, 12, 4) * (1 - n), W_K=draw(3, 12, 4), W_V=draw(3, 12, 4), W_O=draw(3, 4, 12)) for n in (0, 1)
    ]
    return dict(W_E=draw(20, 12), layers=layers)


def test_in_a_linear_model_the_disjoint_paths_of_a_head_sum_to_its_total_effect():
    model, clean, corrupted = mv.from_arrays(**attention_only_arrays()), [3, 4, 5, 6, 7], [9, 8, 5, 2, 7]
    whole = effects(model, clean, 11, 13, method="resample", prompts=[corrupted])
    for sender in range(3):
        paths = [
            path_patch(model, clean, corrupted, 11, 13, sender=(0, sender), receiver=(1, head, "v")).rows[0].change
            for head in range(3)
        ]
        row = whole.row(f"L0H{sender}")
        assert row.direct - sum(paths) == pytest.approx(row.total, abs=1e-12)
        assert min(abs(change) for change in paths) > 1e-4
        for side in ("q", "k"):  # an even pattern does not depend on what is asked or offered
            found = path_patch(model, clean, corrupted, 11, 13, sender=(0, sender), receiver=(1, 0, side)).rows[0]
            assert found.change == pytest.approx(0.0, abs=1e-12)


def test_a_sender_that_writes_the_same_in_both_runs_changes_nothing_to_the_bit():
    arrays = attention_only_arrays()
    arrays["layers"][0]["W_V"][1] = 0
    arrays["layers"][1]["W_Q"] = arrays["layers"][1]["W_K"]
    model = mv.from_arrays(**arrays)
    for side in ("q", "k", "v"):
        rows = path_patch(model, [3, 4, 5, 6, 7], [9, 8, 5, 2, 7], 11, 13, receiver=(1, 2, side), batch_size=1).rows
        assert [row.change == 0.0 for row in rows] == [False, True, False]


def test_query_heads_of_a_group_keep_their_own_use_of_a_key():
    """Patching the key of one query head leaves the others of its group as they were: receivers differ."""
    model, _ = family("llama")
    changes = [
        path_patch(model, CLEAN, CORRUPTED, 7, 9, sender=(0, 4), receiver=(1, head, "k")).rows[0].change
        for head in (0, 1, 2)
    ]
    assert model.weights.attention(1).kv_head.tolist()[:3] == [0, 0, 0]
    assert len({round(change, 5) for change in changes}) == 3


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"receiver": (1, 0, "o")}, UsageError, "not an input of a head"),
        ({"receiver": (1, 9, "q")}, HeadError, "component L1H9 does not exist"),
        ({"receiver": ("L1.mlp", "q")}, HeadError, "is not a head"),
        ({"receiver": (0, 1, "q")}, UsageError, "no head comes before the q input of L0H1"),
        ({"receiver": (1, 0, "q"), "sender": (1, 1)}, UsageError, "no direct path from L1H1 to the q input of L1H0"),
        ({"receiver": (1, 0, "q"), "corrupted": [3]}, PromptError, "have 12 and 1 tokens"),
    ],
)
def test_paths_that_do_not_exist_are_refused(options, error, sentence):
    given = dict(clean=CLEAN, corrupted=CORRUPTED, target=7, against=9) | options
    with pytest.raises(error, match=sentence):
        path_patch(family("gpt2")[0], **given)


def test_encoder_and_decoder_have_no_direct_path_but_by_cross_attention():
    model, _ = family("t5")
    given = dict(decoder=TARGET, target=7, against=9)
    with pytest.raises(UsageError, match=r"no direct path from E\.L0H0 to the q input of L1H0"):
        path_patch(model, CLEAN, CORRUPTED, sender="E.L0H0", receiver=("L1H0", "q"), **given)
    found = path_patch(model, CLEAN, CORRUPTED, receiver=("X.L0H0", "v"), **given)
    assert {row.stack for row in found.rows} == {"encoder"}
    found = path_patch(model, CLEAN, CORRUPTED, receiver=("X.L1H0", "q"), **given)
    assert [row.component for row in found.rows if row.layer == 1] == [f"L1H{n}" for n in range(4)]


def repeated(seed: int) -> tuple[list[int], list[int], int]:
    """Random tokens said again up to the middle; the same with another first half; and the token that follows."""
    generator = torch.Generator().manual_seed(seed)
    first, other = torch.randint(300, 1000, (2, 20), generator=generator).tolist()
    return first + first[:10], other + first[:10], first[10]


def test_induction_in_the_toy_runs_from_the_previous_token_head_to_the_keys(toy):
    """Heads are found by attention alone; the K path from one to the other is what the receiver loses by.

    It is not all: the first MLP carries the previous token to the keys as well, and three heads do the copying.
    """
    clean, corrupted, following = repeated(0)
    seen = mv.trace(toy, clean)
    previous = [pattern.diagonal(-1, 1, 2).mean(-1) for pattern in seen.patterns]
    induction = [pattern[:, torch.arange(20, 30), torch.arange(1, 11)].mean(-1) for pattern in seen.patterns]
    sender, receiver = int(previous[0].argmax()), int(induction[1].argmax())
    assert previous[0][sender] > 0.8
    assert induction[1][receiver] > 0.8
    ablated = effects(toy, clean, following, components=[(0, sender)])
    assert ablated.rows[0].total > 0.8 * ablated.clean > 5
    lost: dict[str, torch.Tensor] = {}
    for side in ("q", "k", "v"):
        changes = []
        for seed in range(3):
            clean, corrupted, following = repeated(seed)
            found = path_patch(toy, clean, corrupted, following, receiver=(1, receiver, side))
            changes.append([-row.change for row in found.rows])
        lost[side] = torch.tensor(changes).mean(0)
    others = [head for head in range(toy.shape.n_heads) if head != sender]
    assert lost["k"][sender] > 0.3
    assert lost["k"][sender] > 20 * lost["k"][others].abs().max()
    assert lost["k"][sender] > 2 * torch.cat([lost["q"], lost["v"]]).abs().max()
