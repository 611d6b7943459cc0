"""GBNF against Python's `re` and against languages that no regular expression has."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchline.errors import InvalidRequest
from branchline.grammar import Grammar
from branchline.runtime.grammar.guidance import Guidance, GuidanceGrammar

from .vocabularies import byte_vocabulary
from .walks import accepts

VOCABULARY = byte_vocabulary()
GUIDANCE = Guidance(VOCABULARY)
LONGEST = 4
TEXTS = ["".join(text) for n in range(LONGEST + 1) for text in itertools.product("ab-", repeat=n)]

# Expressions in GBNF, and the same as Python's regular expressions.
ATOMS = [('"a"', "a"), ('"ba"', "(?:ba)"), ("[ab]", "[ab]"), ("[^a]", "[^a]"), ("[a-]", "[a\\-]")]
ATOMS += [(".", "(?:.|\\n)"), ('"\\x61"', "a"), ("[\\u0061-b]", "[a-b]"), ('""', "")]
PARTS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (" ".join(p[0] for p in parts), "".join(p[1] for p in parts))
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (
                f"({' | '.join(p[0] for p in parts)})",
                f"(?:{'|'.join(p[1] for p in parts)})",
            )
        ),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}"])).map(
            lambda pair: (f"({pair[0][0]}){pair[1]}", f"(?:{pair[0][1]}){pair[1]}")
        ),
    ),
    max_leaves=6,
)


def _compile(source: str) -> GuidanceGrammar:
    return GUIDANCE.compile(Grammar("ebnf", source))


def _accepts(grammar: GuidanceGrammar, text: str) -> bool:
    return accepts(grammar, VOCABULARY, VOCABULARY.encode(text))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(PARTS, PARTS, st.booleans())
def test_the_same_texts_as_a_regular_expression(
    first: tuple[str, str], second: tuple[str, str], named: bool
) -> None:
    """Also where a rule could take all of the text, and what follows it needs some."""
    middle = "x-1" if named else f"({first[0]})"
    grammar = _compile(f'root ::= {middle} {second[0]} # "end\nx-1 ::= {first[0]}\n')
    pattern = re.compile(f"(?:{first[1]})(?:{second[1]})")
    wrong = [t for t in TEXTS if _accepts(grammar, t) != bool(pattern.fullmatch(t))]
    assert not wrong, pattern


def test_recursion() -> None:
    """Balanced parentheses, and as many b as a."""
    balanced = _compile('root ::= ("(" root ")")*')
    equal = _compile('root ::= "a" root "b" | "a" "b"')
    for text in ("".join(t) for n in range(7) for t in itertools.product("()", repeat=n)):
        depths = list(itertools.accumulate({"(": 1, ")": -1}[char] for char in text))
        assert _accepts(balanced, text) == (min([0, *depths]) == 0 == [0, *depths][-1]), text
    for text in TEXTS:
        half = len(text) // 2
        assert _accepts(equal, text) == (half > 0 and text == "a" * half + "b" * half), text


def test_alternatives_may_go_on_in_the_next_line() -> None:
    grammar = _compile(
        'root ::= "é" |\n  b # a comment | "c"\n  | [^ -~]{2}\n\nb ::= "\\U0001F600"'
    )
    assert [t for t in ("é", "😀", "ü\n", "c", "") if _accepts(grammar, t)] == ["é", "😀", "ü\n"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "there is no rule 'root'"),
        ('x ::= "a"', "there is no rule 'root'"),
        ("root ::= x", "there is no rule 'x'"),
        ('root ::= "a"\nroot ::= "b"', "two rules 'root'"),
        ('"a"', "not with a rule"),
        ('root ::= ("a"', "not closed"),
        ('root ::= "a")', "not opened"),
        ('root ::= ("a"\nx ::= "b"', "not closed"),
        ("root ::= *", "follows nothing"),
        ("root ::= (+)", "follows nothing"),
        ('root ::= "\\q"', "no escape \\q"),
        ("root ::= [\\ud800]", "no character"),
        ('root ::= "a\n"', "not GBNF at '\"a"),
        ('root ::= "a"\n\n  = "b"', "line 3: not GBNF"),
        ("root ::= <think>", "line 1: not GBNF at '<think>'"),
        ("root ::= [z-a]", "invalid character class range"),
    ],
)
def test_refused(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        _compile(source)
    assert reason in str(error.value)
