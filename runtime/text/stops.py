"""Looks for stop strings in a text that arrives in parts."""

from __future__ import annotations

from typing import NamedTuple


class Match(NamedTuple):
    """A stop string found: `text[start:end]`, in characters from the first that was fed."""

    start: int
    end: int


class StopMatcher:
    """Finds the stop string that is complete first; of several that end together, the longest.

    So the answer depends on the text alone, not on how it is split into tokens, and the first
    complete stop ends the generation without waiting for a longer one. (Knuth, Morris and Pratt,
    1977, once for each string.)
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # characters of each that end the text so far
        self._fed = 0

    def feed(self, text: str) -> Match | None:
        """The first match that ends in `text`, the next part; nothing may be fed after one."""
        if not self._stops:
            return None
        for char in text:
            self._fed += 1
            for i, stop in enumerate(self._stops):
                self._matched[i] = self._step(i, char)
                if self._matched[i] == len(stop):
                    return Match(self._fed - len(stop), self._fed)
        return None

    @property
    def held(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def _step(self, i: int, char: str) -> int:
        stop, borders, matched = self._stops[i], self._borders[i], self._matched[i]
        while matched and stop[matched] != char:
            matched = borders[matched - 1]
        return matched + 1 if stop[matched] == char else 0


def _borders(pattern: str) -> list[int]:
    """For each prefix, the length of the longest shorter prefix that it also ends with."""
    borders = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = borders[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        borders[i] = length
    return borders
