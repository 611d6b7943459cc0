"""Forced tokens where the model's own tokens and the tokenizer's differ, or text is rewritten."""

from __future__ import annotations

import pytest

from branchline.runtime.grammar.vocabulary import Vocabulary

from .regex_walks import compile_here, text_of
from .vocabularies import byte_vocabulary


def forced_after(source: str, vocabulary: Vocabulary, ids: list[int]) -> bytes:
    matcher = compile_here(source, vocabulary).start()
    matcher.advance(ids)
    return text_of(matcher.forced(), vocabulary)


def ids_of(vocabulary: Vocabulary, *texts: bytes) -> list[int]:
    return [vocabulary.token_bytes.index(text) for text in texts]


VOCABULARY = byte_vocabulary([b"ab", b"abc", b"bcd", b"de", b"\xc3\xa9f", b"f\xc3"])


@pytest.mark.parametrize(
    ("source", "before", "forced"),
    [
        ("abcde", (), b"abcde"),  # nothing follows: the last token stays
        ("abcd[x-z]", (), b"abcd"),  # no token goes on with x
        ("abcd[e-z]", (), b"abc"),  # "de" does
        ("abc[d-z]", (), b""),  # "bcd" begins inside "abc", which would be in its way
        ("abcd", (b"ab",), b""),  # the tokenizer would have written "abc"
        ("abde", (b"ab",), b"de"),
        ("xabxab", (b"x", b"a", b"b"), b"xab"),  # not the tokenizer's "ab", but b, x is
        ("abc", (b"a",), b""),  # alone "a", together "abc"
        ("éf[a-z]", (), "éf".encode()),
        ("é[a-f]", (), b""),
        ("f[éè]", (), b""),  # "f" and the first byte of both are one token
        ("x[éè]", (), b"x"),  # not half a character, though both begin with it
        ("x?ab", (), b""),
        ("(?:ab)?", (), b""),  # it may end before
        ("a(?:b|$)", (), b""),
        ("é", (b"\xc3",), b""),  # inside a character
        ("", (), b""),
    ],
)
def test_what_is_forced(source: str, before: tuple[bytes, ...], forced: bytes) -> None:
    assert forced_after(source, VOCABULARY, ids_of(VOCABULARY, *before)) == forced


def test_only_the_end_of_a_long_output_is_read_again() -> None:
    seen = []

    def encode(text: str) -> list[int]:
        seen.append(text)
        return list(text.encode())

    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)], frozenset(), encode)
    matcher = compile_here("a{300}bcd", vocabulary).start()
    matcher.advance([97] * 300)
    assert text_of(matcher.forced(), vocabulary) == b"bcd"
    assert max(map(len, seen)) < 320


def test_a_tokenizer_that_rewrites_text_forces_only_what_it_writes_right() -> None:
    plain = byte_vocabulary()
    vocabulary = Vocabulary(
        plain.token_bytes, plain.eos, lambda text: plain.encode(text.replace("ﬁ", "fi"))
    )
    assert forced_after("diﬁcult", vocabulary, []) == b"di"


def test_json_with_the_real_tokenizer(smollm2_vocabulary) -> None:
    vocabulary = smollm2_vocabulary
    grammar = compile_here(r'\{"name": "(?:Ann|Bob)", "age": [0-9]+\}', vocabulary)
    matcher, text = grammar.start(), b""
    for choice in (b"Bob", b"7"):
        forced = matcher.forced()
        assert vocabulary.encode(text_of(forced, vocabulary).decode()) == forced
        matcher.advance(forced)
        chosen = ids_of(vocabulary, choice)
        matcher.advance(chosen)
        text += text_of(forced + chosen, vocabulary)
    assert text == b'{"name": "Bob", "age": 7'
    assert matcher.forced() == []  # another digit, or the end
