"""Train `twin`, the LSTM beside `toy`: same tokenizer, same batches in the same order, as many parameters.

    python data/make/twin.py                                  # on the excerpt in data/text
    python data/make/twin.py --text austen.txt kjv.txt        # on the full corpora, as shipped

Two LSTM layers of 112 cells whose hidden state is projected to 64 numbers (Sak, Senior and
Beaufays 2014, "Long short-term memory recurrent neural network architectures"), the width of
toy's stream; embeddings are tied to the read-out, as in toy: 196,352 parameters against
196,928. What is fed cannot explain a difference: toy's generator is replayed (its weights are
drawn first and thrown away), so that every batch of the 4,000 is the one that toy saw; the
optimiser and its schedule are toy's too. The forget gates' biases start at 1 (Jozefowicz et
al. 2015), everything else of the recurrence in PyTorch's way; each row starts from zero state.

One thread and one seed make a run repeatable on one machine. About fifteen minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutput

import toy
from bpe import encode
from corpus import DATA, EXCERPTS, HELD_OUT, batch, sha256, training_text
from scores import HALF, repeated_random, text_loss, token_losses
from twin_card import card

HIDDEN = 112
LAYERS = 2
WIDTH = 64
FORGET_BIAS = 1.0
CHECKPOINTS = (0, 100, 200, 400, 800, 1200, 1600, 2000, 2400, 2800, 3200, 3600, toy.STEPS)


class Twin(nn.Module):
    """Embedding, LSTM with a projected hidden state, read-out by the embedding."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab, max_position_embeddings=toy.CONTEXT)
        self.embedding = nn.Embedding(vocab, WIDTH)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, LAYERS, batch_first=True, proj_size=WIDTH)

    def forward(self, ids: Tensor) -> CausalLMOutput:
        hidden, _ = self.lstm(self.embedding(ids))
        return CausalLMOutput(logits=hidden @ self.embedding.weight.mT)


def fresh_twin(vocab: int, generator: torch.Generator) -> Twin:
    """PyTorch's uniform law for the recurrence, toy's normal law for the embeddings."""
    model = Twin(vocab)
    nn.init.normal_(model.embedding.weight, std=toy.INITIAL_STD, generator=generator)
    bound = 1 / math.sqrt(HIDDEN)
    for name, parameter in model.lstm.named_parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
        if name.startswith("bias_ih"):
            nn.init.constant_(parameter[HIDDEN : 2 * HIDDEN], FORGET_BIAS)
    return model


@torch.no_grad()
def copy_losses(model: nn.Module, seeds: tuple[int, ...], half: int = HALF) -> dict[str, float]:
    """Nats per token in the first and in the second copy of `half` random tokens."""
    vocab = model.config.vocab_size
    rows = torch.cat([repeated_random(vocab, torch.Generator().manual_seed(seed), half) for seed in seeds])
    loss = token_losses(model(rows).logits, rows).mean(0)
    first, second = float(loss[:half].mean()), float(loss[half:].mean())
    return {
        "loss_first_copy": round(first, 4),
        "loss_second_copy": round(second, 4),
        "loss_drop": round(first - second, 4),
    }


def measure(model: nn.Module, held_out: dict[str, Tensor], seeds: tuple[int, ...]) -> dict:
    losses = {name: round(text_loss(model, ids), 4) for name, ids in held_out.items()}
    mean = round(sum(losses.values()) / len(losses), 4)
    return copy_losses(model, seeds) | {"held_out_loss": losses | {"mean": mean}}


def train(model: Twin, ids: Tensor, held_out: dict, steps: int, generator: torch.Generator) -> list[dict]:
    """Train in place; the course of the scores is returned."""
    adam, course = toy.optimiser(model), []
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: toy.learning_rate(step, steps))
    for step in range(steps + 1):
        if step in CHECKPOINTS or step == steps:
            course.append({"step": step} | measure(model, held_out, toy.TRACKING_SEEDS))
            print(json.dumps(course[-1]), file=sys.stderr, flush=True)
        if step == steps:
            break
        mixture = toy.SHORT if step < toy.SHORT_STEPS else toy.LONG
        rows = batch(ids, mixture, model.config.vocab_size, generator)
        loss = token_losses(model(rows).logits, rows).mean()
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        schedule.step()
    return course


def settings(vocab: int) -> dict:
    return {
        "model_type": "lstm",
        "vocab_size": vocab,
        "embedding": WIDTH,
        "hidden": HIDDEN,
        "layers": LAYERS,
        "projection": WIDTH,
        "context": toy.CONTEXT,
        "tied": True,
        "tokenizer": "../toy",
        "licence": "MIT",
        "source": "data/make/twin.py",
    }


def save(model: Twin, report: dict, beside: dict, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.half() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings(model.config.vocab_size), indent=1) + "\n")
    (folder / "scores.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "CARD.md").write_text(card(report, beside), encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--text", type=Path, nargs="+", default=EXCERPTS, help="training text; held-out chapters are taken out"
    )
    parser.add_argument("--out", type=Path, default=DATA / "twin")
    parser.add_argument("--steps", type=int, default=toy.STEPS)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def as_saved(model: Twin) -> Twin:
    """The weights rounded as they are shipped, so that the card's numbers are those of the file."""
    return model.half().float()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(DATA / "toy")
    ids = torch.cat([encode(tokenizer, training_text(path)) for path in args.text])
    held_out = {path.stem.split("-")[0]: encode(tokenizer, path.read_text(encoding="utf-8")) for path in HELD_OUT}
    batches = torch.Generator().manual_seed(args.seed)
    toy.fresh_model(len(tokenizer), batches)  # drawn for its use of the generator: the batches are then toy's
    model = fresh_twin(len(tokenizer), torch.Generator().manual_seed(args.seed))
    course = train(model, ids, held_out, args.steps, batches)
    report = {
        "seed": args.seed,
        "steps": args.steps,
        "training_tokens": len(ids),
        "text": [{"name": path.name, "sha256": sha256(path)} for path in args.text],
        "parameters": sum(p.numel() for p in model.parameters()),
        "final": measure(as_saved(model), held_out, toy.FINAL_SEEDS) | {"seeds": list(toy.FINAL_SEEDS)},
        "course": course,
    }
    beside = json.loads((DATA / "toy" / "scores.json").read_text(encoding="utf-8"))
    save(model, report, beside, args.out)


if __name__ == "__main__":
    main()
