"""Regular expressions as grammars: Python's syntax, and what `re.fullmatch` says of it.

::

    source ──▶ nodes ──▶ states over characters ──▶ places over bytes ──▶ masks, forced tokens
       pattern.py  automaton.py       byte_automaton.py       masks.py, forcing.py

All but the last runs in a process of its own (`pattern_process.py`) and gives small arrays; the
last belongs to a vocabulary and is computed where it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from branchline.errors import InvalidRequest
from branchline.runtime.grammar.forcing import TAIL, Forcing
from branchline.runtime.grammar.masks import MaskMaker
from branchline.runtime.grammar.pattern_process import PatternProcesses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.runtime.grammar.byte_automaton import ByteAutomaton
    from branchline.runtime.grammar.vocabulary import Vocabulary

_AHEAD = 16  # states whose masks are there before the first token is asked for


class RegexCompiler:
    """Compiles patterns for one vocabulary. Safe to use from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._processes = PatternProcesses()

    def compile(self, source: str) -> CompiledRegex:
        """The grammar of the texts that `source` matches as a whole.

        Raises:
            InvalidRequest: it is not Python's syntax, has what no automaton can follow, matches
                nothing, or takes too much to build.
        """
        try:
            automaton = self._processes.build(source)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        compiled = CompiledRegex(automaton, self._vocabulary)
        compiled.prepare()
        return compiled

    def close(self) -> None:
        """End the processes; what they are at fails."""
        self._processes.close()


class CompiledRegex:
    """An automaton over a vocabulary, with the masks that were needed so far."""

    def __init__(self, automaton: ByteAutomaton, vocabulary: Vocabulary) -> None:
        self.automaton = automaton
        self.token_bytes = vocabulary.token_bytes
        self.masks = MaskMaker(self.automaton, vocabulary)
        self.forcing = Forcing(self.automaton, vocabulary)
        self.final = self.automaton.accepting_states & ~self.automaton.table.any(axis=1)

    def start(self) -> RegexMatcher:
        """A matcher at the beginning."""
        return RegexMatcher(self, self.automaton.start, ())

    def prepare(self) -> None:
        """Compute what the first tokens need, so that the engine does not wait for it."""
        states = np.unique(self.automaton.table[1 : 1 + _AHEAD])
        for state in [1, *states[states > 1][:_AHEAD].tolist()]:
            place = state * self.automaton.prefixes
            self.masks.mask(place)
            self.forcing.tokens(place, ())


class RegexMatcher:
    """A place in an automaton, and the last tokens that led there."""

    __slots__ = ("_grammar", "_place", "_tail")

    def __init__(self, grammar: CompiledRegex, place: int, tail: tuple[int, ...]) -> None:
        self._grammar = grammar
        self._place = place
        self._tail = tail

    @property
    def accepting(self) -> bool:
        """Whether the output may end here."""
        return self._grammar.automaton.accepting(self._place)

    @property
    def complete(self) -> bool:
        """Whether it must."""
        state = self._grammar.automaton.state(self._place)
        return state is not None and bool(self._grammar.final[state])

    def fill_mask(self, mask: np.ndarray) -> None:
        """Write the tokens that may come next into int32 words."""
        mask[:] = self._grammar.masks.mask(self._place)

    def advance(self, tokens: Sequence[int]) -> None:
        """Go on by tokens that the mask allowed."""
        automaton = self._grammar.automaton
        for token in tokens:
            text = self._grammar.token_bytes[token]
            assert text is not None, f"token {token} is no text"
            self._place = automaton.advance(self._place, text)
            assert self._place, f"token {token} was not allowed"
        self._tail = (*self._tail, *tokens)[-TAIL:]

    def forced(self) -> list[int]:
        """The tokens that any continuation begins with."""
        return self._grammar.forcing.tokens(self._place, self._tail)

    def copy(self) -> RegexMatcher:
        """The same place, to be moved on its own."""
        return RegexMatcher(self._grammar, self._place, self._tail)
