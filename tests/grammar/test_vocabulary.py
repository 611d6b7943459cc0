"""What a token writes equals what the tokenizer's own decoder says of it."""

from __future__ import annotations

import random

import pytest

from branchline.errors import ModelError
from branchline.runtime.grammar.vocabulary import Vocabulary
from branchline.runtime.text import Tokenizer
from branchline.runtime.text.parts import TokenizerParts


def make_tokenizer(spec: dict, size: int, eos: int) -> Tokenizer:
    parts = TokenizerParts(
        spec=spec,
        vocab_size=size,
        stop_token_ids=frozenset({eos}),
        bos_id=None,
        adds_bos=False,
        chat_template=None,
    )
    return Tokenizer(parts)


def sentencepiece() -> Tokenizer:
    """A vocabulary in the manner of Llama 2: bytes, pieces with ▁, a space before the text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "é", "▁a", "ab", "▁ab", "<0xZZ>"]
    vocab = {text: i for i, text in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    added = [
        {"id": i, "content": pieces[i], "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i in range(3)
    ]
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": merges,
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }
    return make_tokenizer(spec, len(pieces) + 5, 2)


def check(tokenizer: Tokenizer, seed: int) -> Vocabulary:
    vocabulary = Vocabulary.of(tokenizer)
    assert vocabulary.size == tokenizer.vocab_size == len(vocabulary.token_bytes)
    texts = [i for i, text in enumerate(vocabulary.token_bytes) if text is not None]
    first = next(i for i in texts if vocabulary.token_bytes[i] == b"b")
    rng = random.Random(seed)
    checked = 0
    while checked < 300:
        ids = [first, *rng.choices(texts, k=rng.randrange(1, 4))]
        try:
            written = b"".join(vocabulary.token_bytes[i] for i in ids).decode()
        except UnicodeDecodeError:  # decoders differ in what they make of it; grammars never do it
            continue
        assert tokenizer.decode(ids) == written
        checked += 1
    for text in ["ab", " ab", "a é b", "日本\n", "<s>", "</s>"]:
        ids = vocabulary.encode(text)
        assert b"".join(vocabulary.token_bytes[i] or b"?" for i in ids) == text.encode()
    return vocabulary


def test_a_byte_level_vocabulary(smollm2_tokenizer) -> None:
    vocabulary = check(smollm2_tokenizer, 0)
    assert vocabulary.eos
    assert all(vocabulary.token_bytes[i] is None for i in vocabulary.eos)
    ids = smollm2_tokenizer.encode([("template", "<|im_start|>")])
    assert vocabulary.token_bytes[ids[0]] is None


def test_a_vocabulary_with_byte_fallback() -> None:
    tokenizer = sentencepiece()
    vocabulary = check(tokenizer, 1)
    assert vocabulary.token_bytes[:3] == [None] * 3
    assert vocabulary.token_bytes[-5:] == [None] * 5
    assert vocabulary.token_bytes[3 + 0xC3] == b"\xc3"
    assert vocabulary.token_bytes[-6] == b"<0xZZ>"


def test_a_decoder_of_another_kind_is_refused_by_name() -> None:
    spec = sentencepiece().spec | {"decoder": {"type": "BPEDecoder", "suffix": "</w>"}}
    with pytest.raises(ModelError, match="BPEDecoder"):
        Vocabulary.of(make_tokenizer(spec, 300, 2))
