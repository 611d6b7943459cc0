"""Allowed and forced tokens against an oracle that lists every text a pattern matches."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .regex_walks import compile_here, text_of
from .vocabularies import EOS, byte_vocabulary
from .walks import allowed

# One, two and three bytes, a word character or not, and the character that anchors ask about.
ALPHABET = "aé€\n"
LONGEST = 6
TEXTS = ["".join(one) for n in range(LONGEST + 1) for one in itertools.product(ALPHABET, repeat=n)]
WORDS = ["aa", "aé", "é€", "\na", "éaé", "€€", "aaaa"]
BROKEN = [b"\xc3", b"a\xc3", b"\xa9a", b"\xe2\x82", b"\x82\xac\n", b"\xac\xe2"]
VOCABULARY = byte_vocabulary([*(word.encode() for word in WORDS), *BROKEN])

SINGLE = ["a", "é", "€", r"\n", "[aé]", "[é€]", r"[a\n]", "(?:a|€)", "(?i:€)"]
NOTHING = ["^", "$", r"\b", r"\B", r"\A", r"\Z", "(?m:^)", "(?m:$)", ""]


@st.composite
def patterns(draw: st.DrawFn, longest: int = LONGEST, depth: int = 3) -> str:
    """A pattern that matches no text longer than `longest`."""
    kinds = ["nothing"] + ["single"] * (longest > 0) + ["and", "or", "times"] * (2 * (depth > 0))
    kind = draw(st.sampled_from(kinds[::-1]))
    if kind == "nothing":
        return draw(st.sampled_from(NOTHING))
    if kind == "single":
        return draw(st.sampled_from(SINGLE))
    if kind == "or":
        return f"(?:{draw(patterns(longest, depth - 1))}|{draw(patterns(longest, depth - 1))})"
    if kind == "and":
        first = draw(st.integers(0, longest))
        return draw(patterns(first, depth - 1)) + draw(patterns(longest - first, depth - 1))
    most = draw(st.integers(1, 3))
    least = draw(st.integers(0, most))
    # Repetitions in repetitions in repetitions would keep `re` itself busy for hours.
    inner = draw(patterns(longest // most, min(depth - 1, 1)))
    return f"(?:{inner}){{{least},{most}}}{draw(st.sampled_from(['', '?']))}"


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=patterns(), seed=st.integers(0, 2**32))
def test_allowed_and_forced_tokens_are_the_oracles(source: str, seed: int) -> None:
    pattern = re.compile(source)
    matches = [text.encode() for text in TEXTS if pattern.fullmatch(text)]
    if not matches:
        with pytest.raises(ValueError, match="matches no text"):
            compile_here(source, VOCABULARY)
        return
    grammar = compile_here(source, VOCABULARY)
    rng = random.Random(seed)
    prefixes = {text[:end] for text in matches for end in range(len(text) + 1)}
    for _ in range(5):
        walk(grammar.start(), matches, prefixes, rng)


def walk(matcher, matches: list[bytes], prefixes: set[bytes], rng: random.Random) -> None:
    ids: list[int] = []
    while True:
        before = text_of(ids, VOCABULARY)
        rest = [text[len(before) :] for text in matches if text.startswith(before)]
        expected = {
            i for i, text in enumerate(VOCABULARY.token_bytes) if text and before + text in prefixes
        }
        assert set(allowed(matcher, VOCABULARY)) == expected | ({EOS} if b"" in rest else set())
        assert matcher.accepting == (b"" in rest)
        assert matcher.complete == (rest == [b""])
        check_forced(matcher, ids, rest, prefixes)
        if not expected:
            return
        ids.append(rng.choice(sorted(expected)))
        copy = matcher.copy()
        copy.advance(ids[-1:])
        assert set(allowed(matcher, VOCABULARY)) == expected | ({EOS} if b"" in rest else set())
        matcher = copy


def forced_text(rest: list[bytes]) -> bytes:
    """The characters that every text in `rest` begins with, as far as none of them ends."""
    common = b""
    while common not in rest:
        longer = {one[: len(common) + 1] for one in rest}
        if len(longer) > 1:
            break
        common = longer.pop()
    while True:
        try:
            return common.decode().encode()
        except UnicodeDecodeError:
            common = common[:-1]


def check_forced(matcher, ids: list[int], rest: list[bytes], prefixes: set[bytes]) -> None:
    forced = matcher.forced()
    before = text_of(ids, VOCABULARY)
    try:
        before.decode()
    except UnicodeDecodeError:  # inside a character
        assert forced == []
        return
    text = forced_text(rest)
    written = text_of(forced, VOCABULARY)
    assert text.startswith(written)
    written.decode()
    if VOCABULARY.encode(before.decode()) != ids or len(ids) > 8:
        return  # the model wrote it in tokens of its own; see test_forcing
    together = VOCABULARY.encode((before + text).decode())
    if together[: len(ids)] != ids:
        assert forced == []
        return
    # Where a token could begin that is the end of the forced text and part of what follows.
    settled = min(
        (
            begin
            for begin in range(len(text))
            for token in VOCABULARY.token_bytes
            if token and len(token) > len(text) - begin and token.startswith(text[begin:])
            if before + text[:begin] + token in prefixes
        ),
        default=len(text),
    )
    expected, kept = together[len(ids) :], []
    for count in range(len(expected) + 1):
        written = text_of(expected[:count], VOCABULARY)
        whole = written.decode(errors="replace").encode() == written
        if len(written) <= settled and whole:
            kept = expected[:count]
    assert forced == kept
