"""Text that a pattern leaves no choice about, and the tokens that are sure to write it.

::

    output so far     {"name         tail      {"name
    forced text       ": "           together  {"name ": "      tokenized as the model would read it
    what may follow   any text       kept               ":      ` "` could become ` "C`
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.runtime.grammar.byte_automaton import ByteAutomaton
    from branchline.runtime.grammar.vocabulary import Vocabulary

# How many tokens back the tokenizer could still change its mind. Tokens merge inside a word (a
# pre-token) only, so those before the last word stay whatever follows; a word of more tokens than
# this would at worst be written in other tokens than the tokenizer's own.
TAIL = 8


@dataclass(frozen=True, slots=True)
class _Run:
    """A path without branches and without an end before its last state."""

    text: bytes
    end: int  # the state after it
    settled: int  # a token that begins in the first so many bytes ends inside the run


class Forcing:
    """Forced tokens of one automaton over one vocabulary. Runs are kept; matchers share them."""

    def __init__(self, automaton: ByteAutomaton, vocabulary: Vocabulary) -> None:
        self._automaton = automaton
        self._vocabulary = vocabulary
        self._sole = _sole_members(automaton)
        self._runs: dict[int, _Run] = {}

    def tokens(self, place: int, tail: Sequence[int]) -> list[int]:
        """The tokens that must come next.

        Args:
            place: of the automaton; inside a character nothing is forced.
            tail: the last ids of the output, `TAIL` at most.
        """
        state = self._automaton.state(place)
        if state is None:
            return []
        run = self._runs.get(state)
        if run is None:
            run = self._runs[state] = self._run(state)
        return self._settled(self._written(tail, run.text), run) if run.text else []

    def _run(self, state: int) -> _Run:
        automaton, characters = self._automaton, []
        while not automaton.accepting_states[state]:
            (leading,) = np.nonzero(automaton.table[state])
            if len(leading) != 1 or self._sole[leading[0]] < 0:
                break
            characters.append(chr(self._sole[leading[0]]))
            state = int(automaton.table[state, leading[0]])
        text = "".join(characters).encode()
        return _Run(text, state, self._settled_bytes(text, state))

    def _settled_bytes(self, text: bytes, end: int) -> int:
        """Where the first token could begin that is part of `text` and part of what follows."""
        sorted_tokens = self._vocabulary.sorted_tokens
        place = end * self._automaton.prefixes
        for begin in range(max(0, len(text) - self._vocabulary.longest), len(text)):
            low, high = _span(sorted_tokens, text[begin:], 0, len(sorted_tokens))
            if self._goes_on(text[begin:], place, low, high):
                return begin
        return len(text)

    def _goes_on(self, prefix: bytes, place: int, low: int, high: int) -> bool:
        """Whether some token from `low` to `high` is `prefix` and then bytes allowed at `place`."""
        tokens = self._vocabulary.sorted_tokens
        if low < high and tokens[low] == prefix:
            low += 1
        while low < high:
            longer = tokens[low][: len(prefix) + 1]
            _, after = _span(tokens, longer, low, high)
            there = self._automaton.advance(place, longer[-1:])
            if there and (tokens[low] == longer or self._goes_on(longer, there, low, after)):
                return True
            low = after
        return False

    def _written(self, tail: Sequence[int], text: bytes) -> list[int]:
        """How the tokenizer writes `text` after `tail`; empty if `tail` would not stay as it is."""
        encode, token_bytes = self._vocabulary.encode, self._vocabulary.token_bytes
        for begin in range(len(tail)):
            ids = list(tail[begin:])
            try:
                before = b"".join(token_bytes[i] or b"" for i in ids).decode()
            except UnicodeDecodeError:  # it begins inside a character
                continue
            together = encode(before + text.decode())
            if together[: len(ids)] == ids:
                return together[len(ids) :]
            if encode(before) == ids:
                return []
            # The model has not written these as the tokenizer would: look at fewer of them.
        return encode(text.decode())

    def _settled(self, ids: list[int], run: _Run) -> list[int]:
        """The first of `ids` that nothing can merge with and that end between two characters."""
        at = kept = 0
        for count, token in enumerate(ids, 1):
            written = self._vocabulary.token_bytes[token]
            # A tokenizer that rewrites text (normalizes it) may not write this one.
            if written is None or not run.text.startswith(written, at):
                break
            at += len(written)
            if at > run.settled:
                break
            if at == len(run.text) or run.text[at] & 0xC0 != 0x80:  # not a continuation byte
                kept = count
        return ids[:kept]


def _sole_members(automaton: ByteAutomaton) -> list[int]:
    """The only character of each class that has one, −1 for the others."""
    lengths = np.diff(automaton.starts, append=0x110000)
    sizes = np.bincount(automaton.classes, weights=lengths, minlength=automaton.table.shape[1])
    sole = np.full(len(sizes), -1)
    sole[automaton.classes] = automaton.starts
    return [one if size == 1 else -1 for one, size in zip(sole.tolist(), sizes, strict=True)]


def _span(tokens: list[bytes], prefix: bytes, low: int, high: int) -> tuple[int, int]:
    """The part of a sorted list that begins with `prefix`, between two indices."""
    low = bisect_left(tokens, prefix, low, high)
    beyond = prefix.rstrip(b"\xff")
    if not beyond:
        return low, high
    beyond = beyond[:-1] + bytes([beyond[-1] + 1])
    return low, bisect_left(tokens, beyond, low, high)
