"""Loaders: the bundled twin, ml5's charRNN, textgenrnn in both of Keras's layouts, and folders that lie."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import mechview as mv
from mechview.errors import ModelError, PromptError
from mechview.models.bundled import bundled_lstms, bundled_models, data_folder
from mechview.recurrent.cells import encode, token_losses
from mechview.recurrent.keras import keras_layer, layout_of, textgenrnn
from mechview.recurrent.load import is_lstm, load_lstm

# Of the kind charRNN was trained on: sentences of Darwin's "Origin of Species"
DARWIN = (
    "No one supposes that all the individuals of the same species are cast in the same actual mould.",
    "The affinities of all the beings of the same class have sometimes been represented by a great tree.",
    "Natural selection acts solely through the preservation of variations in some way advantageous, which consequently endure.",
    "I have called this principle, by which each slight variation, if useful, is preserved, by the term of Natural Selection.",
    "We see nothing of these slow changes in progress, until the hand of time has marked the long lapse of ages.",
    "The natural selection of the species is the result of the struggle for existence.",
    "Owing to this struggle for life, any variation, however slight, will tend to the preservation of that individual.",
    "The species of the same genus are the descendants of a common parent.",
)
TITLES = ("What is the best way to learn to play the guitar?", "My girlfriend and I just got our first dog")
KNOWN = 1.82

needs_textgenrnn = pytest.mark.skipif(
    importlib.util.find_spec("textgenrnn") is None or importlib.util.find_spec("h5py") is None,
    reason="textgenrnn (installed by the Makefile) or h5py is not here",
)


def bits(model, text):
    ids = torch.tensor([encode(model, text) if model.window is None else model.tokenizer(text)["input_ids"]])
    return float(token_losses(model, ids).mean()) / math.log(2)


def test_charrnn_reaches_its_known_bits_per_character(shared):
    """Known: 1.82 on a sentence of its kind; which one is not recorded, so it must lie among those of eight such."""
    model = load_lstm(shared / "models" / "charrnn-darwin")
    values = torch.tensor([bits(model, text) for text in DARWIN])
    assert values.min() < KNOWN < values.max()
    assert abs(float(values.mean()) - KNOWN) < 2 * float(values.std())
    assert values.max() < 2.4  # a uniform guess over its 100 characters takes 6.6


def test_charrnn_gives_the_bits_that_pytorchs_own_lstm_gives(shared):
    folder = shared / "models" / "charrnn-darwin"
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    state, model = load_file(folder / "model.safetensors"), load_lstm(folder)
    module = torch.nn.LSTM(128, 128, 2, batch_first=True)
    module.load_state_dict({k.removeprefix("lstm."): v for k, v in state.items() if k.startswith("lstm.")})
    for text in DARWIN:
        ids = torch.tensor([[vocabulary[letter] for letter in text]])
        with torch.no_grad():
            logits = module(state["embed.weight"][ids])[0] @ state["out.weight"].mT + state["out.bias"]
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
        assert bits(model, text) == pytest.approx(float(loss) / math.log(2), abs=1e-5)


@pytest.mark.parametrize("order", [order for order in itertools.permutations(range(4)) if order != (0, 1, 2, 3)])
def test_charrnn_in_any_other_order_of_gates_is_far_off(shared, order):
    """What a wrong layout costs: at least two bits a character, on every sentence."""
    right = load_lstm(shared / "models" / "charrnn-darwin")
    wrong = _relaid(right, lambda one: (one.W_x[list(order)], one.W_h[list(order)], one.b[list(order)]))
    for text in DARWIN[:3]:
        assert bits(wrong, text) > bits(right, text) + 2


def test_charrnn_in_cudnns_layout_is_far_off(shared):
    """Recurrent blocks transposed, input blocks laid out column by column: what CuDNN's order does to the same numbers."""
    right = load_lstm(shared / "models" / "charrnn-darwin")
    turned = _relaid(right, lambda one: (one.W_x, one.W_h.mT, one.b))
    laid = _relaid(right, lambda one: (one.W_x.mT.reshape(one.W_x.shape), one.W_h, one.b))
    for text in DARWIN[:3]:
        assert min(bits(turned, text), bits(laid, text)) > bits(right, text) + 2


def _relaid(model, parts):
    layers = tuple((type(one)(*(part.contiguous() for part in parts(one))),) for (one,) in model.layers)
    return dataclasses.replace(model, layers=layers)


@needs_textgenrnn
@pytest.mark.parametrize("title", TITLES)
def test_textgenrnn_reads_titles_in_the_layout_its_bias_shows_and_in_no_other(title):
    right, wrong = textgenrnn(), textgenrnn("keras")
    assert 0.9 < bits(right, title) < 1.3  # known: 0.96 to 1.23 on such sentences
    assert 50 < bits(wrong, title) < 80  # known: 59 to 69
    assert is_lstm("package:textgenrnn")


@needs_textgenrnn
def test_textgenrnn_reads_one_window_left_padded():
    model = load_lstm("package:textgenrnn")
    trace = mv.lstm_trace(model, "My girlfriend and I just got our")
    assert len(trace.tokens) == 40
    assert trace.tokens[0].text == "<pad>"
    assert model.tokenizer.convert_ids_to_tokens(int(trace.logits[-1].argmax())) == " "
    with pytest.raises(PromptError, match="reads a window of 40"):
        mv.lstm_trace(model, "a" * 60)


