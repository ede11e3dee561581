"""How a token is shown, everywhere: leading space `·`, newline `⏎`, tab `⇥`, raw bytes as `\\xe6`.

A token keeps its id, its raw vocabulary string, and the text shown. Nothing here escapes HTML: that is
done once, where HTML is made.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

from mechview.errors import UsageError

VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\0": "␀"}
LONGEST = 40


@dataclass(frozen=True)
class Token:
    """One token of a prompt: position, id, and what a reader sees. `special` marks BOS and the like."""

    pos: int
    id: int
    text: str
    shown: str
    special: bool = False


def show(text: str) -> str:
    """The text with every character visible: distinct labels for ` a`, `a`, newline, tab and nothing."""
    return "".join(VISIBLE.get(char) or _visible(char) for char in text) or "∅"


def shorten(shown: str, longest: int = LONGEST) -> str:
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _visible(char: str) -> str:
    kind = unicodedata.category(char)
    if kind in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        code = ord(char)
        return f"\\x{code:02x}" if code < 2**8 else f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"
    return "␣" if kind == "Zs" else char


def describe(ids: list[int], tokenizer: Any | None) -> tuple[Token, ...]:
    """Tokens of a prompt; without a tokenizer the ids themselves are shown."""
    if tokenizer is None:
        return tuple(Token(pos, i, str(i), f"#{i}") for pos, i in enumerate(ids))
    special = set(getattr(tokenizer, "all_special_ids", []))
    texts = [token_text(i, tokenizer) for i in ids]
    return tuple(
        Token(pos, i, text, shorten(shown), i in special)
        for pos, (i, (text, shown)) in enumerate(zip(ids, texts, strict=True))
    )


def token_text(token_id: int, tokenizer: Any) -> tuple[str, str]:
    """The text of a token and how it is shown; fragments of a character are shown as bytes."""
    raw = tokenizer.convert_ids_to_tokens(token_id)
    if raw is None:
        return f"#{token_id}", f"#{token_id}"
    raw = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    if token_id in {*getattr(tokenizer, "all_special_ids", ()), *getattr(tokenizer, "added_tokens_decoder", ())}:
        return raw, show(raw)  # added tokens are kept as text, also in a vocabulary of bytes
    data = token_bytes(raw, tokenizer)
    if data is None:
        text = raw.replace("▁", " ")
        return text, show(text)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return raw, "".join(f"\\x{byte:02x}" for byte in data)
    return text, show(text)


def token_bytes(raw: str, tokenizer: Any) -> bytes | None:
    """The bytes behind a vocabulary string of a byte-level BPE or a `<0xE6>` fallback; None elsewhere."""
    if len(raw) == 6 and raw.startswith("<0x") and raw.endswith(">"):
        try:
            return bytes([int(raw[3:5], 16)])
        except ValueError:
            return None
    if not _is_byte_level(tokenizer):
        return None
    table = BYTE_OF_CHAR
    return bytes(table[char] for char in raw) if all(char in table for char in raw) else None


def one_token(text: str, tokenizer: object) -> int:
    """The id of a text that is one token.

    Raises:
        UsageError: it is several, or there is no tokenizer.
    """
    if tokenizer is None:
        raise UsageError("this model has no tokenizer that can be read; give target tokens by id")
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # type: ignore[operator]
    if len(ids) != 1:
        raise UsageError(f"{text!r} is {len(ids)} tokens, not one; choose one token (a leading space often matters)")
    return int(ids[0])


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel" in str(backend.decoder)


def _byte_of_char() -> dict[str, int]:
    """GPT-2's reversible map from printable characters to bytes (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    hidden = [b for b in range(256) if b not in printable]
    return table | {chr(256 + n): b for n, b in enumerate(hidden)}


BYTE_OF_CHAR = _byte_of_char()
