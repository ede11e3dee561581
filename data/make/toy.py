"""Train the bundled model `toy`: two attention-and-MLP layers in the Llama layout.

    python data/make/toy.py                                  # on the excerpt in data/text
    python data/make/toy.py --text austen.txt kjv.txt        # on the full corpora, as shipped

The model reads text and, in half of its rows, segments that repeat. To foretell a repeat it
must form the induction circuit: a head of layer 0 that marks each token with the one before,
and heads of layer 1 that find the earlier place and send what followed. Three choices make
it form within a thousand steps: tied embeddings (one map then copies every token), rows
that are short at first (attention spread over 64 places has a four times stronger gradient
than over 256), and embeddings that start with a shared mean (a head can then look one place
back whatever the token). The checkpoints, closest around the change, show the circuit form.

One thread and one seed make a run repeatable on one machine; other processors round
differently and end with other weights of the same quality. Ten minutes on one core.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bpe import encode, train_tokenizer
from card import card
from corpus import BOS_ID, DATA, EXCERPTS, HELD_OUT, Mixture, batch, sha256, training_text
from scores import repeat_scores, text_loss, token_losses

CONTEXT = 256
LEARNING_RATE = 3e-3
WARM_UP = 50
INITIAL_STD = 0.05
STEPS = 4000
SHORT = Mixture(rows=32, length=64, repeated=0.5, copies=8, shortest=8, longest=31)
LONG = Mixture(rows=10, length=CONTEXT, repeated=0.5, copies=2, shortest=16, longest=100)
SHORT_STEPS = 1200
CHECKPOINTS = (0, 100, 200, 400, 800, 900, 1000, 1200, 2000, STEPS)
TRACKING_SEEDS = (100,)
FINAL_SEEDS = (0, 1, 2, 3, 4)


def config(vocab: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=BOS_ID,
        pad_token_id=BOS_ID,
    )


def fresh_model(vocab: int, generator: torch.Generator) -> LlamaForCausalLM:
    """Matrices drawn from a normal law, embeddings with a shared mean as large; norm gains 1."""
    model = LlamaForCausalLM(config(vocab))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=INITIAL_STD, generator=generator)
    with torch.no_grad():
        model.model.embed_tokens.weight += INITIAL_STD * torch.randn(model.config.hidden_size, generator=generator)
    return model


def learning_rate(step: int, steps: int) -> float:
    """Share of the highest rate: linear warm-up, then half a cosine down to a fiftieth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.02 + 0.49 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def optimiser(model: LlamaForCausalLM) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    gains = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98))


def measure(model: LlamaForCausalLM, held_out: dict[str, torch.Tensor], seeds: tuple[int, ...]) -> dict:
    losses = {name: round(text_loss(model, ids), 4) for name, ids in held_out.items()}
    mean = round(sum(losses.values()) / len(losses), 4)
    return repeat_scores(model, seeds) | {"held_out_loss": losses | {"mean": mean}}


def save_checkpoint(model: LlamaForCausalLM, folder: Path) -> None:
    """Half-precision weights and their config; the tokenizer stays in the model's folder."""
    copy.deepcopy(model).half().save_pretrained(folder)
    (folder / "generation_config.json").unlink()


def train(
    model: LlamaForCausalLM, ids: torch.Tensor, held_out: dict, args: argparse.Namespace, generator: torch.Generator
) -> list[dict]:
    """Train in place, writing the checkpoints; the course of the scores is returned."""
    adam, course = optimiser(model), []
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: learning_rate(step, args.steps))
    for step in range(args.steps + 1):
        if step in CHECKPOINTS or step == args.steps:
            save_checkpoint(model, args.out / "checkpoints" / f"step-{step:06d}")
            course.append({"step": step} | measure(model, held_out, TRACKING_SEEDS))
            print(headline(course[-1]), file=sys.stderr, flush=True)
        if step == args.steps:
            break
        rows = batch(ids, SHORT if step < SHORT_STEPS else LONG, model.config.vocab_size, generator)
        loss = token_losses(model(rows).logits, rows).mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        schedule.step()
    return course


def headline(scores: dict) -> str:
    heads = {name: sorted(scores[name].values(), reverse=True)[:3] for name in ("previous_token", "induction")}
    return f"step {scores['step']:5d}  held-out {scores['held_out_loss']}  drop {scores['loss_drop']}  {heads}"


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, report: dict, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "scores.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "CARD.md").write_text(card(report), encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--text", type=Path, nargs="+", default=EXCERPTS, help="training text; held-out chapters are taken out"
    )
    parser.add_argument("--out", type=Path, default=DATA / "toy")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(args.seed)
    texts = [training_text(path) for path in args.text]
    tokenizer = train_tokenizer(texts, CONTEXT)
    ids = torch.cat([encode(tokenizer, text) for text in texts])
    held_out = {path.stem.split("-")[0]: encode(tokenizer, path.read_text(encoding="utf-8")) for path in HELD_OUT}
    model = fresh_model(len(tokenizer), generator)
    course = train(model, ids, held_out, args, generator)
    report = {
        "seed": args.seed,
        "steps": args.steps,
        "training_tokens": len(ids),
        "text": [{"name": path.name, "sha256": sha256(path)} for path in args.text],
        "parameters": sum(p.numel() for p in model.parameters()),
        "final": measure(model, held_out, FINAL_SEEDS) | {"seeds": list(FINAL_SEEDS)},
        "course": course,
    }
    save(model, tokenizer, report, args.out)


if __name__ == "__main__":
    main()
