"""A matcher over llguidance against every string that its grammar has."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext

import pytest

from branchline.errors import InvalidRequest
from branchline.grammar import Grammar
from branchline.runtime.grammar.guidance import Guidance, GuidanceGrammar
from branchline.runtime.grammar.vocabulary import Vocabulary

from .vocabularies import EOS, byte_vocabulary
from .walks import allowed, sample

WORDS = [b"ab", b"abc", b'{"', b'":', b": ", b'"}', b"tr", b"true", b"null", b"\xa9\xf0", b"\xc3"]
VOCABULARY = byte_vocabulary(WORDS)
GUIDANCE = Guidance(VOCABULARY)

# Grammars and all of their texts.
FINITE = [
    ("lark", 'start: "a" ("b" | "bc")? | "é😀"', ["a", "ab", "abc", "é😀"]),
    ("lark", 'start: ""', [""]),
    ("lark", "start: A A\nA: /[ab]?/", ["", "a", "b", "aa", "ab", "ba", "bb"]),
    ("ebnf", 'root ::= x "b"\nx ::= "a"{0,2} | "ab"', ["b", "ab", "aab", "abb"]),
    ("json_schema", '{"enum": [true, "ab", null]}', ["true", '"ab"', "null"]),
    (
        "json_schema",
        """{"properties": {"a": {"type": "boolean"}, "ab": {"const": null}}, "type": "object",
            "additionalProperties": false, "required": ["ab"]}""",
        ['{"ab": null}', '{"a": true, "ab": null}', '{"a": false, "ab": null}'],
    ),
]


def _compile(kind: str, source: str, vocabulary: Vocabulary = VOCABULARY) -> GuidanceGrammar:
    guidance = GUIDANCE if vocabulary is VOCABULARY else Guidance(vocabulary)
    return guidance.compile(Grammar(kind, source))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "source", "texts"), FINITE)
def test_masks_equal_the_enumeration(kind: str, source: str, texts: list[str]) -> None:
    """Every reachable text: its allowed tokens are those that keep some text of the grammar's.

    Where bytes are forced, one way to write them is enough, and the tokenizer's is left.
    """
    whole = {text.encode() for text in texts}
    prefixes = {text[:n] for text in whole for n in range(len(text) + 1)}
    rest = [(b"", _compile(kind, source).start())]
    seen: set[bytes] = set()
    while rest:
        done, matcher = rest.pop()
        expected = {
            i for i, text in enumerate(VOCABULARY.token_bytes) if text and done + text in prefixes
        }
        assert matcher.accepting == (done in whole)
        assert matcher.complete == (done in whole and not expected), done
        ids = set(allowed(matcher, VOCABULARY))
        assert (EOS in ids) == matcher.accepting
        ids.discard(EOS)
        firsts = {text[len(done)] for text in whole if text.startswith(done) and text != done}
        if len(firsts) == 1 and done not in whole and ids != expected:
            assert len(ids) == 1
            assert ids < expected
        else:
            assert ids == expected
        for token in ids:
            text = done + (VOCABULARY.token_bytes[token] or b"")
            if text not in seen:
                seen.add(text)
                after = matcher.copy()
                after.advance([token])
                rest.append((text, after))
    assert whole - {b""} <= seen


@pytest.mark.parametrize(("kind", "source", "texts"), FINITE)
def test_forced_tokens_begin_every_continuation(kind: str, source: str, texts: list[str]) -> None:
    """And where a grammar has one text, they are how the tokenizer writes it."""
    rng = random.Random(1)
    for _ in range(20):
        matcher = _compile(kind, source).start()
        done = b""
        while not matcher.complete:
            forced = b"".join(VOCABULARY.token_bytes[i] or b"" for i in matcher.forced())
            left = [text.encode() for text in texts if text.encode().startswith(done)]
            assert all(text.startswith(done + forced) for text in left)
            assert not forced or not matcher.accepting
            ids = [token for token in allowed(matcher, VOCABULARY) if token != EOS]
            token = rng.choice(ids)
            matcher.advance([token])
            done += VOCABULARY.token_bytes[token] or b""


@pytest.mark.parametrize("text", ["abcab true", "a", '{"a": null}', "é😀"])
def test_a_single_text_is_forced_as_the_tokenizer_writes_it(text: str) -> None:
    matcher = _compile("lark", f"start: {json.dumps(text, ensure_ascii=False)}").start()
    assert matcher.forced() == VOCABULARY.encode(text)
    matcher.advance(matcher.forced())
    assert matcher.complete
    assert matcher.forced() == []


def test_a_last_forced_token_that_could_merge_is_left_out() -> None:
    # "ab" is forced, and the tokenizer would write "ab" and "c" as one.
    matcher = _compile("lark", 'start: "ab" ("c" | "d")').start()
    assert matcher.forced() == []
    assert set(allowed(matcher, VOCABULARY)) == set(
        VOCABULARY.encode("a") + VOCABULARY.encode("ab")
    ) | {VOCABULARY.encode("abc")[0]}


def test_copies_move_on_their_own() -> None:
    matcher = _compile("lark", "start: /[ab]*c/").start()
    matcher.advance(VOCABULARY.encode("ba"))
    before = allowed(matcher, VOCABULARY)
    twin = matcher.copy()
    twin.advance(VOCABULARY.encode("c"))
    assert twin.complete
    assert not matcher.accepting
    assert allowed(matcher, VOCABULARY) == before


def test_two_starts_share_nothing() -> None:
    grammar = _compile("json_schema", '{"type": "array"}')
    one, other = grammar.start(), grammar.start()
    one.advance(VOCABULARY.encode("[1"))
    assert set(allowed(other, VOCABULARY)) == set(VOCABULARY.encode("["))


@pytest.mark.parametrize("ends", [frozenset(), frozenset({3, 40}), frozenset({256, 300})])
@pytest.mark.parametrize("size", [288, 301, 320])
def test_every_end_is_in_the_mask_exactly_when_accepting(ends: frozenset[int], size: int) -> None:
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    tokens += [None] * (size - 256)
    ends = frozenset(end for end in ends if end < size)
    vocabulary = Vocabulary(tokens, ends, lambda text: list(text.encode()))
    matcher = _compile("lark", "start: /[ab]+/", vocabulary).start()
    letters = {ord("a"), ord("b")}
    assert set(allowed(matcher, vocabulary)) == letters
    matcher.advance([ord("a")])
    assert set(allowed(matcher, vocabulary)) == letters | ends


def test_what_the_mask_does_not_allow_is_a_bug_of_the_callers() -> None:
    matcher = _compile("lark", 'start: "a" "b"').start()
    with pytest.raises(AssertionError):
        matcher.advance(VOCABULARY.encode("b"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('start: "a" b | "a" "c"{30}\nb: B\nB: /x/ & /y/', None),
        ('start: "a" "b"? b\nb: B\nB: /x/ & /y/', "no text"),
        ('start: ("a" | "c") c\nc: "b" c', "Too many items"),
    ],
    ids=["a way out", "dead", "endless"],
)
def test_a_text_that_nothing_completes(source: str, reason: str | None) -> None:
    """It is an error of the matcher's, after which the request is over."""
    grammar = _compile("lark", source)
    matcher = grammar.start()
    with pytest.raises(InvalidRequest) if reason else nullcontext() as error:
        while not matcher.complete:
            matcher.advance([allowed(matcher, VOCABULARY)[0]])
    assert error is None or str(reason) in str(error.value)


def test_the_real_vocabulary(smollm2_vocabulary: Vocabulary) -> None:
    """Forced text is written as the tokenizer writes it, special tokens never occur."""
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ann", "Bob"]}, "ages": {"type": "array", "maxItems": 2,
                       "items": {"type": "integer", "minimum": 0, "maximum": 99}}},
        "required": ["name", "ages"], "additionalProperties": False,
    }  # fmt: skip
    grammar = _compile("json_schema", json.dumps(schema), smollm2_vocabulary)
    # No token begins with the last one and goes on with A or B, so nothing can merge with it.
    assert grammar.start().forced() == smollm2_vocabulary.encode('{"name": "')
    rng = random.Random(0)
    for _ in range(30):
        output = sample(grammar, smollm2_vocabulary, rng)
        assert output is not None
        value = json.loads(output)
        assert value["name"] in {"Ann", "Bob"}
        assert all(0 <= age < 100 for age in value["ages"])
