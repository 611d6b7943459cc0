"""What a pattern means is what `re.fullmatch` says, and what cannot be meant is refused by name."""

from __future__ import annotations

import itertools
import re

import pytest

from branchline.runtime.grammar.automaton import determinize
from branchline.runtime.grammar.byte_automaton import ByteAutomaton
from branchline.runtime.grammar.pattern import MAX_POSITIONS, parse

# Cases and look-alikes, digits and spaces of other scripts, newlines, every length in UTF-8.
ALPHABET = "aBkK\u212aſ_0٣ \u00a0\n\réß€😀-"
TEXTS = ["".join(one) for n in range(3) for one in itertools.product(ALPHABET, repeat=n)]
LINES = ["".join(one) for n in range(6) for one in itertools.product("a-\n", repeat=n)]

MEANT = [
    "",
    "a|",
    ".",
    "(?s:.)",
    r"\w",
    r"\W\W?",
    r"\d|\D\d",
    r"\s+",
    r"\S*",
    r"(?a:\w+)",
    r"(?a)\W|\d",
    r"(?a:\s)\s",
    "[^a]",
    r"[^\W\d_]",
    r"[\w-]",
    r"[\W_]+",
    r"[a-k€]",
    "(?i)k",
    "(?i)[a-k]+",
    "(?i)[^k]",
    "(?i)ß|S",
    "(?ai)k",
    "(?i:a)b|(?-i:a)B",
    r"(?i)\u212a",
    r"(?i)[\d_k]",
    "a{2}|k{1,}?",
    "a??B*?",
    "(?P<name>a|B)+",
    "(?x) a  B # a comment",
    "(?#comment)a",
    r"\x61|\u20ac|\U0001f600|\141",
    r"\N{EURO SIGN}",
    r"a\-|[\]a]",
    "a{,2}",
    "[a-c-]|]",
    "a{x}",  # no quantifier
    "(?:a|a?)*",
]

ANCHORED = [
    "^a$",
    "a$\n?",
    "a$\n\n?",
    r"a\Z",
    r"a\Z\n",
    "a^|-",
    "(?m)a$\n^-",
    "(?m)^a*$\n?^$",
    "(?m)(?:^a$\n?)+",
    "(?:^|a)+-",
    r"\ba\b",
    r"\b-|-\Ba?",
    r"(?:a|\b|-)+",
    r"\B|a",
    r"\B\n",
    r"(?a:\b)a",
    r"\Aa|-\A",
    r"(?:a\b|-)*$",
    r"(?m:$\n?){2}a?",
    r"(?s:.*)$\n",
]


def check(source: str, texts: list[str]) -> None:
    automaton = ByteAutomaton(determinize(parse(source)))
    pattern = re.compile(source)
    for text in texts:
        place = automaton.advance(automaton.start, text.encode())
        assert automaton.accepting(place) == bool(pattern.fullmatch(text)), (source, text)


@pytest.mark.parametrize("source", MEANT)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_it_matches_what_re_matches(source: str) -> None:
    assert any(re.fullmatch(source, text) for text in TEXTS) or source == "a{x}"
    check(source, [*TEXTS, "a{x}"])


@pytest.mark.parametrize("source", ANCHORED)
def test_anchors_and_boundaries(source: str) -> None:
    if any(re.fullmatch(source, text) for text in LINES):
        check(source, LINES)
    else:
        with pytest.raises(ValueError, match="matches no text"):
            parse_whole(source)


@pytest.mark.parametrize("source", [r"\w", r"\d", r"\s", "(?i)[k-ſ]", r"(?i)[^\u0300-\u03ff]", "."])
def test_every_character(source: str) -> None:
    automaton = determinize(parse(source))
    pattern = re.compile(source)
    runs = zip(automaton.starts, automaton.classes, [*automaton.starts[1:], 0x110000], strict=True)
    for start, one, end in runs:
        for code in (*range(start, min(end, start + 40)), *range(max(start, end - 40), end)):
            matches = bool(pattern.fullmatch(chr(code))) and not 0xD800 <= code <= 0xDFFF
            assert bool(automaton.table[1, one]) == matches, hex(code)


def parse_whole(source: str) -> None:
    determinize(parse(source))


REFUSED = {
    "(": "missing \\)",
    ")": "unbalanced parenthesis",
    "[": "unterminated character set",
    "*a": "nothing to repeat",
    "a**": "multiple repeat",
    "a{2,1}": "min repeat greater than max repeat",
    "\\": "bad escape",
    r"\q": "bad escape",
    "(?P<1>a)": "bad character in group name",
    "(?L)a": "cannot use 'L' flag",
    "a(?i)b": "global flags not at the start",
    "(?=a)a": "look-ahead",
    "(?!b)a": "negative look-ahead",
    "(?<=a)b": "look-behind",
    "a(?<!b)": "negative look-ahead or look-behind",
    r"(a)\1": "back-reference",
    "(?P<x>a)(?P=x)": "back-reference",
    "(a)?(?(1)b|c)": "conditional group",
    "(?>a)b": "atomic group",
    "a*+": "possessive quantifier",
    r"[^\w\W]": "matches no text",
    "\ud800": "matches no text",
    "(a{1000}){1000}": f"1000000 positions .* at most {MAX_POSITIONS}",
    "(?:){1000000}": "1000000 positions",
    "a{99999999999}": "repetition number is too large",
    "(" * 3000 + ")" * 3000: "nested too deeply",
    "(a|b)*a(a|b){20}": "more than 20000 states",
}


@pytest.mark.parametrize("source", REFUSED, ids=lambda source: source[:20])
def test_a_bad_pattern_is_refused_and_says_why(source: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[source]):
        parse_whole(source)


@pytest.mark.parametrize(
    ("source", "states"),
    [
        ("a|b|c", 2),
        ("foobar|bar", 7),  # the ends are shared
        ("(?:ab|cb|eb)*", 2),
        ("a{0,3}", 4),
        ("(?:a|b)*abb", 4),  # the textbook's
        (r"\d\d|[0-9]\d|\d[0-9]", 3),
    ],
)
def test_the_automaton_is_minimal(source: str, states: int) -> None:
    assert len(determinize(parse(source)).table) == 1 + states
