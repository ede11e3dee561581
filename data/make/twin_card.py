"""The model card of `twin`, written from its scores and toy's so that they cannot disagree."""

from __future__ import annotations

TEMPLATE = """# twin

The LSTM beside `toy`: two layers of 112 cells, hidden state projected to 64 numbers,
vocabulary and tokenizer of `toy`, read-out tied to the embedding; {parameters:,} parameters
against {toy_parameters:,}. It exists to be compared: it was fed the same batches in the same
order, with the same optimiser and schedule, and had to remember in a cell state what
`toy` keeps in its stream and looks up by attention.

    mv.load_lstm("twin"), mechview memory twin

## How it was made

    python data/make/twin.py {arguments}

{steps:,} steps of AdamW on {tokens:,} tokens of text, of which a part is seen; the first
1,200 steps have 32 rows of 64 tokens, the others 10 rows of 256, half of them repeated
segments (see `toy/CARD.md`). Each row starts from zero state. Weights are float16 and the
scores are those of the rounded weights.

| text | sha256 |
|---|---|
{texts}

## What it scores, beside toy

On `<|bos|> R R`, R being 50 random tokens, means over seeds {seeds} with 32 rows each;
held-out loss over windows of 256 tokens that begin with `<|bos|>`. Nats per token; a uniform
guess has 6.931.

| measure | twin (LSTM) | toy (transformer) |
|---|---|---|
{measures}

## Course of training

One seed.

| step | held-out loss | loss, second copy | loss drop |
|---|---|---|---|
{course}

## Limits

It has read two authors of old English and nothing else. One size, one seed, one training
length: it says what this LSTM does on these batches, not what LSTMs can do.

## Licence

The weights: MIT, as this repository. The text: public domain.
"""


def row(name: str, twin: float, toy: float) -> str:
    return f"| {name} | {twin:.3f} | {toy:.3f} |"


def measures(twin: dict, toy: dict) -> str:
    names = {"loss_first_copy": "loss, first copy", "loss_second_copy": "loss, second copy", "loss_drop": "drop"}
    texts = {"austen": "held-out Austen", "kjv": "held-out Bible", "mean": "held-out text, mean of the two"}
    rows = [row(name, twin[key], toy[key]) for key, name in names.items()]
    return "\n".join(
        rows + [row(name, twin["held_out_loss"][key], toy["held_out_loss"][key]) for key, name in texts.items()]
    )


def course_row(point: dict) -> str:
    return (
        f"| {point['step']} | {point['held_out_loss']['mean']:.3f} "
        f"| {point['loss_second_copy']:.2f} | {point['loss_drop']:.2f} |"
    )


def card(report: dict, toy: dict) -> str:
    """The card in Markdown, from the scores of the twin and of toy."""
    names = " ".join(text["name"] for text in report["text"])
    return TEMPLATE.format(
        parameters=report["parameters"],
        toy_parameters=toy["parameters"],
        arguments=f"--text {names} --seed {report['seed']}",
        steps=report["steps"],
        tokens=report["training_tokens"],
        texts="\n".join(f"| {text['name']} | `{text['sha256']}` |" for text in report["text"]),
        seeds=", ".join(map(str, report["final"]["seeds"])),
        measures=measures(report["final"], toy["final"]),
        course="\n".join(map(course_row, report["course"])),
    )
