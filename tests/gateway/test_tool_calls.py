"""Calls are read from text wherever it is cut, and the grammar accepts just what is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchline.call_grammar import call_grammar
from branchline.gateway.tool_calls import Call, CallReader, written

NAMES = ("f", "g")
texts = st.text(st.sampled_from("<tool_cal>/ \n{x"), max_size=12).filter(
    lambda text: "<tool_call>" not in text
)
arguments = st.dictionaries(
    st.text(max_size=3),
    st.one_of(st.text(max_size=5), st.integers(), st.just("</tool_call>"), st.just("é\n")),
    max_size=2,
)
calls = st.tuples(st.sampled_from(NAMES), arguments)


@given(st.lists(st.tuples(texts, calls), max_size=3), texts, st.data())
def test_calls_and_texts_come_back(
    parts: list[tuple[str, tuple[str, dict]]], last: str, data: st.DataObject
) -> None:
    whole = "".join(text + written(name, given) for text, (name, given) in parts) + last
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    reader = CallReader(NAMES)
    read: list[str | Call] = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        read += reader.feed(whole[start:end])
    read += reader.finish()
    made = [(one.name, json.loads(one.arguments)) for one in read if isinstance(one, Call)]
    assert made == [call for _, call in parts]
    assert reader.calls == len(parts)
    # White space before a call, and after the last, is not said; everything else is.
    said = "".join(one for one in read if isinstance(one, str))
    wanted = "".join(text.rstrip() for text, _ in parts)
    wanted += last if not parts or last.strip() else ""
    assert said == wanted


def test_text_is_said_as_soon_as_it_is_certain() -> None:
    reader = CallReader(NAMES)
    assert reader.feed("a <") == ["a"]
    assert reader.feed("b") == [" <b"]
    assert reader.feed(" <tool_cal") == []
    assert reader.feed("m") == [" <tool_calm"]
    assert reader.finish() == []


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        "<tool_call>no JSON</tool_call>",
        "<tool_call>5</tool_call>",
        '<tool_call>{"name": ["f"]}</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_what_calls_nothing_is_text(text: str) -> None:
    reader = CallReader(NAMES)
    assert [*reader.feed(text), *reader.finish()] == [text]
    assert reader.calls == 0


def test_a_list_is_several_calls() -> None:
    text = '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_call>'
    read = CallReader(NAMES).feed(text)
    assert [(one.name, one.arguments) for one in read if isinstance(one, Call)] == [
        ("f", '{"a": 1}'),
        ("g", "{}"),
    ]


SCHEMAS = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "g": {"type": "object", "properties": {}},
}
F, G = written("f", {"a": 5}), written("g", {})


@pytest.mark.parametrize(
    ("text", "free", "several"),
    [  # where it is accepted: free or not, several or one
        (F, (True, False), (True, False)),
        (G, (True, False), (True, False)),
        (f"{F}\n{G}\n{F}", (True, False), (True,)),
        ("Sure: " + G, (True,), (True, False)),
        ("Sure.\n<tool_cal> <tool", (True,), (True, False)),
        ("", (True,), (True, False)),
        (written("f", {"a": "5"}), (), ()),
        (written("f", {}), (), ()),
        (written("h", {}), (), ()),
        (F + " I did.", (), ()),
        ("<tool_call>", (), ()),
        ("Sure: <tool_call>no", (), ()),
    ],
)
def test_the_grammar_accepts_calls_and_what_may_be_beside_them(
    text: str, free: tuple, several: tuple
) -> None:
    for is_free in (True, False):
        for are_several in (True, False):
            grammar = call_grammar(SCHEMAS, free=is_free, several=are_several)
            assert grammar.kind == "lark"
            wanted = is_free in free and are_several in several
            assert _accepts(grammar.source, text) == wanted, (is_free, are_several)


def _accepts(lark: str, text: str) -> bool:
    llguidance = pytest.importorskip("llguidance")
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]
    tokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Bytes(tokens)), n_vocab=len(tokens)
    )
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(lark))
    assert not matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


class _Bytes:
    """A tokenizer whose tokens are the bytes."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.special_token_ids = [256]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())
