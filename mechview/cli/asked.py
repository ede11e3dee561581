"""What the arguments mean: which head, which model, which prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mechview.cli.options import Bos, Dtype
from mechview.errors import HeadError, PromptError, UsageError


@dataclass(frozen=True)
class Texts:
    """Prompts as they were asked for; read once the model, and so its tokenizer, is known."""

    prompts: Sequence[str] | None
    file: Path | None
    ids: Sequence[str] | None
    chat: bool
    bos: Bos

    @property
    def given(self) -> bool:
        return bool(self.prompts or self.ids or self.file is not None)

    def read(self, model: Any) -> list[Any]:
        """Texts and lists of ids, in the order options, file, ids."""
        texts = [*(self.prompts or ()), *(read_prompts(self.file, model) if self.file else ())]
        said: list[Any] = [in_template(model, text) for text in texts] if self.chat else texts
        return said + [parse_ids(ids) for ids in self.ids or ()]

    def table(self, *models: Any) -> Any:
        """The rows of the file or bundled table whose answers are one token in each of the models."""
        from mechview.models.prompt_tables import prompt_table

        found = prompt_table(self.file or "")
        for model in models:
            fitting = found.fitting(model)
            found = replace(fitting, left_out=found.left_out + fitting.left_out)
        if not self.chat:
            return found
        return replace(found, cases=tuple(_case_in_template(models[0], case) for case in found.cases))


def parse_ids(text: str) -> list[int]:
    """Token ids separated by commas; brackets around them are allowed."""
    try:
        return [int(part) for part in text.strip("[] ").split(",")]
    except ValueError:
        raise PromptError(f"{text!r} is not a list of token ids; write --ids 1,2,3") from None


def read_prompts(file: Path, model: Any) -> list[Any]:
    """Prompts of a bundled table (`ioi`, `facts`, `repeats`, `random`) or of a file, empty lines left out.

    Raises:
        PromptError: the file is not there, is not text, or holds no prompt.
    """
    from mechview.models.prompt_tables import prompt_table

    return prompt_table(file).drawn(model).texts


def in_template(model: Any, text: Any) -> list[int]:
    """Token ids of the text as a user's turn in the model's chat template."""
    if not isinstance(text, str):
        raise UsageError("random tokens are no text for a chat template: leave out --chat")
    if not getattr(model.tokenizer, "chat_template", None):
        why = "its tokenizer cannot be read" if model.tokenizer_error else "leave out --chat"
        raise UsageError(f"{model.name} has no chat template; {why}")
    turn = [{"role": "user", "content": text}]
    try:
        return list(model.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))
    except Exception as error:  # templates are programs, and fail in as many ways
        raise PromptError(f"the chat template of {model.name} fails: {' '.join(str(error).split()[:20])}") from None


def _case_in_template(model: Any, case: Any) -> Any:
    corrupted = None if case.corrupted is None else in_template(model, case.corrupted)
    return replace(case, prompt=in_template(model, case.prompt), corrupted=corrupted)


def which_head(first: str | None, second: str | None, layer: int | None, head: int | None) -> tuple[str, Any]:
    """MODEL and the head meant by `[MODEL] [HEAD]`, `--layer` and `--head`."""
    from mechview.heads.labels import HeadName, is_head, parse_head

    numbered = layer is not None or head is not None
    if numbered and (layer is None or head is None):
        raise UsageError("--layer and --head belong together")
    if second is None and first is not None and is_head(first):
        first, second = None, first
    if second is not None and numbered:
        raise UsageError(f"{second} and --layer --head name a head twice")
    if second is None and not numbered:
        raise UsageError("say which head: L5H1, or --layer 5 --head 1")
    name = parse_head(second) if second is not None else HeadName(layer or 0, head or 0)
    return first or "toy", name


def optional_head(first: str | None, second: str | None, layer: int | None, head: int | None) -> tuple[str, Any]:
    """As `which_head`, with None for all heads."""
    from mechview.heads.labels import is_head

    if second is None and layer is None and head is None and not (first and is_head(first)):
        return first or "toy", None
    return which_head(first, second, layer, head)


def open_model(
    spec: str, revision: str | None, offline: bool, device: str = "cpu", dtype: Dtype = Dtype.float32,
    adapter: Path | None = None,
) -> Any:  # fmt: skip
    """The model, its weights still on disk."""
    from transformers.utils import logging

    from mechview.heads.labels import is_head
    from mechview.models.load import load

    if is_head(spec):
        raise UsageError(f"{spec} is a head, not a model: write it as --heads {spec}, after the model if there is one")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # its notes are many lines long; what matters comes as an error of ours
    return load(spec, revision=revision, offline=offline, device=device, dtype=dtype.value, adapter=adapter)


def chosen(weights: Any, layers: str | None, heads: str | None) -> tuple[Any, Any]:
    """Layer numbers and head names of `--layers` and `--heads`, None where not given, checked."""
    from mechview.heads.labels import parse_heads, parse_layers
    from mechview.models.reader import check_layer

    count = max(weights.shape.n_layers, weights.shape.n_encoder_layers)
    wanted = None if layers is None else parse_layers(layers, count)
    if heads is None:
        return wanted, None
    names = parse_heads(heads)
    for name in names:
        check_layer(weights.shape, name.layer, name.stack)
        if name.head >= weights.shape.n_heads:
            last = weights.shape.n_heads - 1
            raise HeadError(f"head {name.head} does not exist: layer {name.layer} has heads 0 to {last}")
    if wanted is not None and (outside := next((n for n in names if n.layer not in wanted), None)):
        raise UsageError(f"{outside} is not in --layers {layers}")
    return wanted, names
