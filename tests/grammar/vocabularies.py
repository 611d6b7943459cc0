"""Small vocabularies whose every token is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.runtime.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

EOS = 256


def byte_vocabulary(words: Sequence[bytes] = ()) -> Vocabulary:
    """256 bytes, then the end, then `words` from 257 on; text is tokenized longest token first."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"", *words]
    ids = {text: i for i, text in enumerate(tokens) if text}
    longest = max(map(len, tokens))

    def encode(text: str) -> list[int]:
        data, at, out = text.encode(), 0, []
        while at < len(data):
            lengths = range(min(longest, len(data) - at), 0, -1)
            length = next(n for n in lengths if data[at : at + n] in ids)
            out.append(ids[data[at : at + length]])
            at += length
        return out

    return Vocabulary(tokens, frozenset({EOS}), encode)
