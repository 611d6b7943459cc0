"""What is drawn from the masks of realistic patterns matches them, to the last one."""

from __future__ import annotations

import random
import re

import pytest

from .realistic_patterns import PATTERNS
from .regex_walks import Sampler, compile_here, text_of
from .vocabularies import byte_vocabulary
from .walks import allowed

BYTES = byte_vocabulary()


def check(source: str, vocabulary, samples: int) -> None:
    pattern = re.compile(source)
    sampler = Sampler(compile_here(source, vocabulary), vocabulary, random.Random(source))
    for _ in range(samples):
        text = sampler.draw(random.Random(samples).randrange(5, 25))
        assert pattern.fullmatch(text), (source, text)


def test_there_are_a_hundred_patterns() -> None:
    assert len(set(PATTERNS)) == len(PATTERNS) == 100


@pytest.mark.parametrize("source", PATTERNS)
def test_a_few_samples(source: str, smollm2_vocabulary) -> None:
    check(source, BYTES, 5)
    check(source, smollm2_vocabulary, 5)


@pytest.mark.slow
@pytest.mark.parametrize("source", PATTERNS)
def test_five_hundred_samples(source: str, smollm2_vocabulary) -> None:
    check(source, BYTES, 500)
    check(source, smollm2_vocabulary, 500)


@pytest.mark.parametrize("source", PATTERNS[::25])
def test_a_mask_allows_all_that_can_go_on(source: str, smollm2_vocabulary) -> None:
    """Every token of the real vocabulary, one by one, against the walk of its bytes."""
    grammar = compile_here(source, smollm2_vocabulary)
    matcher, rng = grammar.start(), random.Random(source)
    for _ in range(2):
        place = matcher._place
        expected = {
            i
            for i, text in enumerate(smollm2_vocabulary.token_bytes)
            if text and grammar.automaton.advance(place, text)
        }
        found = set(allowed(matcher, smollm2_vocabulary))
        assert found - smollm2_vocabulary.eos == expected
        if not expected:
            break
        matcher.advance([rng.choice(sorted(expected))])


# Syntax that both libraries read in the same way.
SHARED = [
    one
    for one in PATTERNS
    if not re.search(r"\(\?[isxa]|\\b|\^|\$|\\[wWdDsS]|\\u|\\U|[^\x00-\x7f]|\\x", one)
]


@pytest.mark.parametrize("source", SHARED[::2])
def test_it_agrees_with_llguidance(source: str, smollm2_vocabulary) -> None:
    from branchline.grammar import Grammar
    from branchline.runtime.grammar.guidance import Guidance

    assert len(SHARED) > 25
    vocabulary = smollm2_vocabulary
    lark = Grammar("lark", "start: /" + source.replace("/", r"\/") + "/")
    theirs = Guidance(vocabulary).compile(lark).start()
    ours, rng, ids = compile_here(source, vocabulary).start(), random.Random(source), []
    for _ in range(12):
        choices, others = allowed(ours, vocabulary), allowed(theirs, vocabulary)
        if theirs.forced():  # it allows one token then, ours all that write the forced text
            assert set(others) <= set(choices), text_of(ids, vocabulary)
        else:
            assert choices == others, text_of(ids, vocabulary)
        assert (ours.accepting, ours.complete) == (theirs.accepting, theirs.complete)
        texts = sorted(set(choices) - vocabulary.eos)
        if not texts:
            break
        ids.append(rng.choice(texts))
        ours.advance(ids[-1:])
        theirs.advance(ids[-1:])
