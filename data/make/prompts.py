"""Write `data/prompts/`: small tables of prompts whose answers are known, and what each is for.

    python data/make/prompts.py

Nothing is taken from elsewhere: the sentences are this repository's own, the facts are general knowledge.
The same seed writes the same bytes. Answers start with a space, as they follow a word.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "prompts"
SEED = 0


def words(text: str) -> list[str]:
    return text.split()


NAMES = words(
    "Mary John Tom James Anna Paul Sarah David Alice Mark Jack Peter Laura Kate Daniel Susan Robert Jane Henry Michael "
    "Lisa Martin George Simon"
)
PLACES = words("store park school office garden market station library")
THINGS = words("book drink letter ring ball coat key flower")
# {A} and {B} are named in this order; {S} acts, and the indirect object, who is not named again, is the answer
TEMPLATES = (
    "When {A} and {B} went to the {place}, {S} gave a {thing} to",
    "After {A} and {B} met at the {place}, {S} handed the {thing} to",
    "{A} and {B} were alone in the {place} when {S} offered a {thing} to",
    "Once {A} and {B} had left the {place}, {S} sent a {thing} to",
)
IOI_PAIRS = 6  # prompts of each template and order
FACTS: dict[str, tuple[str, dict[str, str]]] = {
    "capital": ("The capital of {} is", {
        "France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome", "England": "London",
        "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow", "Egypt": "Cairo", "Greece": "Athens",
        "Portugal": "Lisbon", "Austria": "Vienna", "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm",
        "Poland": "Warsaw", "Canada": "Ottawa", "Peru": "Lima", "Cuba": "Havana",
    }),
    "language": ("The people of {} speak", {
        "France": "French", "Germany": "German", "Spain": "Spanish", "Italy": "Italian", "England": "English",
        "Japan": "Japanese", "China": "Chinese", "Russia": "Russian", "Egypt": "Arabic", "Greece": "Greek",
        "Poland": "Polish", "Sweden": "Swedish", "Denmark": "Danish", "Finland": "Finnish", "Turkey": "Turkish",
    }),
    "continent": ("{} is a country on the continent of", {
        "France": "Europe", "Japan": "Asia", "Egypt": "Africa", "Germany": "Europe", "India": "Asia",
        "Kenya": "Africa", "Spain": "Europe", "China": "Asia", "Nigeria": "Africa",
    }),
    "opposite": ("The opposite of {} is", {
        "hot": "cold", "big": "small", "long": "short", "fast": "slow", "light": "dark", "dry": "wet",
        "hard": "soft", "full": "empty", "happy": "sad", "young": "old", "up": "down", "good": "bad", "rich": "poor",
    }),
}  # fmt: skip
WORDS = words(
    "apple river stone green chair cloud paper horse table bread glass water music house mountain yellow winter garden "
    "ship king door silver tree bird road moon fish star book knife window letter bridge flower engine coat island"
)
REPEATS, PERIODS = 24, (4, 6, 8)
RANDOM, RANDOM_PERIODS = 24, (8, 16, 32)
ABOUT = {
    "ioi": {
        "for": "indirect object identification: which heads move the name that is not repeated to the end",
        "source": "after the task of Wang et al. 2022 (arXiv:2211.00593); names and sentences are this repository's",
        "columns": {
            "prompt": "two names, then one of them again: the answer is the other",
            "target": "the indirect object, named once", "against": "the subject, named twice",
            "corrupted": "the same prompt with the other name repeated, so that target and against change places",
            "template": "number of the sentence, from 0", "order": "ABBA: the answer is named first; BABA: second",
        },
    },
    "facts": {
        "for": "factual recall: which layers carry an attribute of the subject to the end",
        "source": "general knowledge; a model may well not know a fact, so ask it first",
        "columns": {
            "prompt": "a sentence that lacks its last word", "target": "that word",
            "against": "the answer for another subject of the same relation",
            "corrupted": "the same sentence about that other subject; it may have another number of tokens",
            "relation": "capital, language, continent or opposite", "subject": "what the sentence is about",
        },
    },
    "repeats": {
        "for": "induction: words that follow no grammar, then the same words again, cut before one that was seen",
        "source": "words drawn with a fixed seed",
        "columns": {
            "prompt": "a list of words, and the beginning of the same list", "target": "the word that came next before",
            "against": "another word of the list",
            "corrupted": "the list with the word before the answer exchanged, so that no repetition says what comes next",
            "period": "words until the list repeats",
        },
    },
    "random": {
        "for": "induction without meaning: random tokens of the model's own vocabulary, then the same again",
        "source": "numbers drawn with a fixed seed, which each model's ordinary tokens give their ids to",
        "columns": {
            "prompt": "random tokens, and the first `shown` of them again", "target": "the token that came next before",
            "against": "the token at place `wrong` of the period",
            "corrupted": "the same with the token before the answer exchanged, so that no repetition says what comes next",
            "period": "tokens until they repeat",
            "draws": "numbers from 0 to 1, one a token of the period and one for the exchange: places in the vocabulary",
            "shown": "tokens of the second period in the prompt", "wrong": "place of the wrong answer, from 0",
        },
    },
}  # fmt: skip


def ioi(draw: random.Random) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for number, template in enumerate(TEMPLATES):
        for order in ("ABBA", "BABA"):
            for _ in range(IOI_PAIRS):
                io, subject = draw.sample(NAMES, 2)
                first, second = (io, subject) if order == "ABBA" else (subject, io)
                said = {"A": first, "B": second, "place": draw.choice(PLACES), "thing": draw.choice(THINGS)}
                rows.append({
                    "prompt": template.format(**said, S=subject), "target": f" {io}", "against": f" {subject}",
                    "corrupted": template.format(**said, S=io), "template": number, "order": order,
                })  # fmt: skip
    return rows


def facts(draw: random.Random) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for relation, (template, known) in FACTS.items():
        for subject, answer in known.items():
            other = draw.choice([name for name, said in known.items() if said != answer])
            rows.append({
                "prompt": template.format(subject), "target": f" {answer}", "against": f" {known[other]}",
                "corrupted": template.format(other), "relation": relation, "subject": subject,
            })  # fmt: skip
    return rows


def repeats(draw: random.Random) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for number in range(REPEATS):
        period = PERIODS[number % len(PERIODS)]
        *words, spare = draw.sample(WORDS, period + 1)
        cut = draw.randrange(2, period)  # words of the second list that are shown
        wrong = draw.choice([word for n, word in enumerate(words) if n not in (cut - 1, cut)])
        broken = [spare if n == cut - 1 else word for n, word in enumerate(words)]
        again = " ".join(words[:cut])
        rows.append({
            "prompt": f"{' '.join(words)} {again}", "target": f" {words[cut]}", "against": f" {wrong}",
            "corrupted": f"{' '.join(broken)} {again}", "period": period,
        })  # fmt: skip
    return rows


def random_tokens(draw: random.Random) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for number in range(RANDOM):
        period = RANDOM_PERIODS[number % len(RANDOM_PERIODS)]
        shown = draw.randrange(2, period)
        wrong = draw.choice([n for n in range(period) if n not in (shown - 1, shown)])
        draws = [int(draw.random() * 1e6) / 1e6 for _ in range(period + 1)]
        rows.append({"draws": draws, "shown": shown, "wrong": wrong, "period": period})
    return rows


def write(folder: Path = OUT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(SEED)
    tables = {"ioi": ioi, "facts": facts, "repeats": repeats, "random": random_tokens}
    for name, rows in ((name, made(draw)) for name, made in tables.items()):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8", newline="\n")
        print(f"{name}: {len(rows)} prompts", file=sys.stderr)
    (folder / "about.json").write_text(json.dumps(ABOUT, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write()
