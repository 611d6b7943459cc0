"""What single tokens read as: the bytes of a text's tokens, joined, are the text's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from branchline.errors import InvalidRequest
from branchline.gateway.logprobs import bytes_of
from branchline.runtime.models.gguf_file import GGUFFile
from branchline.runtime.text import Tokenizer
from branchline.runtime.text.token_text import TokenTexts

if TYPE_CHECKING:
    from pathlib import Path

SENTENCEPIECE = {
    "model": {"vocab": {"<s>": 0, "\u2581Hello": 1, "<0xC3>": 2, "<0xA9>": 3, "<0xzz>": 4, "a": 5}},
    "added_tokens": [
        {"id": 0, "content": "<s>", "special": True},
        {"id": 6, "content": "<tool>", "special": False},
    ],
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
}


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(smollm2_path))


@pytest.mark.parametrize("text", ["Hello, world", "é 🦙 漢字\n\t", "a\u200db", "  <|im_end|>"])
def test_a_texts_tokens_are_its_bytes(tokenizer: Tokenizer, text: str) -> None:
    texts = tokenizer.token_texts()
    ids = tokenizer.encode((("program", text),))
    assert b"".join(bytes_of(texts(token)) for token in ids) == text.encode()


def test_special_tokens_read_as_their_names(tokenizer: Tokenizer) -> None:
    texts = tokenizer.token_texts()
    [end] = tokenizer.encode((("template", "<|im_end|>"),))
    assert texts(end) == "<|im_end|>"
    assert tokenizer.token_texts() is texts, "made once"


def test_sentencepiece() -> None:
    texts = TokenTexts(SENTENCEPIECE)
    told = [texts(token) for token in range(8)]
    assert told == ["<s>", " Hello", r"bytes:\xc3", r"bytes:\xa9", "<0xzz>", "a", "<tool>", ""]
    assert bytes_of(told[2]) + bytes_of(told[3]) == "é".encode()


def test_a_tokenizer_whose_bytes_are_not_known(tokenizer: Tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(tokenizer, "spec", {**tokenizer.spec, "decoder": {"type": "WordPiece"}})
    monkeypatch.setattr(tokenizer, "_token_texts", None)
    with pytest.raises(InvalidRequest, match=r"logprob_texts.*WordPiece"):
        tokenizer.token_texts()
