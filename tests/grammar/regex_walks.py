"""Regular expressions compiled in this process, and outputs drawn from their masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from branchline.runtime.grammar.automaton import determinize
from branchline.runtime.grammar.byte_automaton import ByteAutomaton
from branchline.runtime.grammar.pattern import parse
from branchline.runtime.grammar.regex import CompiledRegex

from .walks import allowed

if TYPE_CHECKING:
    import random

    from branchline.runtime.grammar.regex import RegexMatcher
    from branchline.runtime.grammar.vocabulary import Vocabulary


def compile_here(source: str, vocabulary: Vocabulary) -> CompiledRegex:
    """A regex's grammar, without the process that builds it elsewhere."""
    return CompiledRegex(ByteAutomaton(determinize(parse(source))), vocabulary)


def text_of(ids: list[int], vocabulary: Vocabulary) -> bytes:
    return b"".join(vocabulary.token_bytes[i] or b"" for i in ids)


def nearest_end(grammar: CompiledRegex) -> list[int]:
    """For each state, how many characters the shortest way to a match has."""
    table, distance = grammar.automaton.table, np.full(len(grammar.automaton.table), 10**6)
    distance[grammar.automaton.accepting_states] = 0
    for _ in table:
        nearer = np.where(table > 0, distance[table], 10**6).min(axis=1) + 1
        better = np.minimum(distance, nearer)
        if (better == distance).all():
            break
        distance = better
    return distance.tolist()


class Sampler:
    """Draws outputs from the masks at temperature 1 over equal logits, jumping forward.

    A walk that has become long takes the characters that lead to the nearest end.
    """

    def __init__(self, grammar: CompiledRegex, vocabulary: Vocabulary, rng: random.Random) -> None:
        self._grammar, self._vocabulary, self._rng = grammar, vocabulary, rng
        self._choices: dict[int, list[int]] = {}
        self._distance = nearest_end(grammar)
        self._bytes = {
            text: i for i, text in enumerate(vocabulary.token_bytes) if text and len(text) == 1
        }

    def draw(self, length: int) -> str:
        matcher, ids = self._grammar.start(), []
        while not matcher.complete:
            tokens = matcher.forced()
            if not tokens:
                if matcher.accepting and (len(ids) >= length or self._rng.random() < 0.1):
                    break
                tokens = self._towards_end(matcher) if len(ids) >= length else [self._any(matcher)]
            matcher.advance(tokens)
            ids += tokens
        assert matcher.accepting
        return text_of(ids, self._vocabulary).decode()

    def _any(self, matcher: RegexMatcher) -> int:
        place = matcher._place
        if place not in self._choices:
            choices = set(allowed(matcher, self._vocabulary)) - self._vocabulary.eos
            self._choices[place] = sorted(choices)
        return self._rng.choice(self._choices[place])

    def _towards_end(self, matcher: RegexMatcher) -> list[int]:
        automaton = self._grammar.automaton
        state = automaton.state(matcher._place)
        if state is None:  # inside a character: any byte that may come
            byte = next(b for b in range(256) if automaton.advance(matcher._place, bytes([b])))
            return [self._bytes[bytes([byte])]]
        row = automaton.table[state]
        leading = [one for one in range(len(row)) if row[one]]
        best = min(leading, key=lambda one: self._distance[row[one]])
        first = np.flatnonzero(automaton.classes == best)[0]
        text = chr(automaton.starts[first]).encode()
        return [self._bytes[bytes([byte])] for byte in text]
