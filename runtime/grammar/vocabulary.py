"""What each token of a tokenizer writes, as bytes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from branchline.errors import ModelError
from branchline.runtime.grammar.token_trie import Tries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from branchline.runtime.text import Tokenizer

_SPACE = "\u2581"  # how SentencePiece writes a space inside a token


class Vocabulary:
    """A vocabulary as grammars see it: bytes, ends, and how text becomes ids.

    Immutable and shared by all threads.

    Attributes:
        size: ids go from 0 to below it.
        token_bytes: what each id adds to the text. None for what is no text: special and control
            tokens, unused ids. They are never allowed inside a grammar.
        eos: the ids that end an output.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos: frozenset[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.size = len(token_bytes)
        # An empty token would be allowed everywhere and lead nowhere.
        self.token_bytes = [
            text if text and i not in eos else None for i, text in enumerate(token_bytes)
        ]
        self.eos = eos
        self.encode = encode  # text in the middle of a sequence: no BOS, nothing in it is special

    @cached_property
    def tries(self) -> Tries:
        """The tokens as tries, for masks."""
        return Tries.of(self.token_bytes)

    @cached_property
    def sorted_tokens(self) -> list[bytes]:
        """What the tokens write, each once, in the order of bytes."""
        return sorted({text for text in self.token_bytes if text is not None})

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.sorted_tokens), default=0)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """The vocabulary of a model's tokenizer.

        Raises:
            ModelError: its tokens are neither byte-level nor SentencePiece's, so what they write is
                not known.
        """
        texts = _token_texts(tokenizer.spec)
        to_bytes = byte_decoder(tokenizer.spec)
        token_bytes: list[bytes | None] = [None] * tokenizer.vocab_size
        for i, text in texts.items():
            token_bytes[i] = to_bytes(text)
        return cls(token_bytes, tokenizer.stop_token_ids, tokenizer.encode_continuation)


def _token_texts(spec: dict[str, Any]) -> dict[int, str]:
    """Every token that is text, as the tokenizer's own file writes it."""
    texts = {i: text for text, i in spec["model"]["vocab"].items()}
    for token in spec["added_tokens"]:
        if token["special"]:
            texts.pop(token["id"], None)
        else:
            texts[token["id"]] = token["content"]
    return texts


def byte_decoder(spec: dict[str, Any]) -> Callable[[str], bytes]:
    """How a tokenizer's decoder turns one token into bytes; ModelError where that is not known."""
    kinds = set(_kinds(spec.get("decoder")))
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace"}:
        return _byte_fallback if "ByteFallback" in kinds else _metaspace
    raise ModelError(
        "a grammar needs to know which bytes each token writes, and this tokenizer's decoder is "
        f"{', '.join(sorted(kinds)) or 'missing'}: supported are ByteLevel, ByteFallback and "
        "Metaspace"
    )


def _kinds(decoder: dict[str, Any] | None) -> list[str]:
    if decoder is None:
        return []
    inner = (_kinds(child) for child in decoder.get("decoders", ()))
    return [decoder["type"], *(kind for kinds in inner for kind in kinds)]


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level tokenizers write bytes with.

    A byte that Latin-1 prints is that character; the others are, in order, U+0100 and on.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printed))
    alphabet = {chr(byte): byte for byte in printed}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _byte_level(text: str) -> bytes:
    # An added token may be written as it is; the decoder takes it whole then.
    return bytes(map(_BYTES.__getitem__, text)) if _BYTES.keys() >= set(text) else text.encode()


def _byte_fallback(text: str) -> bytes:
    if len(text) == len("<0x00>") and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            return _metaspace(text)  # "<0xyz>" is text
    return _metaspace(text)


def _metaspace(text: str) -> bytes:
    return text.replace(_SPACE, " ").encode()
