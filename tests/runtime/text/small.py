"""Small tokenizers made of fields that a test chooses, and a BPE that is slow and plain."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import regex

from branchline.runtime.text import Tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Fields(dict[str, Any]):
    """The fields of a GGUF file that does not exist."""

    def value(self, key: str, default: Any = None) -> Any:
        return self.get(key, default)


def byte_chars() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


BYTES = byte_chars()


def spell(text: str | bytes) -> str:
    """Text as a byte-level vocabulary writes it."""
    return "".join(BYTES[byte] for byte in (text.encode() if isinstance(text, str) else text))


def split(text: str, patterns: list[str]) -> list[str]:
    """Each pattern in turn makes its matches, and what lies between them, pieces of their own."""
    pieces = [text]
    for pattern in patterns:
        pieces = [part for piece in pieces for part in _isolate(piece, pattern)]
    return pieces


def _isolate(text: str, pattern: str) -> list[str]:
    parts, end = [], 0
    for match in regex.finditer(pattern, text):
        parts += [text[end : match.start()], match.group()]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part]


def bpe(
    text: str, patterns: list[str], merges: list[str], tokens: tuple[str, ...] = ()
) -> list[str]:
    """Byte-level BPE by the book: the lowest merge first; pieces among `tokens` are not merged."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    out: list[str] = []
    for piece in split(text, patterns):
        word = [spell(piece)] if spell(piece) in tokens else list(spell(piece))
        while len(word) > 1:
            pairs = [(ranks[pair], i) for i, pair in enumerate(pairwise(word)) if pair in ranks]
            if not pairs:
                break
            at = min(pairs)[1]
            word[at : at + 2] = [word[at] + word[at + 1]]
        out += word
    return out


def gguf_fields(
    *,
    merges: tuple[str, ...] = ("Ġ Ġ",),
    extra: tuple[str, ...] = (),
    control: tuple[str, ...] = ("<|start|>", "<|end|>"),
    user_defined: tuple[str, ...] = (),
    unused: tuple[str, ...] = (),
    **fields: Any,
) -> Fields:
    """The 256 bytes, what the merges make, `extra` texts, then the special tokens."""
    merged = [merge.replace(" ", "") for merge in merges]
    normal = list(dict.fromkeys([*BYTES.values(), *merged, *map(spell, extra)]))
    kinds = [(normal, 1), (control, 3), (user_defined, 4), (unused, 5)]
    tokens = [token for group, _ in kinds for token in group]
    return Fields(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [kind for group, kind in kinds for _ in group],
            "tokenizer.ggml.merges": list(merges),
        }
        | {f"tokenizer.{name.replace('__', '.')}": value for name, value in fields.items()}
    )


def make(**kwargs: Any) -> Tokenizer:
    """The tokenizer of `gguf_fields(...)`."""
    return Tokenizer.from_gguf(gguf_fields(**kwargs))


def program(text: str) -> tuple[tuple[str, str]]:
    """A prompt of one program text."""
    return (("program", text),)