def test_the_layout_is_what_the_length_of_the_bias_says():
    assert layout_of(torch.zeros(12), 3) == "keras"
    assert layout_of(torch.zeros(24), 3) == "cudnn"
    with pytest.raises(ModelError, match="4 or 8 a unit"):
        layout_of(torch.zeros(13), 3)


def test_cudnn_numbers_are_put_in_order():
    """Keras's own conversion, written out: each input block is read in Fortran order from its transpose."""
    import numpy as np

    rng = np.random.default_rng(0)
    kernel, recurrent, bias = rng.normal(size=(5, 12)), rng.normal(size=(3, 12)), rng.normal(size=24)
    blocks = [block.T.reshape(block.shape, order="F") for block in np.hsplit(kernel, 4)]
    turned = [block.T for block in np.hsplit(recurrent, 4)]
    parts = {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}
    layer = keras_layer({"rnn": {name: torch.from_numpy(value) for name, value in parts.items()}}, "rnn")
    np.testing.assert_array_equal(layer.W_x.numpy(), np.stack(blocks))
    np.testing.assert_array_equal(layer.W_h.numpy(), np.stack(turned))
    np.testing.assert_allclose(layer.b.numpy().ravel(), bias[:12] + bias[12:])


def test_the_twin_is_bundled_beside_toy_and_is_no_transformer():
    assert bundled_lstms() == ["twin"]
    assert bundled_models() == ["toy"]
    twin, toy = load_lstm("twin"), json.loads((data_folder() / "toy" / "scores.json").read_text())
    assert twin.W_U is not None
    count = sum(v.numel() for layer in twin.layers for one in layer for v in (one.W_x, one.W_h, one.W_r))
    count += 2 * sum(one.b.numel() for layer in twin.layers for one in layer) + twin.W_E.numel()
    assert count == json.loads((data_folder() / "twin" / "scores.json").read_text())["parameters"]
    assert abs(count - toy["parameters"]) / toy["parameters"] < 0.01


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_the_twins_scores_are_what_it_scores():
    """Measured again by PyTorch's own LSTM, from the definitions on the card."""
    scores = json.loads((data_folder() / "twin" / "scores.json").read_text())
    state = {k: v.float() for k, v in load_file(data_folder() / "twin" / "model.safetensors").items()}
    module = torch.nn.LSTM(64, 112, 2, batch_first=True, proj_size=64)
    module.load_state_dict({k.removeprefix("lstm."): v for k, v in state.items() if k.startswith("lstm.")})
    segment = torch.randint(1, 1024, (32, 50), generator=torch.Generator().manual_seed(7))
    ids = torch.nn.functional.pad(torch.cat([segment, segment], 1), (1, 0))
    with torch.no_grad():
        logits = module(state["embedding.weight"][ids])[0] @ state["embedding.weight"].mT
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    drop = float(losses[:, :50].mean() - losses[:, 50:].mean())
    assert drop == pytest.approx(scores["final"]["loss_drop"], abs=0.05)
    ours = token_losses(load_lstm("twin").to(torch.float32), ids)
    torch.testing.assert_close(ours, losses, rtol=1e-3, atol=1e-3)


@pytest.fixture
def folder(tmp_path):
    module = torch.nn.LSTM(3, 4)
    state = {f"lstm.{k}": v for k, v in module.state_dict().items()} | {"embed.weight": torch.randn(5, 3)}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "lstm", "hidden": 4, "layers": 1}))
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "c": 2}))
    return tmp_path


def test_a_folder_is_read_and_its_lies_are_found(folder):
    assert is_lstm(str(folder))
    model = load_lstm(folder)
    assert encode(model, "abc") == [0, 1, 2]
    with pytest.raises(PromptError, match="'z' is not among"):
        encode(model, "z")
    with pytest.raises(PromptError, match="the prompt is empty"):
        encode(model, "")
    with pytest.raises(PromptError, match="token id 9 does not exist"):
        encode(model, [9])
    (folder / "config.json").write_text(json.dumps({"model_type": "lstm", "hidden": 7}))
    with pytest.raises(ModelError, match="the configuration says hidden = 7; the tensors have 4"):
        load_lstm(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not JSON"):
        load_lstm(folder)
    (folder / "config.json").write_text("{}")
    (folder / "vocab.json").write_text("[1]")
    with pytest.raises(ModelError, match="not a table of characters"):
        load_lstm(folder)


@pytest.mark.parametrize("spec", ["", "no-such-lstm", "toy", "package:nothing"])
def test_what_is_no_lstm_here_is_a_sentence(spec):
    with pytest.raises(ModelError, match=r"is not an LSTM here|there is no LSTM|holds no|\.safetensors"):
        load_lstm(spec) if spec else load_lstm(data_folder() / "text")


def test_opening_the_twin_as_a_transformer_names_the_way():
    with pytest.raises(mv.MechviewError, match="load_lstm"):
        mv.load("twin")
