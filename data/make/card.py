"""The model card of `toy`, written from its scores so that the two cannot disagree."""

from __future__ import annotations

TEMPLATE = """# toy

A two-layer language model, small enough to read whole: Llama layout (attention and gated
MLP, rotary positions with base 1,000, RMSNorm), width 64, 4 heads of 16, MLP of 256, context
256, vocabulary 1,024 (byte-level BPE of its own), tied embeddings, {parameters:,} parameters
in float32. It exists to be taken apart: it has a previous-token head and induction heads.

    AutoModelForCausalLM.from_pretrained("data/toy"), AutoTokenizer.from_pretrained("data/toy")

## How it was made

    python data/make/toy.py {arguments}

Without `--text` the same script trains on the excerpt in `data/text`. About ten minutes on
one core; {steps:,} steps of AdamW, {tokens:,} tokens of text of which a part is seen. The first
1,200 steps have 32 rows of 64 tokens, half of them one segment over and over; the others
have 10 rows of 256 tokens, half of them segments that each stand twice. Half of the repeated
rows are of random tokens, half of text. One seed and one thread repeat a run on one machine.

| text | sha256 |
|---|---|
{texts}

Both are in the public domain: the six novels of Jane Austen and the King James Bible. The
held-out chapters in `data/text` (the end of "Sense and Sensibility", the Revelation) were
taken out of the training text and of the tokenizer's text.

**Tokenizer.** `<|bos|>` (id 0) is beginning, end and padding at once, as in GPT-2. The
tokenizer puts it before every text; the model always saw it first. There is no unknown
token (every byte is in the vocabulary) and text comes back exactly from its ids.

## What it scores

On `<|bos|> R R`, R being 50 random tokens, means over seeds {seeds} with 32 rows each.

| measure | value |
|---|---|
{measures}

Previous token is the mean of A[i, i-1] over i >= 2; induction the mean of A[i, i-49] over the
second copy (the token after the earlier occurrence). A uniform head has about 0.04 and 0.014.
Held-out loss is over windows of 256 tokens that begin with `<|bos|>`.

## Course of training

`checkpoints/step-NNNNNN` hold the weights in float16, each with its config and loadable
alone; the tokenizer is the one here. Scores of the float32 weights at that step, one seed:

| step | held-out loss | loss drop | previous token, best | induction, best |
|---|---|---|---|---|
{course}

All scores by head are in `scores.json`.

## Limits

It has read two authors of old English and nothing else: no facts, no code, no other language;
its text is grammatical for a few words at a time. It never saw an end of text, so generation
stops only at `max_new_tokens`. Positions beyond 255 were never seen. Half of the rows of its
training were repeats, so it copies more readily than a model of text alone would.

## Licence

The weights and the tokenizer: MIT, as this repository. The text: public domain.
"""


def best(scores: dict[str, float]) -> tuple[str, float]:
    return max(scores.items(), key=lambda item: item[1])


def heads_row(name: str, scores: dict[str, float], count: int) -> str:
    ranked = sorted(scores.items(), key=lambda item: -item[1])[:count]
    return f"| {name} | {', '.join(f'{label} {value:.3f}' for label, value in ranked)} |"


def measures(final: dict) -> str:
    losses = final["held_out_loss"]
    return "\n".join(
        [
            heads_row("previous-token heads, the two highest", final["previous_token"], 2),
            heads_row("induction heads, the four highest", final["induction"], 4),
            f"| loss, first copy | {final['loss_first_copy']:.3f} nats/token |",
            f"| loss, second copy | {final['loss_second_copy']:.3f} nats/token |",
            f"| drop | {final['loss_drop']:.3f} nats/token |",
            f"| held-out text, mean of the two | {losses['mean']:.3f} nats/token |",
            f"| held-out Austen, Bible | {losses['austen']:.3f}, {losses['kjv']:.3f} nats/token |",
        ]
    )


def course_row(point: dict) -> str:
    heads = [f"{label} {value:.2f}" for label, value in (best(point["previous_token"]), best(point["induction"]))]
    return (
        f"| {point['step']} | {point['held_out_loss']['mean']:.3f} | {point['loss_drop']:.2f} | {' | '.join(heads)} |"
    )


def card(report: dict) -> str:
    """The card in Markdown, from what `toy.py` wrote into `scores.json`."""
    names = " ".join(text["name"] for text in report["text"])
    return TEMPLATE.format(
        parameters=report["parameters"],
        arguments=f"--text {names} --seed {report['seed']}",
        steps=report["steps"],
        tokens=report["training_tokens"],
        texts="\n".join(f"| {text['name']} | `{text['sha256']}` |" for text in report["text"]),
        seeds=", ".join(map(str, report["final"]["seeds"])),
        measures=measures(report["final"]),
        course="\n".join(map(course_row, report["course"])),
    )
