"""Lark grammars and structural tags: what they match, and what they may not ask for."""

from __future__ import annotations

import json

import pytest

from branchline.errors import InvalidRequest
from branchline.grammar import Grammar
from branchline.runtime.grammar.guidance import Guidance, GuidanceGrammar

from .vocabularies import byte_vocabulary
from .walks import accepts

VOCABULARY = byte_vocabulary([b"<f", b"<fn=", b'{"', b"</fn>"])
GUIDANCE = Guidance(VOCABULARY)

EXPRESSION = r"""
start: sum                       // not <|special|>, "nor %json {"
sum: product (("+" | "-") product)*
product: NUMBER | "(" sum ")"
NUMBER: /[0-9]+(\.[0-9]+)?/
"""

OBJECT = {"type": "object", "required": ["a"], "additionalProperties": False}
TAGS = {
    "structures": [
        {
            "begin": "<fn=add>",
            "schema": OBJECT | {"properties": {"a": {"type": "integer"}}},
            "end": "</fn>",
        },
        {"begin": "<fn=ask>", "schema": {"type": "string"}, "end": "</fn>"},
        {"begin": "[[", "schema": True, "end": ""},
    ],
    "triggers": ["<fn", "[["],
}


def _compile(kind: str, source: str) -> GuidanceGrammar:
    return GUIDANCE.compile(Grammar(kind, source))  # type: ignore[arg-type]


def _accepts(grammar: GuidanceGrammar, text: str) -> bool:
    return accepts(grammar, VOCABULARY, VOCABULARY.encode(text))


@pytest.mark.parametrize(
    ("text", "right"),
    [("1", True), ("(1+2)-3.5", True), ("", False), ("(1", False), ("1++2", False), ("a", False)],
)
def test_an_expression(text: str, right: bool) -> None:
    assert _accepts(_compile("lark", EXPRESSION), text) is right


def test_an_inline_schema_is_written_as_schemas_are() -> None:
    source = f'start: "=" %json {json.dumps({"type": "array", "items": {"enum": [1, 2]}})} "."'
    grammar = _compile("lark", source)
    assert _accepts(grammar, "=[1, 2].")
    assert not _accepts(grammar, "=[1,2].")
    assert not _accepts(grammar, "=[3].")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "Empty grammar"),
        ("start: ((", "Expected token"),
        ("start: x", 'unknown name: "x"'),
        ("start: <|im_end|>", "<|im_end|> is a special token"),
        ('start: "a" <[2]>', "<[2]> is a special token"),
        ("start: a\na[temperature=0.5]: /x/", "temperature"),
        ('start: %json {"not": {}}', 'keyword "not" at #'),
        ('start: %json {"x-guidance": {"lenient": true}}', "x-guidance"),
        ("start: %json {", "not JSON"),
        ("start: /(?=a)b/", "look-around"),
        ("start: A\nA: A | /x/", "circular reference"),
        ("start: A\nA: /a/ & /b/", "no text matches"),
        ("start: " + "(" * 50_000, "deeply"),
        (f'start: "{"a" * 9000}"', "more than 8192 characters"),
        pytest.param("start: /(a{1000}){1000}/", "its first step takes", marks=pytest.mark.slow),
    ],
)
def test_refused_lark(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        _compile("lark", source)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("", True),
        ("only text, even <f n> and [", True),
        ('so <fn=add>{"a": 1}</fn>', True),
        ('<fn=add>{"a": 1}</fn>\nand <fn=ask>"why"</fn>, [[null', True),
        ("<fn", False),
        ("<fn=ad", False),
        ("<fn=mul>", False),
        ("<fn=add>", False),
        ('<fn=add>{"a": "x"}</fn>', False),
        ('<fn=add>{"a": 1}', False),
        ("[[x", False),
    ],
)
def test_structural_tags(text: str, right: bool) -> None:
    assert _accepts(_compile("structural_tag", json.dumps(TAGS)), text) is right


def test_what_follows_a_trigger_is_forced() -> None:
    matcher = _compile("structural_tag", json.dumps(TAGS)).start()
    matcher.advance(VOCABULARY.encode("<fn=ad"))
    forced = b"".join(VOCABULARY.token_bytes[i] or b"" for i in matcher.forced())
    assert forced == b'd>{"a": '


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"structures": []}, "structures: List should have at least 1 item"),
        ({"triggers": []}, "triggers: List should have at least 1 item"),
        ({"triggers": ["<fn"]}, "'[[' begins with 0 of the triggers"),
        ({"triggers": ["<fn", "<f", "[["]}, "'<fn=add>' begins with 2 of the triggers"),
        ({"triggers": [""]}, "triggers.0"),
        ({"at_least_one": True}, "at_least_one: Extra inputs"),
        ({"structures": [{"begin": "[[", "schema": {"not": {}}, "end": ""}]}, '"not" at #'),
    ],
)
def test_refused_tags(change: dict, reason: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        _compile("structural_tag", json.dumps(TAGS | change))
    assert reason in str(error.value)
