"""Running a model on a prompt: text to ids with the BOS policy said, checks, one forward pass, a trace."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mechview.errors import CheckError, PromptError, UsageError
from mechview.models.capture import Capture
from mechview.models.load import Model
from mechview.models.repeated import Repeated
from mechview.models.trace import Trace
from mechview.tokens import describe

DEFAULT_PROMPT = (
    "And the evening and the morning were the first day. And the evening and the morning were the second day."
)
DEFAULT_IDS = 12
Prompt = str | Sequence[Any] | Tensor | Repeated  # text, or token ids, which are checked where they are read
Bos = str  # auto, yes or no; checked where a prompt is read


def trace(model: Model | Any, prompt: Prompt, *, bos: Bos = "auto", decoder: Prompt | None = None) -> Trace:
    """What one forward pass added, for one prompt.

    Args:
        prompt: text, or token ids (taken as they are).
        bos: `auto` leaves special tokens to the tokenizer, `yes` puts one BOS first, `no` adds nothing.
        decoder: the decoder's input of an encoder-decoder model; its start token alone unless given.

    Raises:
        PromptError: empty, longer than the context, or with ids the model does not have.
    """
    model = as_model(model)
    ids = encode(model, prompt, bos)
    added = bool(ids) and isinstance(prompt, str) and ids[0] == getattr(model.tokenizer, "bos_token_id", None)
    about: dict[str, Any] = {"bos": added, "tokenizer": model.tokenizer, "revision": model.source.revision}
    if not model.shape.n_encoder_layers:
        capture = finite(model.capture(torch.tensor(ids, device=model.device)))
        return Trace(model.name, model.weights, capture, describe(ids, model.tokenizer), **about)
    target = decoder_ids(model, decoder)
    capture = finite(model.capture(torch.tensor(ids, device=model.device), torch.tensor(target, device=model.device)))
    tokens, source = describe(target, model.tokenizer), describe(ids, model.tokenizer)
    return Trace(model.name, model.weights, capture, tokens, source, **about)


def as_model(model: Any) -> Model:
    """The model, if it is one.

    Raises:
        UsageError: it is something else (a name that was not loaded, a trace, a bare module).
    """
    if not isinstance(model, Model):
        raise UsageError(
            f"a model is needed, from mv.load, mv.wrap or mv.from_arrays; this is a {type(model).__name__}"
        )
    return model


def finite(capture: Capture) -> Capture:
    """The capture, if its patterns and streams are numbers.

    Raises:
        CheckError: NaN or infinity, with the first layer and the heads that hold it.
    """
    for (stack, layer), seen in capture.attention.items():
        for name, value in (("stream before it", seen.stream), ("attention output", seen.written)):
            if not torch.isfinite(value).all():
                raise CheckError(f"the forward pass gives NaN or infinity in layer {layer} ({stack}), in the {name}")
        bad = (~torch.isfinite(seen.pattern)).flatten(1).any(1).nonzero().flatten().tolist()
        if bad:
            heads = ", ".join(map(str, bad))
            raise CheckError(f"the forward pass gives NaN in layer {layer} ({stack}), in the pattern of head {heads}")
    if capture.logits is not None and not torch.isfinite(capture.logits).all():
        raise CheckError("the forward pass gives NaN or infinite logits")
    return capture


def traces(model: Model, prompts: Sequence[Prompt], *, bos: Bos = "auto") -> list[Trace]:
    """One trace a prompt; prompts are never padded, so no prompt depends on another."""
    return [trace(model, prompt, bos=bos) for prompt in prompts]


def default_prompt(model: Model) -> Prompt:
    """A sentence that repeats itself, so that induction shows; for a model without a tokenizer repeated ids."""
    if model.tokenizer is not None:
        return DEFAULT_PROMPT
    count = min(DEFAULT_IDS, (model.shape.n_ctx or 2 * DEFAULT_IDS) // 2) or 1
    return [n * model.shape.d_vocab // count for n in range(count)] * 2


def encode(model: Model, prompt: Prompt, bos: Bos = "auto") -> list[int]:
    """Checked token ids of a prompt."""
    ids = _tokenized(model, prompt, bos) if isinstance(prompt, str) else given_ids(prompt)
    if not ids:
        raise PromptError("the prompt is empty: it has no tokens")
    wrong = next((i for i in ids if not 0 <= i < model.shape.d_vocab), None)
    if wrong is not None:
        raise PromptError(f"token id {wrong} does not exist: the vocabulary has ids 0 to {model.shape.d_vocab - 1}")
    if model.shape.n_ctx is not None and len(ids) > model.shape.n_ctx:
        raise PromptError(f"the prompt has {len(ids)} tokens; {model.name} reads at most {model.shape.n_ctx}")
    return ids


def given_ids(prompt: Any) -> list[int]:
    """Ids given as a list, an array or a tensor; a batch of one, as tokenizers return it, is that prompt."""
    if isinstance(prompt, Repeated):
        raise PromptError("random tokens are drawn from a model's own vocabulary: take table.fitting(model)")
    plain: list[Any] = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    if isinstance(prompt, bytes):
        raise PromptError("a prompt is text, or one list of whole numbers: token ids")
    plain = plain[0] if len(plain) == 1 and isinstance(plain[0], list) else plain
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in plain):
        raise PromptError("a prompt is text, or one list of whole numbers: token ids")
    return plain


def decoder_ids(model: Model, prompt: Prompt | None) -> list[int]:
    """The decoder's input: its start token, then the given text or ids."""
    config = getattr(model.weights, "config", None)
    start = getattr(config, "decoder_start_token_id", None)
    if prompt is None and start is None:
        raise PromptError("this model has no decoder start token; give the decoder's input")
    if prompt is None or isinstance(prompt, str):
        return [int(start or 0), *([] if not prompt else encode(model, prompt, "no"))]
    return encode(model, prompt)


def _tokenized(model: Model, text: str, bos: Bos) -> list[int]:
    tokenizer: Any = model.tokenizer
    if bos not in ("auto", "yes", "no"):
        raise PromptError(f"bos={bos!r} is not a policy: use auto, yes or no")
    if tokenizer is None and model.tokenizer_error:
        raise PromptError(f"the tokenizer of {model.name} is broken ({model.tokenizer_error}); give token ids")
    if tokenizer is None:
        raise PromptError(f"{model.name} has no tokenizer; give the prompt as token ids")
    if not text:
        raise PromptError("the prompt is empty: it has no tokens")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"the prompt holds a lone surrogate at character {error.start}: it is not text") from None
    ids = list(tokenizer(text, add_special_tokens=bos == "auto", verbose=False)["input_ids"])
    first = getattr(tokenizer, "bos_token_id", None)
    if bos == "yes" and first is None:
        raise PromptError("this tokenizer has no BOS token; use bos auto or no")
    ids = [first, *ids] if bos == "yes" and ids[:1] != [first] else ids
    if first is not None and ids[:2] == [first, first]:
        warnings.warn("the prompt starts with two BOS tokens", stacklevel=4)
    return ids
