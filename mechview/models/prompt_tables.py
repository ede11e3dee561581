"""Tables of prompts with known answers: the ones shipped in `data/prompts/`, and files of the same form.

A row is a prompt, the token that should follow (`target`), a wrong one it is held against, and a corrupted
prompt whose answer is another; only the prompt must be there. Files are `.jsonl` (one object a line), `.csv`
(with a header) or plain text (one prompt a line). Whether an answer is one token depends on the tokenizer, and
rows of random tokens are drawn from the model's own vocabulary, so `fitting` says which rows a model can be asked.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mechview.errors import PromptError, UsageError
from mechview.models.bundled import data_folder
from mechview.models.repeated import Repeated
from mechview.tokens import one_token

Prompt = Any  # text, token ids or a trace, checked where it is read
PARTS = ("prompt", "target", "against", "corrupted")


@dataclass(frozen=True)
class Case:
    """A prompt with its own answer, what that is held against, and a prompt of the same form with another answer."""

    prompt: Prompt
    target: Any = None
    against: Any = None
    corrupted: Prompt | None = None
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class PromptTable:
    """Prompts of one kind. `purpose` says what they are for, `columns` what each column means."""

    name: str
    cases: tuple[Case, ...]
    purpose: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.cases)

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)

    @property
    def texts(self) -> list[Any]:
        """The prompts alone."""
        return [case.prompt for case in self.cases]

    def where(self, **values: Any) -> PromptTable:
        """The rows whose other columns have these values: `where(order="ABBA")`."""
        kept = tuple(c for c in self.cases if all(c.about.get(name) == value for name, value in values.items()))
        return replace(self, cases=kept)

    def drawn(self, model: Any) -> PromptTable:
        """The table with random tokens as ids of this model's vocabulary."""
        return replace(self, cases=tuple(_drawn(case, model) for case in self.cases))

    def fitting(self, model: Any) -> PromptTable:
        """The rows whose answers are one token each for this model, random ones drawn; `left_out` says which are not.

        Raises:
            PromptError: no row is left.
        """
        cases = self.drawn(model).cases
        wrong = [_wrong_answer(case, model.tokenizer) for case in cases]
        kept = tuple(case for case, said in zip(cases, wrong, strict=True) if not said)
        if not kept:
            raise PromptError(f"no prompt of {self.name} can be asked: {next(filter(None, wrong), 'it is empty')}")
        return replace(self, cases=kept, left_out=tuple(filter(None, wrong)))


def prompt_tables() -> dict[str, str]:
    """Names of the bundled tables, and what each is for."""
    return {name: about["for"] for name, about in _about().items()}


def prompt_table(name: str | Path) -> PromptTable:
    """A bundled table (`ioi`, `facts`, `repeats`, `random`), or a file.

    Raises:
        PromptError: there is no such table or file, or a row cannot be read.
    """
    known = _about()
    if str(name) not in known:
        return PromptTable(str(name), tuple(file_cases(Path(name))))
    about, folder = known[str(name)], data_folder() / "prompts"
    cases = tuple(file_cases(folder / f"{name}.jsonl"))
    return PromptTable(str(name), cases, about["for"], about["columns"], about["source"])


def is_bundled(name: str | Path) -> bool:
    """Whether this names a bundled table; a file of the same name goes first."""
    return str(name) in _about() and not Path(name).is_file()


def file_cases(file: Path) -> Iterator[Case]:
    """The rows of a file, empty lines left out.

    Raises:
        PromptError: the file is not there, is not text, holds no prompt, or a line is not what its suffix says.
    """
    text = _text(file)
    if file.suffix.lower() == ".csv":
        rows = csv.DictReader(io.StringIO(text))
        found = [_case(dict(row), f"{file}, line {rows.line_num}") for row in rows]
    else:
        numbered = [(n, line.removesuffix("\r")) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        parsed = file.suffix.lower() == ".jsonl"
        found = [_json_case(line, f"{file}, line {n}") if parsed else Case(line) for n, line in numbered]
    if not found:
        raise PromptError(f"{file} holds no prompt")
    yield from found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        known = "" if file.parent != Path() else f"; bundled tables are {', '.join(prompt_tables())}"
        raise PromptError(f"{file} cannot be read: {error.strerror}{known}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{file} is not UTF-8 text (byte {error.start})") from None


def _json_case(line: str, where: str) -> Case:
    try:
        found = json.loads(line)
    except ValueError:
        raise PromptError(f"{where} is not JSON") from None
    return _case(found if isinstance(found, dict) else {"prompt": found}, where)


def _case(row: dict[str, Any], where: str) -> Case:
    if "draws" in row:
        return _random_case(row, where)
    text = row.pop("prompt", None) or row.pop("text", None)
    if not isinstance(text, str):
        raise PromptError(f'{where} has neither a "prompt" nor a "text"')
    answers = [row.pop(name, None) or None for name in PARTS[1:]]
    for name, value in zip(PARTS[1:], answers, strict=True):
        if not (value is None or isinstance(value, str) or (name != "corrupted" and _several(value))):
            raise PromptError(f"{where}: {name} is neither a text nor a list of texts")
    target, against, corrupted = answers
    return Case(text, target, against, corrupted, row)


def _random_case(row: dict[str, Any], where: str) -> Case:
    try:
        asked = Repeated(tuple(map(float, row.pop("draws"))), int(row.pop("shown")), int(row.pop("wrong")))
        asked.check()
    except (KeyError, TypeError, ValueError, PromptError):
        raise PromptError(f'{where} is no row of random tokens: "draws" from 0 to 1, "shown" and "wrong"') from None
    return Case(asked, about=row)


def _drawn(case: Case, model: Any) -> Case:
    return replace(case, **case.prompt.tokens(model)) if isinstance(case.prompt, Repeated) else case


def _several(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _wrong_answer(case: Case, tokenizer: Any) -> str:
    """Why a row cannot be asked, or nothing."""
    for side in (case.target, case.against):
        for text in [side] if isinstance(side, str | int) else side or ():
            try:
                if isinstance(text, str):
                    one_token(text, tokenizer)
            except UsageError as error:
                return str(error)
    return ""


def _about() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data_folder() / "prompts" / "about.json").read_text(encoding="utf-8"))
    return found
